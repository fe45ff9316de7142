"""The operator with a CRD of a newer version, and with a status that a newer operator wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.rbac import rights

pytestmark = pytest.mark.virtual

Schema = dict[str, Any]


def definition(change: Callable[[Schema, Schema], None]) -> dict[str, Any]:
    """Returns the CRD with changed schemas of spec and status."""
    crd: dict[str, Any] = yaml.safe_load(CRD.read_text())
    for version in crd["spec"]["versions"]:
        root = version["schema"]["openAPIV3Schema"]["properties"]
        change(root["spec"], root["status"])
    return crd


def newer(spec: Schema, status: Schema) -> None:
    """Adds defaulted fields, an enum value and a field of the status."""
    talker = spec["properties"]["talker"]["properties"]
    talker["pitch"] = {"type": "integer", "default": 3}
    talker["sampling"] = {"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "A"}}}
    spec["properties"]["updateStrategy"]["enum"].append("Canary")
    status["properties"]["canary"] = {"type": "object", "properties": {"weight": {"type": "integer"}}}


@asynccontextmanager
async def with_crd(change: Callable[[Schema, Schema], None], directory: Path) -> AsyncIterator[Harness]:
    async with KubeCluster(crd=definition(change), rights=rights()) as cluster:
        yield Harness(cluster, directory)


async def test_fields_of_a_newer_crd_are_ignored_and_named_once(tmp_path):
    async with with_crd(newer, tmp_path) as harness:
        async with harness.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
            harness.apply(talker={"replicas": 1})
            stored = harness.cluster.get("ttspipeline", "demo")["spec"]["talker"]
            assert (stored["pitch"], stored["sampling"]) == (3, {"mode": "A"}), "the API server writes the defaults"
            await harness.settled()
            assert harness.condition("Degraded")["status"] == "False"
            found = harness.condition("UnknownFields")
            assert (found["status"], found["reason"]) == ("True", "Ignored")
            assert "spec.talker.pitch, spec.talker.sampling" in found["message"]
            harness.apply(talker={"replicas": 2, "pitch": 4})
            await harness.wait(lambda: "demo-talker-1" in harness.uids(), "edits are applied")
            await harness.settled()
            await harness.quiet(operator)
        async with harness.operator() as operator:
            await operator.ready()
            await harness.quiet(operator)
        (message,) = harness.messages("UnknownFields")
        assert "spec.talker.pitch" in message


FORMER = "syrinx.dev/v1alpha1"


def owner_versions(harness: Harness, *, secrets: bool = False) -> set[str]:
    found = [each for each in harness.live() if (each["kind"] == "Secret") is secrets]
    return {reference["apiVersion"] for each in found for reference in each["metadata"]["ownerReferences"]}


def own_as(harness: Harness, version: str) -> None:
    """Makes all owner references as an operator of that API version wrote them."""
    for each in harness.live():
        references = [{**reference, "apiVersion": version} for reference in each["metadata"]["ownerReferences"]]
        harness.cluster.patch(
            each["kind"],
            each["metadata"]["name"],
            {"metadata": {"ownerReferences": references}},
            manager="syrinx-operator",
        )


async def test_an_upgrade_from_v1alpha1_restarts_and_recreates_nothing(harness):
    resource = {"apiVersion": FORMER, "kind": "TTSPipeline", "metadata": {"name": "demo"}, "spec": {}}
    async with harness.operator() as operator:
        harness.cluster.apply(resource)
        await harness.settled()
        await harness.quiet(operator)
    own_as(harness, FORMER)
    running, objects = harness.uids(), {each["metadata"]["uid"] for each in harness.live()}
    async with harness.operator() as operator:
        await harness.wait(lambda: owner_versions(harness) == {"syrinx.dev/v1beta1"}, "they name the new version")
        await harness.quiet(operator)
        assert harness.uids() == running
        assert {each["metadata"]["uid"] for each in harness.live()} == objects
        assert owner_versions(harness, secrets=True) == {FORMER}, "the operator has no right to change Secrets"
        harness.cluster.delete("ttspipeline", "demo")
        await harness.wait(lambda: not harness.objects() and not harness.cluster.list("pod"), "all objects are deleted")
    assert harness.cluster.rights.denied == []
