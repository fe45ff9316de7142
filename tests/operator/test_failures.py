"""An API server in trouble, a watch that says nothing, requests that are refused: all of it passes or is told."""

from __future__ import annotations

import time

import pytest

from support.operator import Desk, OperatorProcess

pytestmark = pytest.mark.trouble
AGENT = "syrinx-operator/"
WRITES = "POST|PUT|PATCH|DELETE"
WRITTEN = ("secrets", "statefulsets", "leases", "events", "/status")


def ours(desk: Desk) -> list:
    """What the operator itself asked, without kopf's watching."""
    return [request for request in desk.cluster.requests if request.agent.startswith(AGENT)]


async def speaks(desk: Desk) -> None:
    # Failures in a row are half a minute apart in the end.
    await desk.settled(seconds=120)
    assert len(desk.objects()) == 20
    assert desk.cluster.rights.denied == []


@pytest.mark.parametrize("code", [401, 409, 422, 429, 500, 503, 504])
async def test_every_kind_of_write_may_be_refused_once(desk, code):
    faults = [desk.cluster.faults.fail(code, WRITES, kind) for kind in WRITTEN]
    async with desk.operator() as operator:
        desk.apply()
        await speaks(desk)
        desk.apply(gateway={"replicas": 2})
        await desk.wait(lambda: desk.cluster.find("poddisruptionbudget", "demo-gateway"), "an edit is carried out")
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("code", [401, 403, 410, 429, 500, 503])
async def test_every_kind_of_read_may_be_refused_once(desk, code):
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
async def test_every_answer_may_be_lost(desk, served):
    """Whether the request took effect or not."""
    faults = [desk.cluster.faults.reset(WRITES, kind, served=served) for kind in WRITTEN]
    async with desk.operator() as operator:
        desk.apply()
        await speaks(desk)
        assert [fault.hit for fault in faults] == [1] * len(faults)
        assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("asked", [("GET", "/services.*limit="), ("PATCH",)], ids=["reading", "writing"])
@pytest.mark.parametrize("code", [429, 503, 504])
async def test_a_moment_of_trouble_is_not_told(desk, code, asked):
    """Trouble in two looks in a row is more than a moment, so there is one fault."""
    async with desk.operator():
        desk.apply(tuning={"mode": "Off"})
        await desk.settled()
        await desk.wait(lambda: desk.condition("Progressing")["status"] == "False", "all is as wanted")
        told = len(desk.events())
        fault = desk.cluster.faults.fail(code, *asked)
        desk.apply(tuning={"mode": "Off"}, gateway={"maxQueue": 7})
        await desk.wait(lambda: fault.hit, "there is trouble")
        await desk.wait(
            lambda: "7" in desk.cluster.get("configmap", "demo-gateway")["data"]["settings.json"], "an edit"
        )
        assert not [event for event in desk.events()[told:] if event["type"] == "Warning"]


async def test_lasting_trouble_with_one_kind_is_told(desk):
    fault = desk.cluster.faults.fail(503, "GET", "/networkpolicies", times=None)
    async with desk.operator():
        desk.apply()
        await desk.wait(lambda: desk.condition("Degraded")["reason"] == "ApiError", "the trouble is told")
        fault.release()
        await speaks(desk)


async def test_a_slow_server_is_waited_for(desk):
    desk.cluster.faults.latency = 0.05
    async with desk.operator():
        desk.apply()
        await speaks(desk)


async def test_a_request_that_hangs_is_given_up(desk):
    hanging = desk.cluster.faults.hang("PATCH", "statefulsets/demo-talker")
    async with desk.operator() as operator:
        desk.apply()
        await speaks(desk)
        hanging.release()
        assert "did not answer PATCH" in operator.log.read_text()


async def test_retry_after_is_honoured(desk):
    desk.cluster.faults.fail(429, "PATCH", "configmaps/demo-codec", retry_after=3)
    async with desk.operator():
        desk.apply()
        await desk.wait(lambda: any("demo-codec" in each.path for each in ours(desk)), "it is told to wait")
        refused = time.monotonic()
        await desk.wait(lambda: desk.cluster.find("configmap", "demo-codec"), "it tries again")
        assert time.monotonic() - refused >= 2.9
        await speaks(desk)


async def test_a_server_that_is_down_is_asked_less_and_less(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        desk.apply()
        await desk.settled()
        desk.cluster.faults.stop_after_writes(0)
        before = len(ours(desk))
        await operator.until(lambda: "cannot be reached" in operator.output, "it notices")
        started = time.monotonic()
        await desk.wait(lambda: time.monotonic() - started > 4, "some seconds pass")
        # At 0.5, 1, 2, ... seconds, for a look and a Lease each; without backing off it would be dozens.
        assert len(ours(desk)) - before <= 15
        assert operator.get("/healthz").status_code == 200
        desk.cluster.faults.resume()
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: desk.cluster.find("pod", "demo-talker-1"), "it goes on")


async def test_what_is_refused_for_good_is_told_and_the_rest_is_done(desk):
    words = "admission webhook denied the request: no gateways on Fridays"
    fault = desk.cluster.faults.fail(422, "PATCH", "deployments/demo-gateway", times=None, message=words)
    async with desk.operator():
        desk.apply()

        def told() -> bool:
            condition = desk.condition("Degraded")
            return condition["status"] == "True" and words in condition["message"]

        await desk.wait(told, "the server's words are told")
        assert desk.condition("Degraded")["reason"] == "ApplyFailed"
        assert "Deployment demo-gateway" in desk.condition("Degraded")["message"]
        assert len(desk.objects()) == 19
        assert any(words in event["message"] for event in desk.events() if event["type"] == "Warning")
        fault.release()
        await speaks(desk)


async def test_a_missing_right_is_told_and_may_come_later(desk):
    rights = desk.cluster.rights
    rules, rights.rules = rights.rules, [rule for rule in rights.rules if "statefulsets" not in rule[1]["resources"]]
    async with desk.operator():
        desk.apply()
        words = 'cannot list resource "statefulsets"'
        await desk.wait(lambda: words in desk.condition("Degraded")["message"], "the missing right is told")
        assert desk.condition("Ready")["status"] == "False"
        rights.rules = rules
        await desk.settled()
        await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_a_right_that_is_taken_away_is_told_in_the_status(desk):
    rules = desk.cluster.rights.rules
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        patching = [rule for _, rule in rules if "deployments" in rule["resources"]]
        kept = {rule["resources"][0]: list(rule["verbs"]) for rule in patching}
        for rule in patching:
            rule["verbs"] = ["get", "list", "watch"]
        desk.apply(gateway={"replicas": 2})

        def told() -> bool:
            return "cannot patch resource" in desk.condition("Degraded")["message"]

        await desk.wait(told, "the missing right is told")
        assert operator.get("/healthz").status_code == 200
        for rule in patching:
            rule["verbs"] = kept[rule["resources"][0]]
        await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_watches_that_are_lost_are_taken_up_again(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        for replicas in (2, 1, 2):
            desk.cluster.watches.drop()
            desk.apply(talker={"replicas": replicas})
            await desk.wait(lambda: len(desk.talkers()) == replicas, f"{replicas} talkers")  # noqa: B023


async def test_a_history_that_has_expired_is_read_anew(desk):
    """410 Gone: what happened in between is found by listing."""
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        desk.cluster.faults.fail(503, "GET", "watch=true", times=None)
        desk.cluster.watches.drop()
        desk.apply("second")
        desk.cluster.store.compact()
        desk.cluster.faults.clear()
        await desk.settled("second")


async def test_watches_that_stay_open_and_say_nothing_do_not_stop_it(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
        desk.cluster.watches.silent = True
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "the edit is seen at the next look")
        desk.cluster.delete("configmap", "demo-codec")
        await desk.wait(lambda: desk.cluster.find("configmap", "demo-codec"), "what is lost comes back")


async def test_a_token_that_expires_is_replaced(desk):
    """As with a rotated one: the first answer is 401, the credentials are read again."""
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        desk.cluster.faults.fail(401, path="namespaces/default", times=4)
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "it goes on")
        assert isinstance(operator, OperatorProcess) and operator.running.returncode is None
