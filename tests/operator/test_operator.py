"""A pipeline's lifecycle: creation, edits, drift, conflicts and deletion."""

from __future__ import annotations

import json

import pytest

from support.operator import Harness

pytestmark = pytest.mark.virtual

DEMO = {
    "configmap/demo-codec",
    "configmap/demo-gateway",
    "configmap/demo-release",
    "configmap/demo-talker",
    "configmap/demo-tuning",
    "deployment/demo-gateway",
    "networkpolicy/demo-codec",
    "networkpolicy/demo-gateway",
    "networkpolicy/demo-redis",
    "networkpolicy/demo-talker",
    "secret/demo-redis",
    "secret/demo-stages",
    "service/demo-codec",
    "service/demo-gateway",
    "service/demo-redis",
    "service/demo-talker",
    "serviceaccount/demo-redis",
    "serviceaccount/demo-stages",
    "statefulset/demo-codec",
    "statefulset/demo-redis",
    "statefulset/demo-talker",
}
DEMO_RESOURCE = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "demo"}}


def generation(harness: Harness, stage: str) -> int | None:
    return harness.cluster.get("ttspipeline", "demo")["status"][stage].get("confirmedGeneration")


async def test_a_new_pipeline_becomes_ready(harness):
    async with harness.operator() as operator:
        harness.apply()
        await harness.settled()
        metrics = operator.metrics()
    assert set(harness.objects()) == DEMO
    assert harness.cluster.rights.denied == []
    asked = {(each.verb, each.name) for each in harness.cluster.rights.asked if each.resource == "secrets"}
    assert {verb for verb, _ in asked} == {"get", "create"}
    assert {name for verb, name in asked if verb == "get"} == {"demo-redis", "demo-stages"}
    for sample in (
        'syrinx_operator_reconciles_total{outcome="succeeded"}',
        'syrinx_operator_api_requests_total{code="200",verb="GET"}',
        'syrinx_operator_object_writes_total{kind="StatefulSet",result="applied"} 3.0',
        'syrinx_operator_pipelines{condition="Ready",status="True"} 1.0',
        "syrinx_operator_reconcile_seconds_count",
        "syrinx_operator_oldest_reconcile_age_seconds",
    ):
        assert sample in metrics


async def test_a_pipeline_that_no_operator_watches_says_so(harness):
    harness.apply()
    unseen = harness.condition("Ready")
    assert (unseen["status"], unseen["reason"]) == ("Unknown", "Pending")
    assert "does it watch this namespace?" in unseen["message"]
    async with harness.operator():
        await harness.settled()
    assert "Ready" in harness.reasons() and "NotReady" not in harness.reasons()


async def test_a_pipeline_that_cannot_be_planned_is_no_longer_called_unseen(harness):
    harness.apply(paused=True)
    async with harness.operator():
        await harness.wait(lambda: harness.condition("Degraded")["reason"] == "Paused", "it is seen")
    assert harness.condition("Ready")["status"] == "False"


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_deleting_a_pipeline_removes_all_objects(harness, policy):
    """With foreground deletion it exists until all of its dependents are gone, and gets no new ones."""
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        harness.apply()
        await harness.settled()
        harness.cluster.delete("ttspipeline", "demo", propagationPolicy=policy)
        await harness.wait(lambda: not harness.objects() and not harness.cluster.list("pod"), "all objects are deleted")
        age = "oldest_reconcile_age_seconds 0.0"
        await operator.until(lambda: age in operator.get("/metrics").text, "the pipeline is forgotten")
        assert harness.objects() == {}


async def test_a_recreated_pipeline_gets_its_own_objects(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
        old = harness.uids()
        harness.cluster.delete("ttspipeline", "demo")
        uid = harness.apply()["metadata"]["uid"]

        def all_new() -> bool:
            owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in harness.live()}
            return owners == {uid} and not set(old.values()) & set(harness.uids().values())

        await harness.wait(all_new, "every object belongs to the new pipeline")
        await harness.settled()
    assert set(harness.objects()) == DEMO


async def test_live_settings_reach_every_replica_without_a_restart(harness):
    async with harness.operator():
        harness.apply(talker={"replicas": 2}, codec={"replicas": 2})
        await harness.settled()
        await harness.wait(lambda: generation(harness, "codec") == 1, "the first settings are confirmed")
        pods = harness.uids()
        harness.apply(talker={"replicas": 2}, codec={"replicas": 2, "maxNumSeqs": 5})
        await harness.wait(lambda: generation(harness, "codec") == 2, "the codecs confirm")
        status = harness.cluster.get("ttspipeline", "demo")["status"]
        assert status["codec"]["settings"]["maxNumSeqs"] == 5
        assert {each["replica"]: each["generation"] for each in status["codec"]["confirmed"]} == {
            "demo-codec-0": 2,
            "demo-codec-1": 2,
        }
        assert generation(harness, "talker") == 1
        body = json.loads(harness.cluster.get("configmap", "demo-codec")["data"]["settings.json"])
        assert (body["generation"], body["settings"]["max_num_seqs"]) == (2, 5)
        assert harness.uids() == pods


async def test_settings_can_be_sent_through_the_api_servers_pod_proxy(harness):
    async with harness.operator(SYRINX_STAGE_ACCESS="proxy"):
        harness.apply()
        await harness.wait(lambda: generation(harness, "codec") == 1, "the first settings are confirmed")
        harness.apply(codec={"maxNumSeqs": 5})
        await harness.wait(lambda: generation(harness, "codec") == 2, "the codecs confirm")
    assert harness.cluster.rights.denied == []


async def test_an_edit_rolls_out_and_removes_unplanned_objects(harness):
    async with harness.operator():
        harness.apply(talker={"replicas": 2, "env": [{"name": "A", "value": "1"}]})
        await harness.settled()
        assert set(harness.objects()) == DEMO | {"poddisruptionbudget/demo-talker"}
        pods = harness.uids()
        harness.apply(talker={"replicas": 1, "env": [{"name": "A", "value": "2"}]})
        await harness.wait(lambda: harness.uids().keys() == pods.keys() - {"demo-talker-1"}, "one talker is left")
        await harness.wait(lambda: set(harness.objects()) == DEMO, "its disruption budget is deleted")
        await harness.wait(lambda: harness.uids()["demo-talker-0"] != pods["demo-talker-0"], "the talker is recreated")
        assert harness.uids()["demo-codec-0"] == pods["demo-codec-0"]


async def test_deleted_objects_are_recreated(harness):
    async with harness.operator(SYRINX_RESYNC_SECONDS="60"):
        harness.apply()
        await harness.settled()
        for kind in sorted({each.partition("/")[0] for each in DEMO} - {"secret"}):
            for each in harness.cluster.list(kind):
                harness.cluster.delete(kind, each["metadata"]["name"])
            await harness.wait(lambda: set(harness.objects()) == DEMO, f"every {kind} is back")
            await harness.settled()


async def test_drift_is_reverted(harness):
    async with harness.operator(SYRINX_RESYNC_SECONDS="60"):
        harness.apply()
        await harness.settled()
        harness.cluster.patch("service", "demo-gateway", {"spec": {"selector": {"extra": "x"}}})
        harness.cluster.patch("networkpolicy", "demo-redis", {"spec": {"ingress": [{}]}})
        harness.cluster.patch("deployment", "demo-gateway", {"spec": {"replicas": 3}})
        harness.cluster.patch("configmap", "demo-codec", {"data": {"settings.json": "{}"}})

        def repaired() -> bool:
            return (
                "extra" not in harness.cluster.get("service", "demo-gateway")["spec"]["selector"]
                and {} not in harness.cluster.get("networkpolicy", "demo-redis")["spec"]["ingress"]
                and harness.cluster.get("deployment", "demo-gateway")["spec"]["replicas"] == 1
                and "max_num_seqs" in harness.cluster.get("configmap", "demo-codec")["data"]["settings.json"]
            )

        await harness.wait(repaired, "all is as before")


async def test_an_operator_for_all_namespaces(harness, cluster):
    cluster.rights.rules = [(None, rule) for _, rule in cluster.rights.rules]
    for name in ("one", "two"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        cluster.apply(DEMO_RESOURCE, namespace=name)
    async with harness.operator(scope=("-A",), SYRINX_RESYNC_SECONDS="60"):

        def is_ready(namespace: str) -> bool:
            conditions = cluster.get("ttspipeline", "demo", namespace)["status"]["conditions"]
            return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

        await harness.wait(lambda: is_ready("one") and is_ready("two"), "both are ready")
        cluster.delete("configmap", "demo-codec", "two")
        await harness.wait(lambda: cluster.find("configmap", "demo-codec", "two"), "what is deleted comes back")
    assert cluster.rights.denied == []
