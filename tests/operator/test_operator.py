"""A pipeline's lifecycle: creation, edits, drift, conflicts and deletion."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml

from support.kube import KubeCluster
from support.operator import CRD, Desk, rights

pytestmark = pytest.mark.faults

DEMO = {
    "configmap/demo-codec",
    "configmap/demo-gateway",
    "configmap/demo-release",
    "configmap/demo-talker",
    "deployment/demo-gateway",
    "lease/demo-operator",
    "networkpolicy/demo-codec",
    "networkpolicy/demo-gateway",
    "networkpolicy/demo-redis",
    "networkpolicy/demo-talker",
    "secret/demo-redis",
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
DEMO_RESOURCE = {"apiVersion": "syrinx.dev/v1alpha1", "kind": "TTSPipeline", "metadata": {"name": "demo"}}


def uids(desk: Desk) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in desk.cluster.list("pod")}


def generation(desk: Desk, stage: str) -> int | None:
    return desk.cluster.get("ttspipeline", "demo")["status"][stage].get("confirmedGeneration")


async def test_a_new_pipeline_becomes_ready(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
    assert set(desk.objects()) == DEMO
    assert desk.cluster.rights.denied == []


async def test_nothing_is_written_when_nothing_changes(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        desk.apply()
        await desk.settled()
        await desk.quiet(operator)
        before = desk.writes()
        reconciles = desk.reconciles()
        await desk.wait(lambda: desk.reconciles() >= reconciles + 5, "five more reconciles")
        assert desk.writes()[len(before) :] == []


async def test_secrets_are_created_and_never_read(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
    asked = [request for request in desk.cluster.requests if "/secrets" in request.path]
    assert {request.method for request in asked} == {"GET", "POST"}
    assert all(request.path.endswith("/secrets/demo-redis") for request in asked if request.method == "GET")
    assert {each.verb for each in desk.cluster.rights.asked if each.resource == "secrets"} == {"get", "create"}


async def test_deleting_a_pipeline_removes_all_objects(desk):
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        desk.cluster.delete("ttspipeline", "demo")
        await desk.wait(lambda: not desk.objects() and not desk.cluster.list("pod"), "all objects are deleted")
        age = "oldest_reconcile_age_seconds 0.0"
        await operator.until(lambda: age in operator.get("/metrics").text, "the pipeline is forgotten")
        assert desk.objects() == {}


async def test_a_terminating_pipeline_gets_no_new_objects(desk):
    """With foreground deletion it exists until all of its dependents are gone."""
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2"):
        desk.apply()
        await desk.settled()
        desk.cluster.delete("ttspipeline", "demo", propagationPolicy="Foreground")
        await desk.wait(lambda: not desk.objects() and not desk.cluster.list("ttspipeline"), "all objects are deleted")


async def test_a_recreated_pipeline_gets_its_own_objects(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
        old = uids(desk)
        desk.cluster.delete("ttspipeline", "demo")
        uid = desk.apply()["metadata"]["uid"]

        def all_new() -> bool:
            owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in desk.live()}
            return owners == {uid} and not set(old.values()) & set(uids(desk).values())

        await desk.wait(all_new, "every object belongs to the new pipeline")
        await desk.settled()
    assert set(desk.objects()) == DEMO


async def test_live_settings_reach_every_replica_without_a_restart(desk):
    async with desk.operator():
        desk.apply(talker={"replicas": 2}, codec={"replicas": 2})
        await desk.settled()
        await desk.wait(lambda: generation(desk, "codec") == 1, "the first settings are confirmed")
        pods = uids(desk)
        desk.apply(talker={"replicas": 2}, codec={"replicas": 2, "maxNumSeqs": 5})
        await desk.wait(lambda: generation(desk, "codec") == 2, "the codecs confirm")
        status = desk.cluster.get("ttspipeline", "demo")["status"]
        assert status["codec"]["settings"]["maxNumSeqs"] == 5
        assert {each["replica"]: each["generation"] for each in status["codec"]["confirmed"]} == {
            "demo-codec-0": 2,
            "demo-codec-1": 2,
        }
        assert generation(desk, "talker") == 1
        body = json.loads(desk.cluster.get("configmap", "demo-codec")["data"]["settings.json"])
        assert (body["generation"], body["settings"]["max_num_seqs"]) == (2, 5)
        assert uids(desk) == pods


async def test_settings_can_be_sent_through_the_api_servers_pod_proxy(desk):
    async with desk.operator(SYRINX_STAGE_ACCESS="proxy"):
        desk.apply()
        await desk.wait(lambda: generation(desk, "codec") == 1, "the first settings are confirmed")
        desk.apply(codec={"maxNumSeqs": 5})
        await desk.wait(lambda: generation(desk, "codec") == 2, "the codecs confirm")
    assert desk.cluster.rights.denied == []


async def test_a_replica_that_rejects_settings_delays_only_its_own_confirmation(desk):
    desk.cluster.kubelet.admins.deaf.add("demo-codec-1")
    async with desk.operator() as operator:
        desk.apply(codec={"replicas": 2})
        await desk.wait(lambda: generation(desk, "codec") == 1, "the first settings are confirmed")
        desk.apply(codec={"replicas": 2, "maxNumSeqs": 5})

        def confirmed() -> dict[str, int]:
            report = desk.cluster.get("ttspipeline", "demo")["status"]["codec"]
            return {each["replica"]: each["generation"] for each in report["confirmed"]}

        await desk.wait(lambda: confirmed() == {"demo-codec-0": 2, "demo-codec-1": 1}, "one confirms")
        assert generation(desk, "codec") == 1
        assert 'pushes_total{result="failed"}' in await operator.metrics()
        desk.cluster.kubelet.admins.deaf.clear()
        await desk.wait(lambda: generation(desk, "codec") == 2, "both confirm")


async def test_an_edit_rolls_out_and_removes_unplanned_objects(desk):
    async with desk.operator():
        desk.apply(talker={"replicas": 2, "env": [{"name": "A", "value": "1"}]})
        await desk.settled()
        assert set(desk.objects()) == DEMO | {"poddisruptionbudget/demo-talker"}
        pods = uids(desk)
        desk.apply(talker={"replicas": 1, "env": [{"name": "A", "value": "2"}]})
        await desk.wait(lambda: uids(desk).keys() == pods.keys() - {"demo-talker-1"}, "one talker is left")
        await desk.wait(lambda: set(desk.objects()) == DEMO, "its disruption budget is deleted")
        await desk.wait(lambda: uids(desk)["demo-talker-0"] != pods["demo-talker-0"], "the talker is recreated")
        assert uids(desk)["demo-codec-0"] == pods["demo-codec-0"]


@pytest.mark.parametrize("kind", sorted({each.partition("/")[0] for each in DEMO} - {"lease", "secret"}))
async def test_a_deleted_object_is_recreated(desk, kind):
    """Its pods keep their template."""
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        for each in desk.cluster.list(kind):
            desk.cluster.delete(kind, each["metadata"]["name"])
        await desk.wait(lambda: set(desk.objects()) == DEMO, f"every {kind} is back")
        await desk.settled()


async def test_a_deleted_password_is_replaced_and_restarts_pods(desk):
    async with desk.operator():
        desk.apply()
        await desk.settled()
        pods, old = uids(desk), desk.cluster.get("secret", "demo-redis")
        desk.cluster.delete("secret", "demo-redis")
        await desk.wait(lambda: desk.cluster.get("secret", "demo-redis"), "there is a Secret")
        await desk.wait(lambda: not set(pods.values()) & set(uids(desk).values()), "all pods are new")
        await desk.settled()
        assert desk.cluster.get("secret", "demo-redis")["data"] != old["data"]


async def test_drift_is_reverted(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="60"):
        desk.apply()
        await desk.settled()
        desk.cluster.patch("service", "demo-gateway", {"spec": {"selector": {"extra": "x"}}})
        desk.cluster.patch("networkpolicy", "demo-redis", {"spec": {"ingress": [{}]}})
        desk.cluster.patch("deployment", "demo-gateway", {"spec": {"replicas": 3}})
        desk.cluster.patch("configmap", "demo-codec", {"data": {"settings.json": "{}"}})

        def repaired() -> bool:
            return (
                "extra" not in desk.cluster.get("service", "demo-gateway")["spec"]["selector"]
                and {} not in desk.cluster.get("networkpolicy", "demo-redis")["spec"]["ingress"]
                and desk.cluster.get("deployment", "demo-gateway")["spec"]["replicas"] == 1
                and "max_num_seqs" in desk.cluster.get("configmap", "demo-codec")["data"]["settings.json"]
            )

        await desk.wait(repaired, "all is as before")


async def test_fields_of_other_managers_are_kept(desk):
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2"):
        desk.apply()
        await desk.settled()
        desk.cluster.patch("service", "demo-gateway", {"metadata": {"labels": {"team": "speech"}}})
        reconciles = desk.reconciles()
        await desk.wait(lambda: desk.reconciles() >= reconciles + 3, "three more reconciles")
        assert desk.cluster.get("service", "demo-gateway")["metadata"]["labels"]["team"] == "speech"


async def test_an_autoscalers_replicas_are_kept(desk):
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-talker"}
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2"):
        desk.apply()
        await desk.settled()
        desk.cluster.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "talkers"},
                "spec": {"scaleTargetRef": target, "maxReplicas": 5},
            }
        )
        reconciles = desk.reconciles()
        await desk.wait(lambda: desk.reconciles() >= reconciles + 2, "the autoscaler is seen")
        desk.cluster.scale("statefulset", "demo-talker", 3)
        reconciles = desk.reconciles()
        await desk.wait(lambda: desk.reconciles() >= reconciles + 5, "five more reconciles")
        assert desk.cluster.get("statefulset", "demo-talker")["spec"]["replicas"] == 3
        await desk.settled()
        desk.cluster.delete("horizontalpodautoscaler", "talkers")
        await desk.wait(
            lambda: desk.cluster.get("statefulset", "demo-talker")["spec"]["replicas"] == 1,
            "the resource decides again",
        )


async def test_an_object_of_another_owner_is_reported_and_not_changed(desk):
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-codec"}, "data": {"mine": "x"}}
    desk.cluster.create(foreign)
    async with desk.operator():
        desk.apply()

        def named() -> bool:
            condition = desk.condition("Degraded")
            return condition["status"] == "True" and "ConfigMap demo-codec" in condition["message"]

        await desk.wait(named, "the conflict is reported")
        assert desk.condition("Degraded")["reason"] == "NameConflict"
        await desk.wait(lambda: set(desk.objects()) == DEMO - {"configmap/demo-codec"}, "the rest is made")
        assert desk.cluster.get("configmap", "demo-codec")["data"] == {"mine": "x"}
        assert "observedGeneration" not in desk.cluster.get("ttspipeline", "demo")["status"]
        desk.cluster.delete("configmap", "demo-codec")
        await desk.settled()
        await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")
    assert set(desk.objects()) == DEMO


async def test_a_lease_of_another_owner_is_reported_and_not_changed(desk):
    desk.cluster.create(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "demo-operator"}}
    )
    async with desk.operator():
        desk.apply()
        events = [("NameConflict", "the Lease demo-operator does not belong to this pipeline: delete it")]
        await desk.wait(
            lambda: [(e["reason"], e["message"]) for e in desk.events()] == events, "the conflict is reported"
        )
        assert not desk.cluster.list("statefulset")
        desk.cluster.delete("lease", "demo-operator")
        await desk.settled()


async def test_a_secret_of_another_owner_is_not_used(desk):
    desk.cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-redis"}, "data": {}})
    async with desk.operator():
        desk.apply()
        await desk.wait(lambda: desk.condition("Degraded")["reason"] == "NameConflict", "the conflict is reported")
        assert "Secret demo-redis" in desk.condition("Degraded")["message"]
        assert not desk.cluster.list("statefulset")
        desk.cluster.delete("secret", "demo-redis")
        await desk.settled()


async def test_an_unknown_field_is_reported_and_nothing_is_changed(desk, tmp_path):
    crd = yaml.safe_load(CRD.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema.pop("x-kubernetes-validations", None)
    async with KubeCluster(crd=crd, rights=rights()) as cluster:
        desk = Desk(cluster, tmp_path)
        async with desk.operator():
            desk.apply(talker={"replicas": 1})
            await desk.settled()
            before = desk.objects()
            desk.apply(talker={"replicas": 2, "pitch": 3}, codec={"maxNumSeqs": 99, "maxResident": 9})

            def named() -> bool:
                return "spec.talker.pitch: unknown field" in desk.condition("Degraded")["message"]

            await desk.wait(named, "the field is named")
            assert desk.objects() == before
            desk.apply(codec={"maxNumSeqs": 99, "maxResident": 9})
            await desk.wait(
                lambda: "spec.codec.maxNumSeqs" in desk.condition("Degraded")["message"], "the rule is named"
            )
            desk.apply(talker={"replicas": 2})
            await desk.wait(lambda: "demo-talker-1" in uids(desk), "the corrected resource is carried out")
            await desk.wait(lambda: desk.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_pipelines_in_one_namespace_are_independent(desk):
    async with desk.operator():
        desk.apply("demo")
        desk.apply("demo-two", talker={"replicas": 2})
        await desk.settled("demo")
        await desk.settled("demo-two")
        desk.cluster.delete("ttspipeline", "demo-two")
        await desk.wait(lambda: set(desk.objects()) == DEMO, "only the other is left")
        await desk.settled("demo")


async def test_an_operator_for_all_namespaces(desk, cluster):
    cluster.rights.rules = [(None, rule) for _, rule in cluster.rights.rules]
    for name in ("one", "two"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        cluster.apply(DEMO_RESOURCE, namespace=name)
    async with desk.operator(scope=("-A",), SYRINX_RESYNC_SECONDS="60"):

        def is_ready(namespace: str) -> bool:
            conditions = cluster.get("ttspipeline", "demo", namespace)["status"]["conditions"]
            return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

        await desk.wait(lambda: is_ready("one") and is_ready("two"), "both are ready")
        cluster.delete("configmap", "demo-codec", "two")
        await desk.wait(lambda: cluster.find("configmap", "demo-codec", "two"), "what is deleted comes back")
    assert cluster.rights.denied == []


async def test_each_change_causes_one_event(desk):
    async with desk.operator() as operator:
        desk.apply(tuning={"mode": "Off"})
        await desk.settled()
        await desk.quiet(operator)
        events = desk.events()
        assert ("Normal", "Ready") in {(event["type"], event["reason"]) for event in events}
        assert all(event["message"] and event["count"] == 1 for event in events)
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        await operator.ready()
        reconciles = desk.reconciles()
        await desk.wait(lambda: desk.reconciles() >= reconciles + 3, "three reconciles of the next operator")
    assert desk.events() == events
    uid = desk.cluster.get("ttspipeline", "demo")["metadata"]["uid"]
    assert {event["involvedObject"]["uid"] for event in events} == {uid}


async def test_the_operator_exports_metrics(desk):
    async with desk.operator() as operator:
        await operator.ready()
        assert operator.get("/healthz").status_code == 200
        desk.apply()
        await desk.settled()
        metrics = await operator.metrics()
    assert 'syrinx_operator_reconciles_total{outcome="succeeded"}' in metrics
    assert 'syrinx_operator_api_requests_total{code="200",verb="GET"}' in metrics
    assert 'syrinx_operator_object_writes_total{kind="StatefulSet",result="applied"} 3.0' in metrics
    assert 'syrinx_operator_pipelines{condition="Ready",status="True"} 1.0' in metrics
    assert "syrinx_operator_reconcile_seconds_count" in metrics
    assert "syrinx_operator_oldest_reconcile_age_seconds" in metrics
    assert 'changes_total{kind="StatefulSet",result="unchanged"}' not in metrics


async def test_without_the_crd_it_waits(tmp_path):
    async with KubeCluster(rights=rights()) as cluster:
        desk = Desk(cluster, tmp_path)
        async with desk.operator() as operator:
            await operator.until(lambda: operator.get("/readyz").status_code == 503, "it is not ready")
            await operator.until(lambda: "install the CRD" in operator.output, "it reports the missing CRD")
            assert operator.get("/healthz").status_code == 200
            cluster.apply(yaml.safe_load(CRD.read_text()))
            await operator.ready()
            desk.apply()
            await desk.settled()


async def test_an_invalid_option_is_reported_at_start(desk):
    async with desk.operator(SYRINX_STAGE_ACCESS="sideways") as operator:
        await operator.running.wait()
    assert operator.running.returncode == 1
    words = "syrinx-operator: SYRINX_STAGE_ACCESS: 'sideways' is not accepted; expected direct or proxy"
    assert operator.output.strip() == words


async def test_a_port_in_use_is_reported_at_start(desk):
    async with desk.operator() as first:
        await first.ready()
        async with desk.operator(SYRINX_PORT=str(first.port)) as second:
            async with asyncio.timeout(30):
                await second.running.wait()
        assert second.running.returncode == 1
        assert "address already in use" in second.output
