"""The installation: objects are admitted, and the operator runs with its command and its rights."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from support.charts import ROOT, is_hook, objects, of_kind, one, pods
from support.http_client import HTTP
from support.kube import KubeCluster, Rights
from support.operator import CRD, SECONDS
from support.operator_process import run, served_port
from syrinx_operator.cluster.objects.names import LEASE

VARIANTS = {"namespaced": "deploy/operator.yaml", "cluster-wide": "deploy/cluster-wide/operator.yaml"}
EVERY = pytest.mark.parametrize("file", VARIANTS.values(), ids=VARIANTS)


def manifests(file):
    common = [ROOT / "deploy" / "common" / name for name in ("namespace.yaml", "resource.yaml")]
    return [manifest for path in (*common, ROOT / file) for manifest in yaml.safe_load_all(path.read_text())]


@contextlib.asynccontextmanager
async def installed(applied, account) -> AsyncIterator[KubeCluster]:
    """Returns a cluster with all objects applied and the ServiceAccount's rights."""
    async with KubeCluster(rights=Rights.of_manifests(applied, account)) as cluster:
        for manifest in applied:
            cluster.apply(manifest)
        yield cluster


def test_pods_meet_the_restricted_profile():
    hooks = [manifest for manifest in objects("syrinx", namespace="syrinx") if is_hook(manifest)]
    found = {
        pod["spec"]["containers"][0]["name"]: pod["spec"] for pod in pods(manifests(VARIANTS["namespaced"]) + hooks)
    }
    assert found.keys() == {"operator", "selftest"}
    for spec in found.values():
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
        assert {key for volume in spec.get("volumes", ()) for key in volume} <= {
            "name",
            "emptyDir",
            "secret",
            "configMap",
        }
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"].get("runAsUser", 1) > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not any("hostPort" in port for port in container.get("ports", ()))


@EVERY
async def test_the_installed_operator_has_all_rights_it_needs(file, tmp_path):
    applied = manifests(file)
    container = one(applied, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    log = tmp_path / "log"
    async with installed(applied, "syrinx-operator") as cluster:
        inherited = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        environment = (
            inherited
            | {each["name"]: each["value"] for each in container["env"] if "value" in each}
            | {
                "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "POD_NAME": "syrinx-operator-0",
                "SYRINX_OPERATOR_NAMESPACE": "syrinx",
                "SYRINX_PORT": "0",
            }
        )
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *container["command"], env=environment, stdout=output, stderr=output
            )

        def passes(probe):
            with contextlib.suppress(httpx.TransportError):
                path = container[probe]["httpGet"]["path"]
                return HTTP.get(f"http://127.0.0.1:{served_port(log)}{path}").is_success

        try:
            for probe in ("livenessProbe", "readinessProbe"):
                await cluster.wait(partial(passes, probe), SECONDS, probe)
            pipeline = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "demo"}}
            cluster.apply(pipeline, namespace="syrinx")
            await cluster.wait(lambda: cluster.get("lease", LEASE, "syrinx"), SECONDS, "it has a Lease")
            await cluster.wait(lambda: cluster.get("statefulset", "demo-talker", "syrinx"), SECONDS, "it has talkers")
            await cluster.wait(
                lambda: cluster.get("ttspipeline", "demo", "syrinx")["status"]["conditions"], SECONDS, "it has a status"
            )
        finally:
            process.terminate()
            async with asyncio.timeout(SECONDS):
                await process.wait()
        assert cluster.rights.denied == [], log.read_text()[-3000:]
        assert cluster.rights.asked


async def run_test_pod(cluster, directory):
    """Returns the exit status and the output of the test pod."""
    (pod,) = of_kind(objects("syrinx"), "Pod")
    command = pod["spec"]["containers"][0]["command"]
    return await run(cluster, directory, *(word.replace("$(NAMESPACE)", "speech") for word in command))


def without_rules(schema):
    """Returns the CRD without CEL rules."""
    if isinstance(schema, dict):
        return {key: without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}
    return [without_rules(item) for item in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize(
    ("definition", "code", "message"),
    [
        (lambda crd: [crd], 0, "rejected by field name"),
        (lambda crd: [without_rules(crd)], 1, "an invalid spec.codec.maxNumSeqs is accepted"),
        (lambda crd: [], 1, "the API server did not validate a pipeline"),
    ],
    ids=["installed", "of another version", "missing"],
)
async def test_helm_test_checks_that_the_cluster_validates_pipelines(definition, code, message, tmp_path):
    hooks = [manifest for manifest in objects("syrinx") if is_hook(manifest)]
    account = one(hooks, "ServiceAccount")["metadata"]["name"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "speech"}}
    applied = [
        namespace,
        *definition(yaml.safe_load(CRD.read_text())),
        *(each for each in hooks if each["kind"] != "Pod"),
    ]
    async with installed(applied, account) as cluster:
        status, output = await run_test_pod(cluster, tmp_path)
        assert (status, message in output) == (code, True), output
        assert cluster.rights.denied == []
        if applied[1]["kind"] == "CustomResourceDefinition":
            assert cluster.list("ttspipeline", namespace="speech") == [], "nothing is created"
