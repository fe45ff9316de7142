"""The plan and the status of a managed Redis with replicas."""

import base64
import re
from pathlib import Path

import msgspec
import pytest

from support.cluster_plan import EMPTY, after, objects, owner_of, pipeline, planned, pod_template, replica
from support.cluster_status import Cluster, condition, message
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.cluster.plan.connector import replicated_redis
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.resolve import RedisForm
from syrinx_stages.contract.stages import Stage

REDIS_HA = RedisForm.REPLICATED
SINGLE = pipeline()
THREE = pipeline({"connector": {"managed": True, "replicas": 3}})
SCRIPTS = Path(replicated_redis.__file__).parent / "scripts"
STATEFUL_SET = ObjectKey("StatefulSet", "demo-redis")


def of_redis(plan):
    return {key for key in objects(plan) if "redis" in key.name}


def with_pods(plan, observed, *pods):
    return msgspec.structs.replace(after(plan, observed), replicas=pods)


def test_each_form_has_its_own_objects():
    assert not of_redis(planned(SINGLE)) & of_redis(planned(THREE))
    assert planned(SINGLE).generation != planned(THREE).generation


def test_the_other_redis_stays_while_a_pod_of_a_stage_uses_it():
    before = planned(SINGLE)
    old = replica("talker", 0, before.templates[Stage.TALKER])
    plan = planned(THREE, with_pods(before, EMPTY, old))
    assert of_redis(before) <= plan.keep and STATEFUL_SET not in objects(plan)
    new = msgspec.structs.replace(old, template=plan.templates[Stage.TALKER])
    assert planned(THREE, with_pods(before, EMPTY, new)).keep == frozenset()
    for changes in ({"terminating": True}, {"ready": False}):
        ending = msgspec.structs.replace(old, **changes)
        assert STATEFUL_SET in planned(THREE, with_pods(before, EMPTY, new, ending)).keep
    stuck = msgspec.structs.replace(old, terminating=True, stuck=True)
    assert planned(THREE, with_pods(before, EMPTY, new, stuck)).keep == frozenset(), "its streams have ended"


def test_nothing_is_retained_in_a_usual_roll_out():
    before = planned(THREE)
    old = replica("talker", 0, before.templates[Stage.TALKER])
    edited = pipeline({"connector": {"managed": True, "replicas": 3}, "talker": {"drainSeconds": 7}})
    assert planned(edited, with_pods(before, EMPTY, old)).keep == frozenset()


def test_servers_with_another_password_are_deleted():
    plan = planned(THREE)
    pods = [replica(REDIS_HA, n, plan.templates[REDIS_HA], password_uid=uid) for n, uid in enumerate("ab")]
    ending = replica(REDIS_HA, 2, plan.templates[REDIS_HA], password_uid="a", terminating=True)
    observed = with_pods(plan, msgspec.structs.replace(EMPTY, password_uid="b"), *pods, ending)
    assert planned(THREE, observed).delete == (pods[0],)


def test_claims_grow_and_the_templates_of_the_statefulset_stay():
    small, large = (
        pipeline({"connector": {"managed": True, "replicas": 3, "storage": {"size": size}}}) for size in ("1Gi", "2Gi")
    )
    before = planned(small)
    grown = objects(planned(large, after(before)))
    for ordinal in range(3):
        claim = grown[ObjectKey("PersistentVolumeClaim", f"syrinx-data-demo-redis-ha-{ordinal}")]
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    workload = names.workload_key("demo", REDIS_HA)
    assert grown[workload]["spec"] == objects(before)[workload]["spec"]


def test_the_scripts_use_the_names_and_ports_of_the_plan():
    template = pod_template(planned(THREE), THREE, REDIS_HA)
    variables = {each["name"] for container in template["spec"]["containers"] for each in container["env"]}
    for script in SCRIPTS.glob("*.sh"):
        text = script.read_text()
        assert {"SELF", "REDISCLI_AUTH"} <= variables and not re.findall(r"\$\$", text), "Kubernetes replaces $$"
        assert set(re.findall(r"\b\d{4,5}\b", text)) <= {
            str(names.REDIS_PORT),
            str(names.SENTINEL_PORT),
            "1000",
            "5000",
        }
        # Kubernetes replaces $(NAME) in a command.
        assert not set(re.findall(r"\$\((\w+)\)", text)) & variables


def test_stages_and_sentinels_have_different_passwords():
    secret = replicated_redis.password_secret(owner_of(THREE), "stages", "system")
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    stages, system, _ = data[names.ACL_KEY].split("\n")
    assert stages.startswith("user default on #") and system.startswith("user syrinx on #")
    assert not any(word in data[names.ACL_KEY] + data[names.SENTINEL_ACL_KEY] for word in ("stages", "system"))


@pytest.mark.parametrize("ready", [3, 2])
def test_the_majority_of_the_servers_serves(ready):
    cluster = Cluster(connector=ConnectorSpec(managed=True, replicas=3))
    for number in range(ready, 3):
        cluster.set(REDIS_HA, number, ready=False)
    report = cluster.update()
    assert condition(report, "ConnectorReady") == ("True", "Serving")
    assert report["redis"] == {"ready": True, "summary": f"{ready}/3"}


def test_one_server_alone_is_no_quorum():
    cluster = Cluster(connector=ConnectorSpec(managed=True, replicas=3))
    cluster.set(REDIS_HA, 0, ready=False).set(REDIS_HA, 1, ready=False, problem="ImagePullBackOff: no such image")
    report = cluster.update()
    assert condition(report, "ConnectorReady") == ("False", "NoQuorum")
    assert message(report, "ConnectorReady").startswith("1 of 3 servers are ready, and 2 are needed")
    assert "demo-redis-ha-1: ImagePullBackOff" in message(report, "ConnectorReady")
    assert report["redis"] == {"ready": False, "summary": "1/3"}
