"""Failures of the API server: errors, lost responses, silent watches and missing rights."""

from __future__ import annotations

import pytest

from support.operator import Harness

pytestmark = pytest.mark.virtual
WRITES = "POST|PUT|PATCH|DELETE"
WRITTEN = ("secrets", "statefulsets", "leases", "events", "/status")


async def becomes_ready(harness: Harness) -> None:
    # Failures in a row are half a minute apart in the end.
    await harness.settled(seconds=120)
    assert len(harness.objects()) == 21
    assert harness.cluster.rights.denied == []


@pytest.mark.parametrize("code", [401, 409, 422, 503])
async def test_every_kind_of_write_is_retried(harness, code):
    faults = [harness.cluster.faults.fail(code, WRITES, kind) for kind in WRITTEN]
    async with harness.operator() as operator:
        harness.apply()
        await becomes_ready(harness)
        harness.apply(gateway={"replicas": 2})
        await harness.wait(
            lambda: harness.cluster.find("poddisruptionbudget", "demo-gateway"), "an edit is carried out"
        )
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log


@pytest.mark.parametrize("code", [401, 403, 410, 503])
async def test_every_kind_of_read_is_retried(harness, code):
    kinds = ("ttspipelines", "secrets", "configmaps", "statefulsets", "pods", "leases", "horizontalpodautoscalers")
    # LISTs, and what is read by name.
    faults = [harness.cluster.faults.fail(code, "GET", f"/{kind}($|/demo|/ttspipelines|.*limit=)") for kind in kinds]
    async with harness.operator() as operator:
        harness.apply()
        await harness.settled()
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert len(harness.objects()) == 21
        assert "Traceback" not in operator.log


@pytest.mark.parametrize("served", [True, False])
async def test_lost_responses_are_tolerated(harness, served):
    """The request may or may not have taken effect."""
    faults = [harness.cluster.faults.reset(WRITES, kind, served=served) for kind in WRITTEN]
    async with harness.operator() as operator:
        harness.apply()
        await becomes_ready(harness)
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log


async def test_a_hanging_request_times_out(harness):
    hanging = harness.cluster.faults.hang("PATCH", "statefulsets/demo-talker")
    async with harness.operator() as operator:
        harness.apply()
        await becomes_ready(harness)
        hanging.release()
        assert "did not answer PATCH" in operator.log


async def test_a_missing_right_is_reported_until_it_is_granted(harness):
    rights = harness.cluster.rights
    rules, rights.rules = rights.rules, [rule for rule in rights.rules if "statefulsets" not in rule[1]["resources"]]
    async with harness.operator():
        harness.apply()
        message = 'cannot list resource "statefulsets"'
        await harness.wait(lambda: message in harness.condition("Degraded")["message"], "the missing right is reported")
        assert harness.condition("Ready")["status"] == "False"
        rights.rules = rules
        await harness.settled()
        await harness.wait(lambda: harness.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_silent_watches_do_not_stop_reconciles(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
        harness.cluster.watches.silent = True
        harness.apply(talker={"replicas": 2})
        await harness.wait(lambda: len(harness.talkers()) == 2, "the edit is seen at the next reconcile")
        harness.cluster.delete("configmap", "demo-codec")
        await harness.wait(lambda: harness.cluster.find("configmap", "demo-codec"), "what is lost comes back")
