"""Replicas that the operator decides: talkers follow the load of real clients, and other autoscalers are respected.

One pipeline for the whole file. Its talkers serve one stream at a time with little CPU, so that a few clients are more
than one of them can serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from cluster.client import wait_until
from cluster.installation import Installation
from cluster.listeners import Listeners
from cluster.pipeline import ANYWHERE, CONVERGES, Pipeline, running
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Peak, State
from syrinx_operator.tuner.replicas import KEPT

PIPELINE = "scaled"
MAX_TALKERS = 3
SPEC = {
    "gateway": {"maxQueueSeconds": 60},
    "talker": {
        "maxNumSeqs": 1,
        "resources": {"limits": {"cpu": "300m"}},
        "autoscaling": {"maxReplicas": MAX_TALKERS},
    },
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 1000}]},
    "tuning": {"intervalSeconds": 5},
    "monitoring": {"allowFrom": [ANYWHERE]},
}
FEW = {"clients": 2, "pause": 6.0}
MANY = {"clients": 6}
IS_KNOWN = 600.0
"""What a replica can serve is known after some minutes of requests."""
SCALES = 300.0


@pytest.fixture(scope="module")
def scaled(installed: Installation) -> Iterator[Pipeline]:
    """A pipeline whose talkers Syrinx scales."""
    with running(installed, PIPELINE, **SPEC) as pipeline:
        yield pipeline


def talkers(pipeline: Pipeline) -> int:
    """Returns the number of talkers that the StatefulSet asks for."""
    found: int = pipeline.cluster.get("StatefulSet", f"{PIPELINE}-talker")["spec"]["replicas"]
    return found


def forget_the_peaks(pipeline: Pipeline) -> None:
    """Changes the tuner's record as if what was needed until now had been needed nearly ten minutes ago."""
    pipeline.installed.operator.kill()
    data = pipeline.cluster.get("ConfigMap", f"{PIPELINE}-tuning")["data"]
    state = msgspec.json.decode(data["tuning.json"], type=State)
    part = state.replicas.stages[Stage.TALKER]
    peak = Peak(datetime.now(UTC) - KEPT + timedelta(seconds=20), part.count)
    stages = {**state.replicas.stages, Stage.TALKER: replace(part, peaks=(peak,))}
    state = replace(state, replicas=replace(state.replicas, stages=stages))
    written = {"data": {"tuning.json": msgspec.json.encode(state).decode()}}
    pipeline.cluster.patch("ConfigMap", f"{PIPELINE}-tuning", written)
    pipeline.installed.operator.start()


def test_talkers_follow_the_load_and_no_stream_fails(scaled):
    with Listeners(scaled, **FEW) as few:
        wait_until(
            "the capacity to be known", IS_KNOWN, lambda: scaled.condition("AutoscalingReady")["status"] == "True"
        )
        before = talkers(scaled)
        with Listeners(scaled, **MANY) as many:
            wait_until("more talkers", SCALES, lambda: talkers(scaled) > before)
            wanted = talkers(scaled)
            assert "ScaledUp" in scaled.events()
            wait_until("them to be ready", scaled.parameters.ready_seconds, scaled.is_complete)
            many.wait(2 * MANY["clients"])
        served = len(few.streams)
        forget_the_peaks(scaled)
        wait_until("fewer talkers", SCALES, lambda: talkers(scaled) < wanted)
        wait_until("them to have ended", CONVERGES, lambda: len(scaled.pods("talker")) == talkers(scaled))
        few.wait(2)
        assert "ScaledDown" in scaled.events()
    print(f"\n{before} to {wanted} to {talkers(scaled)} talkers: {scaled.status['tuning']['replicas']}")
    print(f"{served} + {len(few.streams) - served} + {len(many.streams)} streams")
    assert few.failures == many.failures == []
    assert len({*few.streams, *many.streams}) == 1, "all have the same audio"


def test_another_autoscaler_decides_alone(scaled):
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{PIPELINE}-talker"}
    usage = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "others"},
        # Without metrics it only enforces the least.
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": MAX_TALKERS + 1,
            "maxReplicas": MAX_TALKERS + 1,
            "metrics": [{"type": "Resource", "resource": usage}],
        },
    }
    scaled.cluster.apply(autoscaler)
    message = scaled.wait_condition("AutoscalingReady", "OtherAutoscaler")
    assert f"{PIPELINE}-talker" in message
    wait_until("its talkers", CONVERGES, lambda: talkers(scaled) == MAX_TALKERS + 1)
    # A reconcile that changes the same object.
    scaled.edit({"talker": {"podAnnotations": {"example.org/edition": "2"}}})
    scaled.wait_ready()
    assert talkers(scaled) == MAX_TALKERS + 1
    scaled.cluster.delete("HorizontalPodAutoscaler", "others")
    wait_until("Syrinx to decide", SCALES, lambda: talkers(scaled) <= MAX_TALKERS)
