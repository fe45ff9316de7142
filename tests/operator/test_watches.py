"""Watches: the operator outlives everything that the API server does, and serves all namespaces that it can read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
import yaml

from support.operator import CRD, Harness, RunningOperator, lives

pytestmark = pytest.mark.virtual
SHORT = {"SYRINX_MAX_BACKOFF_SECONDS": "1", "SYRINX_LEASE_SECONDS": "4"}
DEMO = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "demo"}}


def repeated(harness: Harness, since: int) -> list[tuple[str, str, str]]:
    """Returns the operators' writes that have been sent more than once, without those of Leases."""
    sent = Counter(
        (each.method, each.path, json.dumps(each.body, sort_keys=True))
        for each in harness.cluster.writes[since:]
        if each.agent.startswith("syrinx-operator/") and "/leases" not in each.path
    )
    return [write for write, count in sent.items() if count > 1]


def away(harness: Harness) -> Callable[[], None]:
    harness.cluster.faults.stop_after_writes(0)
    return harness.cluster.faults.resume


def hanging(harness: Harness) -> Callable[[], None]:
    return harness.cluster.faults.hang(times=None).release


def failing(code: int) -> Callable[[Harness], Callable[[], None]]:
    return lambda harness: harness.cluster.faults.fail(code, times=None).release


def slow(harness: Harness) -> Callable[[], None]:
    harness.cluster.faults.latency = 2.0
    return harness.cluster.faults.clear


OUTAGES = {"away": (away, 8), "hanging": (hanging, 17), "slow": (slow, 10)}
OUTAGES |= {str(code): (failing(code), 8) for code in (401, 410, 500)}


@pytest.mark.parametrize("outage", OUTAGES)
async def test_it_outlives_an_api_server_that_does_not_answer(harness, outage):
    """The outages are many times as long as the longest backoff."""
    begin, seconds = OUTAGES[outage]
    async with harness.operator(**SHORT) as operator:
        harness.apply()
        await harness.settled()
        await harness.quiet(operator)
        since = len(harness.cluster.writes)
        end = begin(harness)
        harness.cluster.watches.drop()
        harness.apply(talker={"replicas": 2})
        harness.cluster.delete("configmap", "demo-codec")
        await lives(operator, seconds)
        end()
        await harness.wait(lambda: len(harness.talkers()) == 2, "an edit during the outage is carried out")
        await harness.wait(lambda: harness.cluster.find("configmap", "demo-codec"), "what was deleted comes back")
        await harness.settled()
        await operator.until(lambda: operator.get("/readyz").text == "ready\n", "everything is watched again")
        # Until the watch is back, the operator does not see its own report of a refusal, and may write it again.
        assert [write for write in repeated(harness, since) if "on purpose" not in write[2]] == []


async def test_it_starts_before_the_api_server(harness):
    harness.cluster.faults.stop_after_writes(0)
    async with harness.operator(**SHORT) as operator:
        await operator.until(lambda: "unreachable" in operator.get("/readyz").text, "it says what it waits for")
        await lives(operator, 5)
        assert operator.get("/readyz").status_code == 503
        harness.cluster.faults.resume()
        await operator.ready()
        harness.apply()
        await harness.settled()


class Two:
    """Two namespaces with a pipeline each."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        cluster = harness.cluster
        self.rules = [rule for _, rule in cluster.rights.rules]
        self.grant("one", "two")
        for name in ("one", "two"):
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            self.edit(name)

    def grant(self, *namespaces: str) -> None:
        """Grants the operator its rights in namespaces, and that to its Lease in its own."""
        own = [("default", rule) for rule in self.rules if "leases" in rule["resources"]]
        self.harness.cluster.rights.rules = [*own, *((name, rule) for name in namespaces for rule in self.rules)]

    def edit(self, namespace: str, **spec: object) -> None:
        self.harness.cluster.apply({**DEMO, "spec": spec}, namespace=namespace)

    async def carried_out(self, namespace: str, replicas: int) -> None:
        def holds() -> bool:
            talkers = self.harness.cluster.list("pod", "syrinx.dev/component=talker", namespace)
            conditions = self.harness.cluster.get("ttspipeline", "demo", namespace)["status"]["conditions"]
            ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
            return ready and len(talkers) == replicas

        await self.harness.wait(holds, f"{replicas} talkers in {namespace}")

    async def is_named(self, operator: RunningOperator, namespace: str, reason: str) -> None:
        """Waits until readiness, metrics and log name a namespace that is not watched."""

        def holds() -> bool:
            ready = operator.get("/readyz")
            assert ready.status_code == 200, ready.text
            assert "one/" not in ready.text
            sample = f'syrinx_operator_watch_up{{kind="StatefulSet",pipeline_namespace="{namespace}"}} 0.0'
            named = [line for line in ready.text.splitlines() if line.startswith(f"{namespace}/statefulsets: ")]
            return bool(named) and reason in named[0] and sample in operator.get("/metrics").text

        await operator.until(holds, f"{namespace} is named")
        assert f"{namespace}/statefulsets: cannot watch: " in operator.log
        sample = 'syrinx_operator_watch_up{kind="StatefulSet",pipeline_namespace="one"} 1.0'
        assert sample in operator.metrics()


@pytest.fixture
def two(harness) -> Two:
    return Two(harness)


@pytest.mark.parametrize("code", [403, 404, 410])
async def test_a_namespace_that_cannot_be_read_degrades_only_itself(two, code):
    cluster = two.harness.cluster
    async with two.harness.operator(scope=("-n", "one", "-n", "two"), **SHORT) as operator:
        for name in ("one", "two"):
            await two.carried_out(name, 1)
        fault = cluster.faults.fail(code, "GET", "/namespaces/two/", times=None)
        cluster.watches.drop()
        if code != 410:  # An expired version is none of the namespace's faults; only a LIST that fails is.
            await two.is_named(operator, "two", "on purpose" if code != 404 else "does not serve")
        two.edit("one", talker={"replicas": 2})
        two.edit("two", talker={"replicas": 2})
        await two.carried_out("one", 2)
        await lives(operator, 5)
        assert len(cluster.list("pod", "syrinx.dev/component=talker", "two")) == 1
        fault.release()
        await two.carried_out("two", 2)
        await operator.until(lambda: operator.get("/readyz").text == "ready\n", "it heals")


async def test_a_namespace_without_rights_is_served_once_they_are_granted(two):
    """As after an upgrade of the cluster, while its rules are not loaded yet."""
    two.grant("one")
    async with two.harness.operator(scope=("-n", "one", "-n", "two"), **SHORT) as operator:
        await two.carried_out("one", 1)
        await two.is_named(operator, "two", "is forbidden")
        await lives(operator, 4)
        assert two.harness.cluster.list("statefulset", namespace="two") == []
        two.grant("one", "two")
        await two.carried_out("two", 1)
        await operator.until(lambda: operator.get("/readyz").text == "ready\n", "it heals")


async def test_a_deleted_crd_can_be_created_again(harness):
    crd = yaml.safe_load(CRD.read_text())
    async with harness.operator(**SHORT) as operator:
        harness.apply()
        await harness.settled()
        harness.cluster.delete("customresourcedefinition", crd["metadata"]["name"])
        harness.cluster.watches.drop()
        await operator.until(lambda: "install the CRD" in operator.get("/readyz").text, "it says what is missing")
        assert operator.get("/readyz").status_code == 503
        await lives(operator, 4)
        harness.cluster.apply(crd)
        harness.apply(talker={"replicas": 2})
        await harness.settled()
        await harness.wait(lambda: len(harness.talkers()) == 2, "the new pipeline is carried out")


async def test_many_pipelines_at_once_on_a_slow_server_keep_their_lease(harness):
    harness.cluster.faults.latency = 0.1
    names = [f"demo-{index}" for index in range(12)]
    async with harness.operator(SYRINX_LEASE_SECONDS="5", SYRINX_RESYNC_SECONDS="15") as operator:
        for name in names:
            harness.apply(name, tuning={"mode": "Off"})
        for name in names:
            await harness.settled(name, seconds=120)
        assert "not renewed in time" not in operator.log
        leases = [each for each in harness.cluster.requests if "/leases/syrinx-operator" in each.path]
        renewals = [each for each in leases if each.method == "PUT"]
        assert len(leases) - len(renewals) <= 1, "it is read once"
