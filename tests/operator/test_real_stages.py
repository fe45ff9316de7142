"""A pipeline from `kubectl apply` to speech, edits and failures, with real stage processes as pods."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from support.kube import KubeCluster
from support.kube.controllers import is_ready
from support.operator import SECONDS, Harness
from support.operator_process import OperatorProcess
from support.rbac import rights
from syrinx_stages.contract.family import FAMILY

ROOT = Path(__file__).parents[2]
TEXT = "The old teacher carried seven green apples before breakfast. Her brother opened a broken window."
SEED = 7


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    crd = ROOT / "crds" / "ttspipelines.syrinx.dev.yaml"
    async with KubeCluster(pods="real", crd=crd, rights=rights()) as running:
        yield running


@pytest.fixture
def harness(cluster: KubeCluster, tmp_path: Path) -> Harness:
    return Harness(cluster, tmp_path, OperatorProcess)


async def synthesize(cluster: KubeCluster, on_frames: Callable[[int], None] = lambda frames: None) -> bytes:
    """Returns PCM of the text from the gateway's Service; calls `on_frames` with the number of frames so far."""
    body = {"input": TEXT, "voice": "us", "response_format": "pcm", "stream": True, "seed": SEED}
    pcm = b""
    async with (
        asyncio.timeout(SECONDS),
        httpx.AsyncClient(base_url=cluster.service_url("demo-gateway"), timeout=SECONDS) as client,
        client.stream("POST", "/v1/audio/speech", json=body) as answer,
    ):
        if answer.status_code != 200:
            raise AssertionError((await answer.aread()).decode())
        async for chunk in answer.aiter_raw():
            pcm += chunk
            on_frames(len(pcm) // FAMILY.frame_bytes)
    return pcm


def is_speech(pcm: bytes) -> bool:
    samples = np.frombuffer(pcm, "<i2").astype(float)
    return len(samples) > 2 * FAMILY.sample_rate and float(np.sqrt(np.mean(samples**2))) > 300.0


def pods(cluster: KubeCluster) -> dict[str, str]:
    """Returns UIDs by pod name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.list("pod", "syrinx.dev/pipeline=demo")}


async def settings(cluster: KubeCluster, pod: str, stage: str = "") -> dict[str, object]:
    """Returns a replica's settings in force. `stage` is that of the pod by default."""
    found = cluster.get("pod", pod)
    stage = stage or found["metadata"]["labels"]["syrinx.dev/component"]
    token = base64.b64decode(cluster.get("secret", "demo-stages")["data"]["token"]).decode()
    url = f"http://{found['status']['podIP']}:9091/settings/{stage}"
    async with httpx.AsyncClient(timeout=SECONDS, headers={"X-Syrinx-Token": token}) as client:
        report: dict[str, object] = (await client.get(url)).json()["settings"]
        return report


def edit(cluster: KubeCluster, **spec: object) -> None:
    cluster.patch("ttspipeline", "demo", {"spec": spec})


async def test_the_lifecycle_of_a_pipeline(harness, cluster):
    async with harness.operator(SYRINX_STAGE_ACCESS="proxy") as operator:
        cluster.apply(yaml.safe_load((ROOT / "examples" / "pipeline.yaml").read_text()))
        await harness.settled()
        pcm = await synthesize(cluster)
        assert is_speech(pcm)
        assert [each["message"] for each in cluster.list("event") if each["type"] == "Warning"] == []
        assert cluster.get("ttspipeline", "demo")["status"]["endpoint"] == "http://demo-gateway.default.svc:8000"

        # A live edit: in force everywhere, and no pod is touched.
        before = pods(cluster)
        objective = {"taskType": "CustomVoice", "ttfaP95Ms": 500}
        edit(cluster, talker={"maxNumSeqs": 3}, codec={"chunkRamp": [1, 2, 4]}, slo={"ttfa": [objective]})
        await harness.settled()
        (gateway,) = (name for name in before if name.startswith("demo-gateway"))
        assert (await settings(cluster, gateway))["ttfa_seconds"] == {"CustomVoice": 0.5}
        assert (await settings(cluster, "demo-talker-0"))["max_num_seqs"] == 3
        assert (await settings(cluster, "demo-codec-0"))["chunk_ramp"] == [1, 2, 4]
        assert pods(cluster) == before

        # Scale out the talkers and kill one during a stream: the audio does not change.
        edit(cluster, talker={"replicas": 2})
        await harness.settled()
        assert set(pods(cluster)) == {*before, "demo-talker-1"}
        await harness.wait(lambda: is_ready(cluster.get("pod", "demo-talker-1")), "the second talker")
        assert await synthesize(cluster, at_frame(5, lambda: kill_talkers(cluster))) == pcm
        await harness.wait(lambda: restarts(cluster) >= 1, "a restart is counted")

        # Kill the operator: the pods keep running, and the next operator finds everything unchanged.
        await operator.kill()
        assert await synthesize(cluster) == pcm
    version = {name: obj["metadata"]["resourceVersion"] for name, obj in manifests(cluster).items()}
    async with harness.operator(SYRINX_STAGE_ACCESS="proxy") as operator:
        await operator.ready()
        edit(cluster, gateway={"maxQueue": 11})
        await harness.settled()
        changed = {
            name for name, obj in manifests(cluster).items() if obj["metadata"]["resourceVersion"] != version[name]
        }
        # The tuner's state follows the traffic.
        assert changed - {"ConfigMap/demo-tuning"} == {"ConfigMap/demo-gateway"}

        # A deleted pod comes back with the settings that are in force.
        cluster.delete("pod", "demo-codec-0")
        await harness.wait(lambda: is_new_and_ready(cluster, "demo-codec-0", before), "a new codec")
        await harness.settled()
        assert (await settings(cluster, "demo-codec-0"))["chunk_ramp"] == [1, 2, 4]
        assert await synthesize(cluster) == pcm

        # After deletion nothing is left.
        processes = [pid for pod in pods(cluster) for pid in cluster.kubelet.pids(pod)]
        assert len(processes) == 5
        cluster.delete("ttspipeline", "demo")
        await harness.wait(lambda: not left(cluster), "nothing is left", SECONDS)
        assert not alive(processes)
        assert cluster.rights.denied == []


def at_frame(frame: int, do: Callable[[], None]) -> Callable[[int], None]:
    """Returns a callback that acts once, after a number of frames."""
    done = False

    def on_frames(frames: int) -> None:
        nonlocal done
        if frames >= frame and not done:
            done = True
            do()

    return on_frames


def kill_talkers(cluster: KubeCluster) -> None:
    """Kills all talkers, because the test cannot know which one serves the stream."""
    for pod in ("demo-talker-0", "demo-talker-1"):
        cluster.kubelet.kill(pod)


def is_new_and_ready(cluster: KubeCluster, pod: str, before: dict[str, str]) -> bool:
    obj = cluster.get("pod", pod)
    return obj["metadata"]["uid"] != before[pod] and is_ready(obj)


def alive(processes: list[int]) -> list[int]:
    return [pid for pid in processes if os.path.exists(f"/proc/{pid}")]


def restarts(cluster: KubeCluster) -> int:
    statuses = [pod["status"]["containerStatuses"] for pod in cluster.list("pod", "syrinx.dev/component=talker")]
    return sum(status["restartCount"] for [status] in statuses)


KINDS = ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy")


def manifests(cluster: KubeCluster) -> dict[str, dict]:
    """Returns the objects that only the operator writes, by kind and name."""
    names = [name for name in KINDS if name not in ("StatefulSet", "Deployment")]
    return {
        f"{kind}/{obj['metadata']['name']}": obj
        for kind in names
        for obj in cluster.list(kind, "syrinx.dev/pipeline=demo")
    }


def left(cluster: KubeCluster) -> list[str]:
    """Returns all remaining objects of the pipeline."""
    kinds = [kind.plural for kind in cluster.api.kinds if kind.namespaced]
    found = [obj for kind in kinds for obj in cluster.list(kind, "syrinx.dev/pipeline=demo")]
    return [f"{obj['kind']}/{obj['metadata']['name']}" for obj in found]
