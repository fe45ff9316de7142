"""The operator with a CRD of a newer version, and with a status that a newer operator wrote."""

from __future__ import annotations

import copy
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


def events(harness: Harness, reason: str) -> list[str]:
    return [event["message"] for event in harness.events() if event["reason"] == reason]


def pods(harness: Harness) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in harness.cluster.list("pod")}


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
            await harness.wait(lambda: "demo-talker-1" in pods(harness), "edits are applied")
            await harness.settled()
            await harness.quiet(operator)
        async with harness.operator() as operator:
            await operator.ready()
            await harness.quiet(operator)
        (message,) = events(harness, "UnknownFields")
        assert "spec.talker.pitch" in message


async def test_an_unknown_enum_value_is_named_and_what_runs_keeps_running(tmp_path):
    async with with_crd(newer, tmp_path) as harness:
        async with harness.operator() as operator:
            harness.apply()
            await harness.settled()
            await harness.quiet(operator)
            running, objects = pods(harness), harness.objects()
            harness.apply(updateStrategy="Canary", talker={"replicas": 2})
            await harness.wait(lambda: harness.condition("Degraded")["reason"] == "Invalid", "it is reported")
        message = harness.condition("Degraded")["message"]
        assert "spec.updateStrategy: 'Canary' is not accepted; expected" in message
        assert "a newer operator may know it" in message
        async with harness.operator() as operator:
            await operator.ready()
            await operator.reconciled(3)
            assert harness.condition("Ready")["status"] == "True"
            assert (pods(harness), harness.objects()) == (running, objects)
            harness.apply(talker={"replicas": 2})
            await harness.wait(lambda: harness.condition("Degraded")["status"] == "False", "the edit is corrected")
            await harness.wait(lambda: len(harness.talkers()) == 2, "the rest of it is applied")
            assert running.items() <= pods(harness).items()


async def test_the_status_of_a_newer_operator_is_read_and_replaced(tmp_path):
    async with with_crd(newer, tmp_path) as harness:
        async with harness.operator() as operator:
            harness.apply()
            await harness.settled()
            await harness.quiet(operator)
        before = copy.deepcopy(harness.cluster.get("ttspipeline", "demo")["status"])
        _write_as_a_newer_operator(harness, before)
        running = pods(harness)
        async with harness.operator() as operator:
            await harness.wait(lambda: "canary" not in harness.cluster.get("ttspipeline", "demo")["status"], "replaced")
            await harness.quiet(operator)
        after = harness.cluster.get("ttspipeline", "demo")["status"]
        assert {each["type"] for each in after["conditions"]} == {each["type"] for each in before["conditions"]}
        assert after["conditions"][0] == before["conditions"][0], "when it became ready stays known"
        assert pods(harness) == running
        assert len(events(harness, "Ready")) == 1 and events(harness, "TuningStateLost") == []


def _write_as_a_newer_operator(harness: Harness, before: dict[str, Any]) -> None:
    """Applies a status with fields, values and a condition that this version does not know."""
    newer_condition = {**before["conditions"][0], "type": "CanaryReady", "reason": "Weighted"}
    status = {
        **before,
        "conditions": [*before["conditions"], newer_condition],
        "canary": {"weight": 5},
        "tuning": {**before["tuning"], "phase": "Exploring", "explored": [{"depth": 1}]},
        "codec": {**before["codec"], "engine": {"name": "new"}},
    }
    live = harness.cluster.get("ttspipeline", "demo")
    written = {name: live[name] for name in ("apiVersion", "kind")} | {"metadata": {"name": "demo"}, "status": status}
    harness.cluster.apply(written, manager="syrinx-operator", subresource="status")


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
    running, objects = pods(harness), {each["metadata"]["uid"] for each in harness.live()}
    async with harness.operator() as operator:
        await harness.wait(lambda: owner_versions(harness) == {"syrinx.dev/v1beta1"}, "they name the new version")
        await harness.quiet(operator)
        assert pods(harness) == running
        assert {each["metadata"]["uid"] for each in harness.live()} == objects
        assert owner_versions(harness, secrets=True) == {FORMER}, "the operator has no right to change Secrets"
        harness.cluster.delete("ttspipeline", "demo")
        await harness.wait(lambda: not harness.objects() and not harness.cluster.list("pod"), "all objects are deleted")
    assert harness.cluster.rights.denied == []
