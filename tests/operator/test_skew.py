"""The operator with a CRD of a newer or an older version, and with a status that a newer operator wrote."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
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
    spec["properties"]["model"]["properties"]["tape"] = {"type": "string"}
    spec["properties"]["model"].pop("x-kubernetes-validations")
    spec["properties"]["updateStrategy"]["enum"].append("Canary")
    status["properties"]["canary"] = {"type": "object", "properties": {"weight": {"type": "integer"}}}


def older(spec: Schema, status: Schema) -> None:
    """Removes defaulted fields, an optional field, an enum value, and fields of the status."""
    for path in ("updateStrategy", "fixedUser", "talker.leadLimitSeconds", "talker.podTemplate", "gateway.api"):
        _remove(spec, path.split("."))
    spec["properties"]["tuning"]["properties"]["mode"]["enum"].remove("Recommend")
    spec["properties"]["tuning"]["properties"]["mode"]["default"] = "Off"
    _set_default(spec, ["tuning", "mode"], "Off")
    for path in ("slo", "redis.restarts", "codec.confirmed", "tuning.configMap", "tuning.history"):
        _remove(status, path.split("."))


def _remove(schema: Schema, path: list[str]) -> None:
    """Removes a field from the properties of a schema, and from the defaults of all objects that contain it."""
    default: Any = schema.get("default", {})
    for name in path[:-1]:
        default = default.get(name, {})
    default.pop(path[-1], None)
    if path[1:]:
        _remove(schema["properties"][path[0]], path[1:])
    else:
        del schema["properties"][path[0]]
        schema["x-kubernetes-validations"] = [
            rule for rule in schema.get("x-kubernetes-validations", ()) if path[0] not in rule["rule"]
        ]


def _set_default(schema: Schema, path: list[str], value: Any) -> None:
    if "default" in schema:
        default = schema["default"]
        for name in path[:-1]:
            default = default[name]
        default[path[-1]] = value
    if path[1:]:
        _set_default(schema["properties"][path[0]], path[1:], value)


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


async def test_a_model_source_of_a_newer_crd_does_not_start_another_model(tmp_path):
    async with with_crd(newer, tmp_path) as harness, harness.operator():
        harness.apply(model={"tape": "voices/us"})
        await harness.wait(lambda: harness.condition("Degraded")["reason"] == "Invalid", "it is reported")
        message = harness.condition("Degraded")["message"]
        assert "spec.model: set exactly one of" in message and "does not know and ignores spec.model.tape" in message
        assert pods(harness) == {}


async def test_an_older_crd_is_served_with_the_defaults_of_the_operator(tmp_path):
    async with with_crd(older, tmp_path) as harness:
        async with harness.operator() as operator:
            harness.apply(tuning={"mode": "Auto"})
            await harness.settled()
            await harness.quiet(operator)
        status = harness.cluster.get("ttspipeline", "demo")["status"]
        assert status["tuning"]["configMap"] == "demo-tuning", "the definition keeps what it does not know"
        assert harness.condition("Degraded")["status"] == "False"
        assert [each["type"] for each in status["conditions"] if each["type"] == "UnknownFields"] == []


@pytest.mark.parametrize("change", [newer, older, lambda spec, status: None], ids=["newer", "older", "same"])
async def test_the_status_of_a_newer_operator_is_read_and_replaced(tmp_path, change):
    async with with_crd(change, tmp_path) as harness:
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


async def test_a_setting_that_the_stages_do_not_know_keeps_no_other_from_taking_effect(harness):
    """As after an upgrade of the operator, whose pipelines keep their image."""
    admins = harness.cluster.kubelet.admins
    admins.unknown = {"lead_limit_seconds"}
    async with harness.operator() as operator:
        harness.apply()
        await harness.settled()
        await harness.wait(lambda: harness.condition("Progressing")["reason"] == "Complete", "it is complete")
        types = [each["type"] for each in harness.cluster.get("ttspipeline", "demo")["status"]["conditions"]]
        assert "UnknownFields" not in types, "its default is no problem"
        harness.apply(talker={"maxNumSeqs": 4, "leadLimitSeconds": 5})
        await harness.settled()
        await harness.wait(lambda: admins.report("demo-talker-0")["base"] == {"max_num_seqs": 4}, "it takes effect")
        await harness.wait(lambda: harness.condition("Progressing")["reason"] == "Complete", "it is confirmed")
        found = harness.condition("UnknownFields")
        assert found["message"].startswith("the image of demo-talker-0 does not know lead_limit_seconds")
        count = len(admins.puts)
        await operator.reconciled(3)
        assert len(admins.puts) == count, "nothing is sent again"
        harness.cluster.delete("pod", "demo-talker-0")
        await harness.settled()


async def test_both_versions_are_served(harness):
    harness.apply()
    async with aiohttp.ClientSession() as session:
        for version in (FORMER, "syrinx.dev/v1beta1"):
            path = f"{harness.cluster.url}/apis/{version}/namespaces/default/ttspipelines"
            async with session.get(path) as answer:
                found = await answer.json()
            assert {found["apiVersion"], *(each["apiVersion"] for each in found["items"])} == {version}
