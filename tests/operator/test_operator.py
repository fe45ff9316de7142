"""A pipeline's lifecycle: creation, edits, drift, conflicts and deletion."""

from __future__ import annotations

import json

import pytest
import yaml

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.rbac import rights
from syrinx_operator.cluster.plan.records import with_template_label

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


def uids(harness: Harness) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in harness.cluster.list("pod")}


def generation(harness: Harness, stage: str) -> int | None:
    return harness.cluster.get("ttspipeline", "demo")["status"][stage].get("confirmedGeneration")


async def test_a_new_pipeline_becomes_ready(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
    assert set(harness.objects()) == DEMO
    assert harness.cluster.rights.denied == []


async def test_nothing_is_written_when_nothing_changes(harness):
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        harness.apply()
        await harness.settled()
        await harness.quiet(operator)
        before = harness.writes()
        await operator.reconciled(5)
        assert harness.writes()[len(before) :] == []


async def test_secrets_are_created_and_read_by_name(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
    asked = [request for request in harness.cluster.requests if "/secrets" in request.path]
    assert {request.method for request in asked} == {"GET", "POST"}
    read = {request.path.rpartition("/")[2] for request in asked if request.method == "GET"}
    assert read == {"demo-redis", "demo-stages"}
    assert {each.verb for each in harness.cluster.rights.asked if each.resource == "secrets"} == {"get", "create"}


async def test_deleting_a_pipeline_removes_all_objects(harness):
    async with harness.operator() as operator:
        harness.apply()
        await harness.settled()
        harness.cluster.delete("ttspipeline", "demo")
        await harness.wait(lambda: not harness.objects() and not harness.cluster.list("pod"), "all objects are deleted")
        age = "oldest_reconcile_age_seconds 0.0"
        await operator.until(lambda: age in operator.get("/metrics").text, "the pipeline is forgotten")
        assert harness.objects() == {}


async def test_a_terminating_pipeline_gets_no_new_objects(harness):
    """With foreground deletion it exists until all of its dependents are gone."""
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2"):
        harness.apply()
        await harness.settled()
        harness.cluster.delete("ttspipeline", "demo", propagationPolicy="Foreground")
        await harness.wait(
            lambda: not harness.objects() and not harness.cluster.list("ttspipeline"), "all objects are deleted"
        )


async def test_a_recreated_pipeline_gets_its_own_objects(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
        old = uids(harness)
        harness.cluster.delete("ttspipeline", "demo")
        uid = harness.apply()["metadata"]["uid"]

        def all_new() -> bool:
            owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in harness.live()}
            return owners == {uid} and not set(old.values()) & set(uids(harness).values())

        await harness.wait(all_new, "every object belongs to the new pipeline")
        await harness.settled()
    assert set(harness.objects()) == DEMO


async def test_live_settings_reach_every_replica_without_a_restart(harness):
    async with harness.operator():
        harness.apply(talker={"replicas": 2}, codec={"replicas": 2})
        await harness.settled()
        await harness.wait(lambda: generation(harness, "codec") == 1, "the first settings are confirmed")
        pods = uids(harness)
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
        assert uids(harness) == pods


async def test_settings_can_be_sent_through_the_api_servers_pod_proxy(harness):
    async with harness.operator(SYRINX_STAGE_ACCESS="proxy"):
        harness.apply()
        await harness.wait(lambda: generation(harness, "codec") == 1, "the first settings are confirmed")
        harness.apply(codec={"maxNumSeqs": 5})
        await harness.wait(lambda: generation(harness, "codec") == 2, "the codecs confirm")
    assert harness.cluster.rights.denied == []


async def test_a_replica_that_rejects_settings_delays_only_its_own_confirmation(harness):
    harness.cluster.kubelet.admins.deaf.add("demo-codec-1")
    async with harness.operator() as operator:
        harness.apply(codec={"replicas": 2})
        await harness.wait(lambda: generation(harness, "codec") == 1, "the first settings are confirmed")
        harness.apply(codec={"replicas": 2, "maxNumSeqs": 5})

        def confirmed() -> dict[str, int]:
            report = harness.cluster.get("ttspipeline", "demo")["status"]["codec"]
            return {each["replica"]: each["generation"] for each in report["confirmed"]}

        await harness.wait(lambda: confirmed() == {"demo-codec-0": 2, "demo-codec-1": 1}, "one confirms")
        assert generation(harness, "codec") == 1
        assert 'pushes_total{result="failed"}' in operator.metrics()
        harness.cluster.kubelet.admins.deaf.clear()
        await harness.wait(lambda: generation(harness, "codec") == 2, "both confirm")


async def test_an_edit_rolls_out_and_removes_unplanned_objects(harness):
    async with harness.operator():
        harness.apply(talker={"replicas": 2, "env": [{"name": "A", "value": "1"}]})
        await harness.settled()
        assert set(harness.objects()) == DEMO | {"poddisruptionbudget/demo-talker"}
        pods = uids(harness)
        harness.apply(talker={"replicas": 1, "env": [{"name": "A", "value": "2"}]})
        await harness.wait(lambda: uids(harness).keys() == pods.keys() - {"demo-talker-1"}, "one talker is left")
        await harness.wait(lambda: set(harness.objects()) == DEMO, "its disruption budget is deleted")
        await harness.wait(lambda: uids(harness)["demo-talker-0"] != pods["demo-talker-0"], "the talker is recreated")
        assert uids(harness)["demo-codec-0"] == pods["demo-codec-0"]


@pytest.mark.parametrize("kind", sorted({each.partition("/")[0] for each in DEMO} - {"secret"}))
async def test_a_deleted_object_is_recreated(harness, kind):
    """Its pods keep their template."""
    async with harness.operator(SYRINX_RESYNC_SECONDS="60"):
        harness.apply()
        await harness.settled()
        for each in harness.cluster.list(kind):
            harness.cluster.delete(kind, each["metadata"]["name"])
        await harness.wait(lambda: set(harness.objects()) == DEMO, f"every {kind} is back")
        await harness.settled()


@pytest.mark.parametrize(("secret", "kept"), [("demo-redis", set()), ("demo-stages", {"demo-redis-0"})])
async def test_a_deleted_secret_is_replaced_and_restarts_the_pods_that_use_it(harness, secret, kept):
    async with harness.operator():
        harness.apply()
        await harness.settled()
        pods, old = uids(harness), harness.cluster.get("secret", secret)
        harness.cluster.delete("secret", secret)
        await harness.wait(lambda: harness.cluster.find("secret", secret), "there is a Secret")
        old_pods = {uid for name, uid in pods.items() if name not in kept}
        await harness.wait(lambda: not old_pods & set(uids(harness).values()), "all of its pods are new")
        await harness.settled()
        assert harness.cluster.get("secret", secret)["data"] != old["data"]
        assert {name for name, uid in uids(harness).items() if pods.get(name) == uid} == kept
        await harness.wait(lambda: generation(harness, "codec") == 1, "the settings are confirmed with the new token")


def record_of_an_earlier_version(harness: Harness) -> None:
    """Edits the release record: pods have one port for metrics and settings, and no token."""
    release = harness.cluster.get("configmap", "demo-release")
    record = json.loads(release["data"]["release.json"])
    for stage in ("gateway", "talker", "codec"):
        template = record["templates"][stage]["template"]
        del template["metadata"]["annotations"]["syrinx.dev/token-secret"]
        container = template["spec"]["containers"][0]
        container["ports"] = [port for port in container["ports"] if port["name"] != "settings"]
        container["env"] = [each for each in container["env"] if each["name"] != "SYRINX_SETTINGS_TOKEN"]
        record["templates"][stage]["template"] = with_template_label(template)
    harness.cluster.patch("configmap", "demo-release", {"data": {"release.json": json.dumps(record)}})


@pytest.mark.parametrize("access", ["direct", "proxy"])
async def test_pods_of_an_earlier_version_keep_their_port_until_an_edit_restarts_them(harness, access):
    admins = harness.cluster.kubelet.admins
    async with harness.operator(SYRINX_STAGE_ACCESS=access):
        harness.apply()
        await harness.settled()
        assert admins.tokenless == set()
    pods = uids(harness)
    record_of_an_earlier_version(harness)
    async with harness.operator(SYRINX_STAGE_ACCESS=access):
        await harness.wait(lambda: not set(pods.values()) & set(uids(harness).values()) - redis(pods), "all are old")
        await harness.wait(lambda: len(uids(harness)) == len(pods), "those that stood in have ended")
        await harness.settled()
        pods = uids(harness)
        harness.apply(codec={"maxNumSeqs": 5})
        await harness.wait(lambda: generation(harness, "codec") == 2, "a pod of the earlier version confirms")
        assert uids(harness) == pods and "demo-codec-0" in admins.tokenless
        admins.tokenless.clear()
        harness.apply(codec={"maxNumSeqs": 6, "drainSeconds": 7})
        await harness.wait(lambda: uids(harness)["demo-codec-0"] != pods["demo-codec-0"], "the pod is replaced")
        await harness.wait(lambda: len(uids(harness)) == len(pods), "the one that stood in has ended")
        await harness.wait(lambda: generation(harness, "codec") == 3, "the new pod confirms")
        admins.tokenless.clear()
        harness.apply(codec={"maxNumSeqs": 7, "drainSeconds": 7})
        await harness.wait(lambda: generation(harness, "codec") == 4, "the new pod confirms")
        assert "demo-codec-0" not in admins.tokenless


def redis(pods: dict[str, str]) -> set[str]:
    return {pods["demo-redis-0"]}


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


async def test_fields_of_other_managers_are_kept(harness):
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        harness.apply()
        await harness.settled()
        harness.cluster.patch("service", "demo-gateway", {"metadata": {"labels": {"team": "speech"}}})
        await operator.reconciled(3)
        assert harness.cluster.get("service", "demo-gateway")["metadata"]["labels"]["team"] == "speech"


async def test_an_autoscalers_replicas_are_kept(harness):
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-talker"}
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        harness.apply()
        await harness.settled()
        harness.cluster.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "talkers"},
                "spec": {"scaleTargetRef": target, "maxReplicas": 5},
            }
        )
        await operator.reconciled(2)
        harness.cluster.scale("statefulset", "demo-talker", 3)
        await operator.reconciled(5)
        assert harness.cluster.get("statefulset", "demo-talker")["spec"]["replicas"] == 3
        await harness.settled()
        harness.cluster.delete("horizontalpodautoscaler", "talkers")
        await harness.wait(
            lambda: harness.cluster.get("statefulset", "demo-talker")["spec"]["replicas"] == 1,
            "the resource decides again",
        )


async def test_an_object_of_another_owner_is_reported_and_not_changed(harness):
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-codec"}, "data": {"mine": "x"}}
    harness.cluster.create(foreign)
    async with harness.operator():
        harness.apply()

        def named() -> bool:
            condition = harness.condition("Degraded")
            return condition["status"] == "True" and "ConfigMap demo-codec" in condition["message"]

        await harness.wait(named, "the conflict is reported")
        assert harness.condition("Degraded")["reason"] == "NameConflict"
        await harness.wait(lambda: set(harness.objects()) == DEMO - {"configmap/demo-codec"}, "the rest is created")
        assert harness.cluster.get("configmap", "demo-codec")["data"] == {"mine": "x"}
        assert "observedGeneration" not in harness.cluster.get("ttspipeline", "demo")["status"]
        harness.cluster.delete("configmap", "demo-codec")
        await harness.settled()
        await harness.wait(lambda: harness.condition("Degraded")["status"] == "False", "nothing is wrong any more")
    assert set(harness.objects()) == DEMO


async def test_a_secret_of_another_owner_is_not_used(harness):
    harness.cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-redis"}, "data": {}})
    async with harness.operator():
        harness.apply()
        await harness.wait(
            lambda: harness.condition("Degraded")["reason"] == "NameConflict", "the conflict is reported"
        )
        assert "Secret demo-redis" in harness.condition("Degraded")["message"]
        assert not harness.cluster.list("statefulset")
        harness.cluster.delete("secret", "demo-redis")
        await harness.settled()


async def test_a_broken_rule_is_reported_and_nothing_is_changed(harness, tmp_path):
    crd = yaml.safe_load(CRD.read_text())
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema.pop("x-kubernetes-validations", None)
    async with KubeCluster(crd=crd, rights=rights()) as cluster:
        harness = Harness(cluster, tmp_path)
        async with harness.operator():
            harness.apply(talker={"replicas": 1})
            await harness.settled()
            before = harness.objects()
            harness.apply(talker={"replicas": 2}, codec={"maxNumSeqs": 99, "maxResident": 9})
            await harness.wait(
                lambda: "spec.codec.maxNumSeqs" in harness.condition("Degraded")["message"], "the rule is named"
            )
            assert harness.objects() == before
            harness.apply(talker={"replicas": 2})
            await harness.wait(lambda: "demo-talker-1" in uids(harness), "the corrected resource is carried out")
            await harness.wait(lambda: harness.condition("Degraded")["status"] == "False", "nothing is wrong any more")


async def test_pipelines_in_one_namespace_are_independent(harness):
    async with harness.operator():
        harness.apply("demo")
        harness.apply("demo-two", talker={"replicas": 2})
        await harness.settled("demo")
        await harness.settled("demo-two")
        harness.cluster.delete("ttspipeline", "demo-two")
        await harness.wait(lambda: set(harness.objects()) == DEMO, "only the other is left")
        await harness.settled("demo")


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


async def test_each_change_causes_one_event(harness):
    async with harness.operator() as operator:
        harness.apply(tuning={"mode": "Off"})
        await harness.settled()
        await harness.quiet(operator)
        events = harness.events()
        assert ("Normal", "Ready") in {(event["type"], event["reason"]) for event in events}
        assert all(event["message"] and event["count"] == 1 for event in events)
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.2") as operator:
        await operator.ready()
        await operator.reconciled(3)
    assert harness.events() == events
    uid = harness.cluster.get("ttspipeline", "demo")["metadata"]["uid"]
    assert {event["involvedObject"]["uid"] for event in events} == {uid}


async def test_the_operator_exports_metrics(harness):
    async with harness.operator() as operator:
        await operator.ready()
        assert operator.get("/healthz").status_code == 200
        harness.apply()
        await harness.settled()
        metrics = operator.metrics()
    assert 'syrinx_operator_reconciles_total{outcome="succeeded"}' in metrics
    assert 'syrinx_operator_api_requests_total{code="200",verb="GET"}' in metrics
    assert 'syrinx_operator_object_writes_total{kind="StatefulSet",result="applied"} 3.0' in metrics
    assert 'syrinx_operator_pipelines{condition="Ready",status="True"} 1.0' in metrics
    assert "syrinx_operator_reconcile_seconds_count" in metrics
    assert "syrinx_operator_oldest_reconcile_age_seconds" in metrics
    assert 'changes_total{kind="StatefulSet",result="unchanged"}' not in metrics


async def test_without_the_crd_it_waits(tmp_path):
    async with KubeCluster(rights=rights()) as cluster:
        harness = Harness(cluster, tmp_path)
        async with harness.operator() as operator:
            await operator.until(lambda: operator.get("/readyz").status_code == 503, "it is not ready")
            await operator.until(lambda: "install the CRD" in operator.output, "it reports the missing CRD")
            assert operator.get("/healthz").status_code == 200
            cluster.apply(yaml.safe_load(CRD.read_text()))
            await operator.ready()
            harness.apply()
            await harness.settled()
