"""Failures of the API server: errors, lost responses, silent watches and missing rights."""

from __future__ import annotations

import time

import pytest

from support.operator import Desk, OperatorProcess

pytestmark = pytest.mark.faults
AGENT = "syrinx-operator/"
WRITES = "POST|PUT|PATCH|DELETE"
WRITTEN = ("secrets", "statefulsets", "leases", "events", "/status")


def ours(desk: Desk) -> list:
    """Returns the operator's own requests, without kopf's watches."""
    return [request for request in desk.cluster.requests if request.agent.startswith(AGENT)]


async def becomes_ready(desk: Desk) -> None:
    # Failures in a row are half a minute apart in the end.
    await desk.settled(seconds=120)
    assert len(desk.objects()) == 20
    assert desk.cluster.rights.denied == []


@pytest.mark.parametrize("code", [401, 409, 422, 429, 500, 503, 504])
async def test_every_kind_of_write_is_retried(desk, code):
    faults = [desk.cluster.faults.fail(code, WRITES, kind) for kind in WRITTEN]
    async with desk.operator() as operator:
        desk.apply()
        await becomes_ready(desk)
        desk.apply(gateway={"replicas": 2})
        await desk.wait(lambda: desk.cluster.find("poddisruptionbudget", "demo-gateway"), "an edit is carried out")
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("code", [401, 403, 410, 429, 500, 503])
async def test_every_kind_of_read_is_retried(desk, code):
    kinds = ("ttspipelines/demo", "secrets", "configmaps", "statefulsets", "pods", "leases", "horizontalpodautoscalers")
    # Of our own, which come in pages or by name; kopf has its own tests.
    faults = [desk.cluster.faults.fail(code, "GET", f"/{kind}($|/demo|.*limit=)") for kind in kinds]
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert len(desk.objects()) == 20
        assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("served", [True, False])
async def test_lost_responses_are_tolerated(desk, served):
    """The request may or may not have taken effect."""
    faults = [desk.cluster.faults.reset(WRITES, kind, served=served) for kind in WRITTEN]
    async with desk.operator() as operator:
        desk.apply()
        await becomes_ready(desk)
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("asked", [("GET", "/services.*limit="), ("PATCH",)], ids=["reading", "writing"])
@pytest.mark.parametrize("code", [429, 503, 504])
async def test_a_transient_failure_is_not_reported(desk, code, asked):
    """A failure in two reconciles in a row is reported, so there is one fault."""
    async with desk.operator():
        desk.apply(tuning={"mode": "Off"})
        await desk.settled()
        await desk.wait(lambda: desk.condition("Progressing")["status"] == "False", "the pipeline is up to date")
        count = len(desk.events())
        fault = desk.cluster.faults.fail(code, *asked)
        desk.apply(tuning={"mode": "Off"}, gateway={"maxQueue": 7})
        await desk.wait(lambda: fault.hit, "the request fails")
        await desk.wait(
            lambda: "7" in desk.cluster.get("configmap", "demo-gateway")["data"]["settings.json"], "an edit"
        )
        assert not [event for event in desk.events()[count:] if event["type"] == "Warning"]


async def test_a_lasting_failure_for_one_kind_is_reported(desk):
    fault = desk.cluster.faults.fail(503, "GET", "/networkpolicies", times=None)
    async with desk.operator():
        desk.apply()
        await desk.wait(lambda: desk.condition("Degraded")["reason"] == "ApiError", "the failure is reported")
        fault.release()
        await becomes_ready(desk)


async def test_a_slow_server_is_tolerated(desk):
    desk.cluster.faults.latency = 0.05
    async with desk.operator():
        desk.apply()
        await becomes_ready(desk)


async def test_a_hanging_request_times_out(desk):
    hanging = desk.cluster.faults.hang("PATCH", "statefulsets/demo-talker")
    async with desk.operator() as operator:
        desk.apply()
        await becomes_ready(desk)
        hanging.release()
        assert "did not answer PATCH" in operator.log.read_text()


async def test_retry_after_is_respected(desk):
    desk.cluster.faults.fail(429, "PATCH", "configmaps/demo-codec", retry_after=3)
    async with desk.operator():
        desk.apply()
        await desk.wait(lambda: any("demo-codec" in each.path for each in ours(desk)), "Retry-After is received")
        refused = time.monotonic()
        await desk.wait(lambda: desk.cluster.find("configmap", "demo-codec"), "it tries again")
        assert time.monotonic() - refused >= 2.9
        await becomes_ready(desk)


async def test_requests_to_an_unavailable_server_back_off(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        desk.apply()
        await desk.settled()
        desk.cluster.faults.stop_after_writes(0)
        before = len(ours(desk))
        await operator.until(lambda: "is unreachable" in operator.output, "it reports the outage")
        started = time.monotonic()
        await desk.wait(lambda: time.monotonic() - started > 4, "some seconds pass")
        # At 0.5, 1, 2, ... seconds, for a reconcile and a Lease each; without backing off it would be dozens.
        assert len(ours(desk)) - before <= 15
        assert operator.get("/healthz").status_code == 200
        desk.cluster.faults.resume()
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: desk.cluster.find("pod", "demo-talker-1"), "it continues")


async def test_a_rejected_object_is_reported_and_the_others_are_applied(desk):
    words = "admission webhook denied the request: no gateways on Fridays"
    fault = desk.cluster.faults.fail(422, "PATCH", "deployments/demo-gateway", times=None, message=words)
    async with desk.operator():
        desk.apply()

        def reported() -> bool:
            condition = desk.condition("Degraded")
            return condition["status"] == "True" and words in condition["message"]

        await desk.wait(reported, "the rejection is reported")
        assert desk.condition("Degraded")["reason"] == "ApplyFailed"
        assert "Deployment demo-gateway" in desk.condition("Degraded")["message"]
        assert len(desk.objects()) == 19
        assert any(words in event["message"] for event in desk.events() if event["type"] == "Warning")
        fault.release()
        await becomes_ready(desk)


async def test_a_missing_right_is_reported_until_it_is_granted(desk):
    rights = desk.cluster.rights
    rules, rights.rules = rights.rules, [rule for rule in rights.rules if "statefulsets" not in rule[1]["resources"]]
    async with desk.operator():
        desk.apply()
        words = 'cannot list resource "statefulsets"'
        await desk.wait(lambda: words in desk.condition("Degraded")["message"], "the missing right is reported")
        assert desk.condition("Ready")["status"] == "False"
        rights.rules = rules
        await desk.settled()
        await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_a_revoked_right_is_reported_in_the_status(desk):
    rules = desk.cluster.rights.rules
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        patching = [rule for _, rule in rules if "deployments" in rule["resources"]]
        kept = {rule["resources"][0]: list(rule["verbs"]) for rule in patching}
        for rule in patching:
            rule["verbs"] = ["get", "list", "watch"]
        desk.apply(gateway={"replicas": 2})

        def reported() -> bool:
            return "cannot patch resource" in desk.condition("Degraded")["message"]

        await desk.wait(reported, "the missing right is reported")
        assert operator.get("/healthz").status_code == 200
        for rule in patching:
            rule["verbs"] = kept[rule["resources"][0]]
        await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_dropped_watches_are_resumed(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        for replicas in (2, 1, 2):
            desk.cluster.watches.drop()
            desk.apply(talker={"replicas": replicas})
            await desk.wait(lambda: len(desk.talkers()) == replicas, f"{replicas} talkers")  # noqa: B023


async def test_an_expired_watch_is_followed_by_a_list(desk):
    """410 Gone: changes in between are found by listing."""
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        desk.cluster.faults.fail(503, "GET", "watch=true", times=None)
        desk.cluster.watches.drop()
        desk.apply("second")
        desk.cluster.store.compact()
        desk.cluster.faults.clear()
        await desk.settled("second")


async def test_silent_watches_do_not_stop_reconciles(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
        desk.cluster.watches.silent = True
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "the edit is seen at the next reconcile")
        desk.cluster.delete("configmap", "demo-codec")
        await desk.wait(lambda: desk.cluster.find("configmap", "demo-codec"), "what is lost comes back")


async def test_an_expired_token_is_renewed(desk):
    """After a rotation the first response is 401; the credentials are read again."""
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        desk.cluster.faults.fail(401, path="namespaces/default", times=4)
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "it continues")
        assert isinstance(operator, OperatorProcess) and operator.running.returncode is None
