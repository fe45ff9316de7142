"""`syrinx tune` of a pipeline on Kubernetes requires only the rights to read the resource and the tuner's state."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.kube import KubeCluster, Rights
from support.operator import CRD
from syrinx_operator.resource.knobs import Knob, setting_of
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.tuning_status import State

RECORDED = Path(__file__).parents[1] / "fixtures" / "tuning" / "state.json"
"""The tuner's state after 40 minutes of a simulated pipeline."""
RIGHTS = [
    {"apiGroups": ["syrinx.dev"], "resources": ["ttspipelines"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
]


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, rights=Rights.of_role(RIGHTS)) as running:
        yield running


@pytest.fixture
def tune(cluster: KubeCluster, tmp_path: Path) -> Callable[..., Awaitable[tuple[int | None, str]]]:
    """Runs the command and returns its exit status and output."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig"))}

    async def run(*arguments: str) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "syrinx_operator", "tune", *arguments]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=STDOUT)
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    return run


def resource(name: str = "demo", **spec: object) -> dict[str, Any]:
    return {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "of an earlier version"])
async def test_it_prints_the_tuners_state(cluster: KubeCluster, tune: Any, recorded: bool) -> None:
    cluster.apply(resource(slo={"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]}))
    chosen = setting_of(default_pipeline().spec).with_value(Knob.TALKER_ROWS, 16)
    state = State(mode="Auto", phase="Watching", message="99.8% of the requests are served well", chosen=chosen)
    slo = {"taskType": "CustomVoice", "requests": 80, "within": 0.96, "ttfaP95Ms": 280, "met": "True"}
    written = msgspec.json.encode(state)
    if recorded:
        metadata = {"name": "demo-tuning", "namespace": "default"}
        data = {"tuning.json": written.decode()}
        cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        written = b'{"mode":"Auto","phase":"NoData","message":"an older one","configMap":"demo-tuning"}'
    status = {"tuning": msgspec.json.decode(written), "slo": [slo]}
    cluster.patch("ttspipeline", "demo", {"status": status}, subresource="status")
    code, output = await tune("-n", "default", "demo")
    assert code == 0
    assert "pipeline demo (namespace default): tuning Auto, phase Watching\n" in output
    assert "talker.maxNumSeqs   16   (spec: 8)" in output
    assert "met; 80 recent requests, 96.0% within, p95 280 ms" in output
    assert cluster.rights is not None and cluster.rights.denied == []


async def test_it_answers_what_if_from_the_replicas_that_are_ready(cluster: KubeCluster, tune: Any) -> None:
    cluster.apply(resource(slo={"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]}))
    metadata = {"name": "demo-tuning", "namespace": "default"}
    data = {"tuning.json": RECORDED.read_text()}
    cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    outline = {"mode": "Auto", "phase": "Soaking", "message": "", "configMap": "demo-tuning"}
    talker = {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 3, "summary": "2/3", "selector": "a=b"}
    settings = {"maxNumSeqs": 32, "leadLimitSeconds": 8.0}
    status = {"tuning": outline, "talker": {**talker, "settingsGeneration": 1, "settings": settings}}
    cluster.patch("ttspipeline", "demo", {"status": status}, subresource="status")
    code, output = await tune("-n", "default", "demo", "--what-if", "rate=5,frames=50")
    assert code == 0, output
    assert "5 requests/s (CustomVoice 100%), Poisson arrivals, 50 frames (4.0 s) of audio a request\n" in output
    assert "talkers: 2, codecs: 1\n" in output and "served well" in output
    assert cluster.rights is not None and cluster.rights.denied == []


async def test_a_missing_pipeline_is_reported(cluster: KubeCluster, tune: Any) -> None:
    cluster.apply(resource())
    cluster.apply(resource("off", tuning={"mode": "Off"}))
    answers = await asyncio.gather(
        *(tune("-n", *each) for each in (("default", "none"), ("default", "demo"), ("default", "off"), ("x", "demo")))
    )
    assert [code for code, _ in answers] == [1, 1, 1, 1]
    none, demo, off, forbidden = (output for _, output in answers)
    assert "there is no TTSPipeline none in namespace default" in none
    assert "the status of demo has no tuning state: is the operator running?" in demo
    assert "off is not tuned: its spec.tuning.mode is Off" in off
    assert "the API server refused the request: " in forbidden and "forbidden" in forbidden
