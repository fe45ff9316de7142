"""`syrinx tune` of a pipeline on Kubernetes requires only the rights to read the resource and the tuner's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec
import pytest

from support.kube import KubeCluster, Rights
from support.operator import CRD, Harness
from syrinx_operator.resource.knobs import Knob, setting_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.state.tuning_status import State

Run = Callable[..., Awaitable[tuple[int, str]]]
RIGHTS = [
    {"apiGroups": ["syrinx.dev"], "resources": ["ttspipelines"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
]


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, rights=Rights.of_role(RIGHTS)) as running:
        yield running


@pytest.fixture
def tune(command: Run) -> Run:
    return partial(command, "syrinx", "tune")


async def test_it_prints_the_tuners_state(cluster: KubeCluster, harness: Harness, tune: Run) -> None:
    harness.apply(slo={"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]})
    chosen = setting_of(resolve(default_pipeline())).with_value(Knob.TALKER_ROWS, 16)
    state = State(mode="Auto", phase="Watching", message="99.8% of the requests are served well", chosen=chosen)
    slo = {"taskType": "CustomVoice", "requests": 80, "within": 0.96, "ttfaP95Ms": 280, "met": "True"}
    metadata = {"name": "demo-tuning", "namespace": "default"}
    data = {"tuning.json": msgspec.json.encode(state).decode()}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    outline = {"mode": "Auto", "phase": "NoData", "message": "an older one", "configMap": "demo-tuning"}
    status = {"tuning": outline, "slo": [slo]}
    cluster.patch("ttspipeline", "demo", {"status": status}, subresource="status")
    code, output = await tune("-n", "default", "demo")
    assert code == 0
    assert "pipeline demo (namespace default): tuning Auto, phase Watching\n" in output
    assert "talker.maxNumSeqs   16   (spec: 8)" in output
    assert "met; 80 recent requests, 96.0% within, p95 280 ms" in output
    assert cluster.rights is not None and cluster.rights.denied == []


async def test_a_missing_pipeline_is_reported(harness: Harness, tune: Run) -> None:
    harness.apply()
    harness.apply("off", tuning={"mode": "Off"})
    answers = await asyncio.gather(
        *(tune("-n", *each) for each in (("default", "none"), ("default", "demo"), ("default", "off"), ("x", "demo")))
    )
    assert [code for code, _ in answers] == [1, 1, 1, 1]
    none, demo, off, forbidden = (output for _, output in answers)
    assert "there is no TTSPipeline none in namespace default" in none
    assert "the status of demo has no tuning state: is the operator running?" in demo
    assert "off is not tuned: its spec.tuning.mode is Off" in off
    assert "the API server refused the request: " in forbidden and "forbidden" in forbidden
