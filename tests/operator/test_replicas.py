"""Replicas that the tuner decides: workloads follow its state, and others' autoscalers and trials come first."""

from __future__ import annotations

import msgspec
import pytest

from support.listeners import CHUNKS, Listeners
from support.operator import Harness
from support.tuning import scaled
from support.virtual import now
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.state.tuning_status import CallPoint, Measured, Replicas, State, StepPoint
from syrinx_stages.contract.settings import DEFAULT_RAMP

pytestmark = pytest.mark.virtual

CODECS = ("demo-codec-0", "demo-codec-1")
ASKED = Setting(talker_max_num_seqs=8, codec_max_num_seqs=8, chunk_ramp=DEFAULT_RAMP)
SPEC = {
    "talker": {"autoscaling": {"maxReplicas": 3}},
    "codec": {"replicas": 2, "autoscaling": {"maxReplicas": 4}},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]},
    "tuning": {"intervalSeconds": 5},
}
MEASURED = Measured(steps=(StepPoint(1, 100, 1.0),), calls=(CallPoint(1, 4, False, 100, 2.0),), prefills=10)


def known() -> Replicas:
    """Returns what is known of a talker and two codecs that serve two requests a second each."""
    memory = scaled(now(), 1, 2)
    assert memory.capacity is not None
    capacity = msgspec.structs.replace(memory.capacity, setting=ASKED, frames=float(sum(CHUNKS)))
    stages = {stage: msgspec.structs.replace(part, peaks=()) for stage, part in memory.stages.items()}
    return msgspec.structs.replace(memory, capacity=capacity, stages=stages)


def state() -> State:
    return State(phase="Watching", requested=ASKED, measured=MEASURED, replicas=known())


def count(harness: Harness, stage: str) -> int:
    found: int = harness.cluster.get("statefulset", f"demo-{stage}")["spec"]["replicas"]
    return found


def counts(harness: Harness) -> tuple[int, int]:
    return count(harness, "talker"), count(harness, "codec")


async def start(harness: Harness) -> None:
    """Creates a ready pipeline with six requests per codec a second, all served well, whose operator has stopped."""
    admins = harness.cluster.kubelet.admins
    admins.metrics = Listeners(CODECS, lambda pod: admins.report(pod)["settings"], rows=0, late=0.0).metrics
    harness.apply(**SPEC)
    async with harness.operator():
        await harness.settled()
        await harness.wait(lambda: len(harness.cluster.list("pod", "syrinx.dev/component=codec")) == 2, "two codecs")
        await harness.wait(lambda: harness.condition("AutoscalingReady")["reason"] == "NoData", "nothing is known")


async def test_replicas_are_added_for_the_load_and_the_maximum_limits(harness):
    await start(harness)
    harness.write_state(state())
    async with harness.operator() as operator:
        await harness.wait(lambda: counts(harness) == (3, 4), "as many as there may be", 120)
        await operator.kill()
    async with harness.operator():
        await harness.settled()
        await harness.wait(lambda: len(harness.talkers()) == 3, "the next operator keeps them")
        await harness.wait(lambda: harness.condition("AutoscalingReady")["reason"] == "MaxReplicas", "it is reported")
    message = harness.condition("AutoscalingReady")["message"]
    assert "maxReplicas is 3" in message and "maxReplicas is 4" in message
    assert counts(harness) == (3, 4)
    assert {"ScaledUp", "MaxReplicas"} <= harness.reasons()
    assert "2 -> 4 replicas" in harness.cluster.get("ttspipeline", "demo")["status"]["tuning"]["replicas"]


async def test_another_autoscaler_is_respected(harness):
    await start(harness)
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-codec"}
    body = {"scaleTargetRef": target, "maxReplicas": 8}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    harness.cluster.apply({**kind, "metadata": {"name": "codecs"}, "spec": body})
    harness.cluster.patch("statefulset", "demo-codec", {"spec": {"replicas": 3}}, manager="autoscaler")
    harness.write_state(state())
    async with harness.operator() as operator:
        await harness.wait(lambda: count(harness, "talker") == 3, "talkers are added", 120)
        await harness.wait(lambda: harness.condition("AutoscalingReady")["reason"] == "OtherAutoscaler", "it is said")
        await operator.reconciled(3)
        assert count(harness, "codec") == 3
        harness.cluster.delete("horizontalpodautoscaler", "codecs")
        await harness.wait(lambda: count(harness, "codec") == 4, "Syrinx decides again", 120)
