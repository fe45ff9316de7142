"""The plan of a canary: workloads beside those of the running version, which stay as they are."""

import kubernetes_validate
import pytest
from msgspec.structs import replace

from support.cluster_plan import (
    CONFIG,
    EMPTY,
    after,
    canary_status,
    check_golden,
    document,
    objects,
    owner_of,
    parsed,
    pipeline,
    pods_of,
    replica,
)
from syrinx_operator.cluster.objects.state import ObjectKey, Replica
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.plan.canary import canary_route
from syrinx_operator.cluster.plan.workload import pods
from syrinx_operator.resource.resolve import resolve
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

GATEWAY, TALKER, CODEC = Stage.GATEWAY, Stage.TALKER, Stage.CODEC
CANARY = {"rollout": {"canary": {}}, "talker": {"replicas": 4}}
NEW = {**CANARY, "image": "syrinx/stages:2.0.0"}
WORKLOADS = {ObjectKey("Deployment", f"demo-{stage}-canary") for stage in (GATEWAY, TALKER, CODEC)}
STABLE = (
    ObjectKey("Deployment", "demo-gateway"),
    ObjectKey("StatefulSet", "demo-talker"),
    ObjectKey("StatefulSet", "demo-codec"),
)


def planned(spec, observed, status=None, name="demo"):
    resource = pipeline(spec, name)
    return plan(resolve(resource), owner_of(resource), observed, CONFIG, None, status)


def of_spec(spec):
    """Returns the plan of a spec in an empty cluster, and the cluster once it was rolled out."""
    first = planned(spec, EMPTY)
    return first, after(first, replicas=pods_of(first))


def gateway(found, **fields):
    template = found.canary.candidate.pods[GATEWAY].hash
    known = {"name": "demo-gateway-canary-1-b", "component": GATEWAY, "canary": True, "template": template}
    return Replica(**{**known, "ready": True, "address": "10.0.0.7", **fields})


def test_a_new_image_starts_a_canary_and_leaves_the_running_version_alone():
    first, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    assert objects(found).keys() - objects(first).keys() == WORKLOADS
    for key in STABLE:
        assert objects(found)[key] == objects(first)[key]
    assert found.image == "syrinx/stages:1.0.0" and found.generation == first.generation
    images = {
        each["spec"]["template"]["spec"]["containers"][0]["image"]
        for key, each in objects(found).items()
        if key in WORKLOADS
    }
    assert images == {"syrinx/stages:2.0.0"}


@pytest.mark.parametrize(
    ("weights", "step", "awaited", "talkers"),
    [((10, 50), 0, 1, 1), ((10, 50), 1, 2, 2), ((10,), 0, 1, 2), ((10, 75), 1, 3, 3)],
    ids=["10 %", "50 %", "10 % as the last step", "75 %"],
)
def test_it_has_replicas_for_its_share_and_in_the_last_step_for_half_of_the_requests(weights, step, awaited, talkers):
    canary = {"rollout": {"canary": {"steps": [{"weight": weight, "pauseSeconds": 9} for weight in weights]}}}
    _, cluster = of_spec({**CANARY, **canary})
    found = planned({**NEW, **canary}, cluster)
    found = planned({**NEW, **canary}, cluster, canary_status(found, step=step))
    assert found.canary.awaited == {GATEWAY: 1, TALKER: awaited, CODEC: 1}
    assert found.canary.replicas == {GATEWAY: 1, TALKER: talkers, CODEC: 1}


def test_it_has_no_pods_before_the_running_version_is_rolled_out():
    first, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    *others, last = cluster.replicas
    ending = replace(last, terminating=True)
    for live in (others, [*others, replace(last, template="old")], [*cluster.replicas, ending]):
        waiting = planned(NEW, replace(cluster, replicas=tuple(live)), canary_status(found, "Starting"))
        assert waiting.canary.waits and objects(waiting).keys() == objects(first).keys()
    running = planned(NEW, replace(cluster, replicas=tuple(others), canary=(gateway(found),)), canary_status(found))
    assert running.canary.is_running, "its pods stay"


def test_live_fields_and_the_count_of_the_running_version_follow_the_spec():
    _, cluster = of_spec(CANARY)
    found = planned({**NEW, "talker": {"replicas": 6, "maxNumSeqs": 4}}, cluster)
    assert objects(found)[STABLE[1]]["spec"]["replicas"] == 6
    assert found.settings[TALKER].settings["max_num_seqs"] == 4
    assert found.canary.candidate.target == planned(NEW, cluster).canary.candidate.target


def test_a_promoted_version_is_rolled_out_and_recorded():
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    cluster = after(found, cluster)
    promoted = planned(NEW, cluster, canary_status(found, "Promoted"))
    assert promoted.canary is None and promoted.image == "syrinx/stages:2.0.0"
    templates = {stage: template.hash for stage, template in promoted.release.templates.items()}
    assert templates.items() >= {stage: each.hash for stage, each in found.canary.candidate.templates.items()}.items()
    cluster = after(promoted, cluster)
    assert planned(NEW, cluster).canary is None, "it is the running version now"


def test_a_failed_version_has_no_pods_and_the_running_one_stays():
    first, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    failed = planned(NEW, after(found, cluster), canary_status(found, "RolledBack"))
    assert objects(failed).keys() == objects(first).keys() and not failed.canary.is_running
    for key in STABLE:
        assert objects(failed)[key] == objects(first)[key]


def test_an_edit_makes_another_canary_and_a_revert_none():
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    cluster = after(found, cluster)
    other = planned({**NEW, "image": "syrinx/stages:3.0.0"}, cluster, canary_status(found, weight=10))
    assert other.canary.candidate.target != found.canary.candidate.target and other.canary.weight == 0
    assert planned(CANARY, cluster, canary_status(found)).canary is None


def test_another_version_of_the_operator_does_not_change_a_canary(monkeypatch):
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    cluster = after(found, cluster)
    monkeypatch.setattr(pods, "GRACE_SECONDS", 99)
    assert planned(NEW, cluster).canary == found.canary


@pytest.mark.parametrize(
    "change",
    [
        {"rollout": {}},
        {"connector": {"url": "redis://other:6379"}},
        {"gateway": {"port": 8001}},
        {"topology": "Colocated", "codec": {}},
    ],
    ids=["no canary", "connector", "port", "topology"],
)
def test_changes_that_both_versions_would_share_are_rolled_out(change):
    _, cluster = of_spec(CANARY)
    assert planned({**NEW, **change}, cluster).canary is None


@pytest.mark.parametrize("secret", ["token_uid", "password_uid"])
def test_new_tokens_and_passwords_are_rolled_out_without_a_version_that_is_not_promoted(secret):
    first, cluster = of_spec(CANARY)
    alone = planned(CANARY, replace(cluster, **{secret: "other"}))
    assert alone.canary is None
    found = planned(NEW, cluster)
    failed = replace(after(found, cluster), **{secret: "other"})
    renewed = planned(NEW, failed, canary_status(found, "RolledBack"))
    assert renewed.canary.waits and not renewed.canary.is_running, "the running version restarts first"
    restarted = replace(after(renewed, failed), replicas=pods_of(renewed))
    assert planned(NEW, restarted, canary_status(found, "RolledBack")).canary.is_running, "then it is tested again"
    for key in STABLE:
        assert objects(renewed)[key] == objects(alone)[key] != objects(first)[key]
    promoted = planned(NEW, after(renewed, failed), canary_status(renewed, "Promoted"))
    assert promoted.canary is None and promoted.image == "syrinx/stages:2.0.0"


def test_talkers_and_codecs_of_an_ended_canary_stay_for_its_last_gateway():
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    cluster = after(found, cluster, canary=(gateway(found, terminating=True),))
    failed = planned(NEW, cluster, canary_status(found, "RolledBack"))
    assert failed.keep == {key for key in WORKLOADS if "gateway" not in key.name}
    assert planned(NEW, replace(cluster, canary=()), canary_status(found, "RolledBack")).keep == frozenset()
    assert (
        planned(NEW, replace(cluster, canary=(gateway(found, stuck=True),)), canary_status(found, "RolledBack")).keep
        == frozenset()
    )


def forwarding(plan):
    """A gateway of the running version that forwards to a canary."""
    reported = ReportedSettings(1, settings={"canary": {"weight": 0.1, "urls": []}}, base={})
    return replica("gateway", 0, plan.templates[GATEWAY], ready=True, reported=reported)


def test_the_gateway_of_an_ended_canary_stays_while_one_forwards_to_it():
    first, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    failed = planned(NEW, replace(cluster, replicas=(forwarding(first),)), canary_status(found, "RolledBack"))
    assert failed.keep == WORKLOADS


def test_the_pods_of_a_promoted_canary_stay_until_its_status_is_removed():
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    cluster = after(found, cluster)
    promoting = planned(NEW, cluster, canary_status(found, "Promoted", weight=50))
    assert promoting.is_promoting and promoting.keep == WORKLOADS
    cluster = after(promoting, cluster)
    newer = {**NEW, "image": "syrinx/stages:3.0.0"}
    waiting = planned(newer, cluster, canary_status(found, "Promoted", weight=50))
    assert waiting.is_promoting and waiting.keep == WORKLOADS and not waiting.canary.is_running
    other_redis = planned({**newer, "connector": {"url": "redis://other"}}, cluster, canary_status(found, "Promoted"))
    assert not other_redis.is_promoting and not other_redis.keep & WORKLOADS
    assert planned(NEW, cluster).keep == frozenset()


def test_a_canary_starts_after_the_last_pod_of_the_one_before():
    _, cluster = of_spec(CANARY)
    found = planned(NEW, cluster)
    former = gateway(found, template="former", terminating=True)
    assert not objects(planned(NEW, replace(cluster, canary=(former,)))).keys() & WORKLOADS
    assert objects(planned(NEW, replace(cluster, canary=(replace(former, stuck=True),)))).keys() >= WORKLOADS


def test_the_route_has_the_ready_gateways_of_the_canary_and_its_weight():
    resource, (_, cluster) = pipeline(NEW), of_spec(CANARY)
    found = planned(NEW, cluster)
    running = planned(NEW, cluster, canary_status(found, weight=10))
    gateways = (
        gateway(found),
        gateway(found, ready=False, address="10.0.0.8"),
        gateway(found, terminating=True, address="10.0.0.9"),
    )
    observed = replace(cluster, canary=gateways)
    route = canary_route(resource.spec, running.canary.weight / 100, observed)
    assert (route.weight, route.urls) == (0.1, ("http://10.0.0.7:8000",))
    assert canary_route(resource.spec, found.canary.weight / 100, observed) is None, "it has no share yet"
    assert canary_route(resource.spec, running.canary.weight / 100, cluster) is None, "it has no gateway"


@pytest.mark.parametrize("name", ["everything", "autoscaled-gpu", "colocated", "vllm", "longest-name"])
def test_every_kind_of_pipeline_can_have_a_canary(name):
    resource = document(name)
    resource["spec"] = {**resource.get("spec", {}), "rollout": {"canary": {}}}
    first = parsed(resource)
    running = plan(resolve(first), owner_of(first), EMPTY, CONFIG)
    cluster = after(running, replicas=pods_of(running))
    resource["spec"]["image"] = "syrinx/stages:2.0.0"
    second = parsed(resource)
    found = plan(resolve(second), owner_of(second), cluster, CONFIG)
    assert found.canary is not None and found.canary.is_running
    for manifest in found.manifests:
        if manifest["kind"] == "Deployment":
            kubernetes_validate.validate(manifest, "1.28", strict=True)
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_golden():
    """The Deployments of a canary of the default pipeline."""
    _, cluster = of_spec({"rollout": {"canary": {}}})
    found = planned({"rollout": {"canary": {}}, "image": "syrinx/stages:2.0.0"}, cluster)
    check_golden("canary.yaml", [objects(found)[key] for key in sorted(WORKLOADS)])
