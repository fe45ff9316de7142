"""The operator with a CRD of a newer version."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.rbac import rights

pytestmark = pytest.mark.virtual


def add_fields(spec: dict[str, Any], status: dict[str, Any]) -> None:
    """Adds defaulted fields, an enum value and a field of the status."""
    talker = spec["properties"]["talker"]["properties"]
    talker["pitch"] = {"type": "integer", "default": 3}
    talker["sampling"] = {"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "A"}}}
    spec["properties"]["updateStrategy"]["enum"].append("Canary")
    status["properties"]["canary"] = {"type": "object", "properties": {"weight": {"type": "integer"}}}


async def test_fields_of_a_newer_crd_are_ignored_and_named_once(tmp_path):
    crd: dict[str, Any] = yaml.safe_load(CRD.read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    add_fields(root["spec"], root["status"])
    async with KubeCluster(crd=crd, rights=rights()) as cluster:
        harness = Harness(cluster, tmp_path)
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
