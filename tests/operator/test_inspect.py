"""`kubectl syrinx`: status and logs of a pipeline, with the rights of somebody who may view a namespace."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from support.kube import KubeCluster, Rights
from support.operator import CRD, Harness
from support.waiting import until
from syrinx_operator.cluster.objects.names import COMPONENT_LABEL, PIPELINE_LABEL

RIGHTS = [
    {"apiGroups": ["syrinx.dev"], "resources": ["ttspipelines"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
Run = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, pods="real", rights=Rights.of_role(RIGHTS)) as running:
        yield running


@pytest.fixture
def plugin(command: Run) -> Run:
    """Runs the plugin as kubectl does, and returns its exit status and output."""
    return partial(command, "kubectl-syrinx")


def talker(pipeline: str, script: str) -> dict[str, Any]:
    probe = {"exec": {"command": ["false"]}}
    container = {
        "name": "talker",
        "image": "python",
        "command": [sys.executable, "-c", script],
        "readinessProbe": probe,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{pipeline}-talker-0", "labels": {PIPELINE_LABEL: pipeline, COMPONENT_LABEL: "talker"}},
        "spec": {"containers": [container]},
    }


async def test_it_shows_the_only_pipeline_of_the_current_namespace(
    cluster: KubeCluster, harness: Harness, plugin: Run
) -> None:
    assert await plugin("status") == (
        1,
        "kubectl syrinx status: there is no TTSPipeline in namespace default; -n NAMESPACE selects another one\n",
    )
    harness.apply("demo")
    code, output = await plugin("status")
    assert code == 0
    assert output.startswith("demo in namespace default: no operator has seen this pipeline")
    harness.apply("other")
    code, output = await plugin("status")
    assert (code, output) == (1, "kubectl syrinx status: name one of the pipelines in namespace default: demo, other\n")
    assert cluster.rights is not None and cluster.rights.denied == []


async def test_it_prints_the_log_of_the_container_that_failed(
    cluster: KubeCluster, harness: Harness, plugin: Run
) -> None:
    harness.apply("demo")
    code, output = await plugin("logs", "demo")
    assert code == 1 and "no container of demo has started" in output
    cluster.apply(talker("demo", "print('one'); print('two'); print('the model is missing'); raise SystemExit(3)"))

    def has_failed() -> bool:
        statuses = cluster.get("pod", "demo-talker-0").get("status", {}).get("containerStatuses") or [{}]
        return "terminated" in str(statuses)

    await until(has_failed, "the container has failed")
    code, output = await plugin("logs", "demo", "--tail", "2")
    assert code == 0
    assert "of talker in demo-talker-0, because it ended with exit code 3" in output
    assert "the model is missing" in output and "one" not in output.splitlines()


async def test_what_may_not_be_read_is_named(plugin: Run) -> None:
    code, output = await plugin("status", "-n", "elsewhere", "demo")
    assert code == 1
    assert output.startswith("kubectl syrinx status: the API server refused the request: ") and "forbidden" in output
