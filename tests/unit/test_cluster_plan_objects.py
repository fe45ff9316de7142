"""Building blocks of plans: hashes, defaults, ownership, replica counts, checkpoints and network peers."""

from __future__ import annotations

import msgspec
import pytest

from support.cluster_plan import CONFIG, EMPTY, after, key, owner_of, pipeline, planned, pod_template
from syrinx_operator.cluster.plan.models import volume_source
from syrinx_operator.cluster.plan.network import network_policies
from syrinx_operator.cluster.plan.objects import quantity, read_record, record
from syrinx_operator.cluster.plan.records import model_directory
from syrinx_operator.cluster.plan.workloads import ReplicaCount, replica_count
from syrinx_operator.cluster.state import Component, ObjectKey

OWNER = owner_of(pipeline())
TALKER = ObjectKey("StatefulSet", "demo-talker")


def test_the_config_map_of_another_pipeline_is_not_read():
    key = ObjectKey("ConfigMap", "demo-release")
    written = record(OWNER, "release", "text")
    observed = msgspec.structs.replace(EMPTY, objects={key: written})
    assert read_record(OWNER, observed, "release", str) == "text"
    former = msgspec.structs.replace(OWNER, uid="another")
    assert read_record(former, observed, "release", str) is None


def workload(manager: str) -> dict:
    fields = {"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    return {"metadata": {"resourceVersion": "7", "managedFields": [fields]}, "spec": {"replicas": 5}}


@pytest.mark.parametrize(
    ("manager", "autoscaled", "expected"),
    [
        ("syrinx-operator", False, ReplicaCount(2)),
        ("kube-controller-manager", False, ReplicaCount(2)),
        ("kube-controller-manager", True, ReplicaCount(5, applied=False)),
        ("syrinx-operator", True, ReplicaCount(5, resource_version="7")),
    ],
)
def test_an_autoscaler_decides_the_replica_count(manager, autoscaled, expected):
    observed = msgspec.structs.replace(
        EMPTY, objects={TALKER: workload(manager)}, autoscaled=frozenset({TALKER} if autoscaled else ())
    )
    talker = pipeline({"talker": {"replicas": 2}}).spec.talker
    assert replica_count(OWNER, Component.TALKER, talker, observed) == expected


AUTO, RECOMMEND = {"minReplicas": 2, "maxReplicas": 8}, {"mode": "Recommend", "minReplicas": 2, "maxReplicas": 8}


@pytest.mark.parametrize(
    ("autoscaling", "live", "autoscaled", "decided", "expected"),
    [
        (AUTO, None, False, None, ReplicaCount(2)),
        (AUTO, "syrinx-operator", False, None, ReplicaCount(5)),
        (AUTO, "kube-controller-manager", False, None, ReplicaCount(5)),
        (AUTO, "syrinx-operator", False, 7, ReplicaCount(7)),
        (AUTO, "syrinx-operator", False, 9, ReplicaCount(8)),
        (AUTO, "kube-controller-manager", True, 7, ReplicaCount(5, applied=False)),
        (AUTO, "syrinx-operator", True, 7, ReplicaCount(5, resource_version="7")),
        (RECOMMEND, "syrinx-operator", False, 7, ReplicaCount(1)),
        (RECOMMEND, "kube-controller-manager", True, 7, ReplicaCount(5, applied=False)),
        ({"by": "Hpa", **AUTO}, "syrinx-operator", False, 7, ReplicaCount(5, resource_version="7")),
    ],
    ids=[
        "a new pipeline",
        "before the first decision",
        "after an autoscaler",
        "decided",
        "within the bounds",
        "an autoscaler of others",
        "an autoscaler that has not scaled yet",
        "Recommend",
        "Recommend, autoscaled",
        "handed to an autoscaler",
    ],
)
def test_the_tuner_decides_the_replica_count_unless_another_autoscaler_does(
    autoscaling, live, autoscaled, decided, expected
):
    slo = {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]}
    talker = pipeline({"talker": {"autoscaling": autoscaling}, "slo": slo}).spec.talker
    observed = msgspec.structs.replace(
        EMPTY,
        objects={TALKER: workload(live)} if live else {},
        autoscaled=frozenset({TALKER} if autoscaled else ()),
    )
    assert replica_count(OWNER, Component.TALKER, talker, observed, decided) == expected


def keys(plan):
    return {key(each) for each in plan.manifests}


def test_another_autoscaler_is_created_once_the_former_is_gone():
    prometheus = {"prometheus": {"url": "http://prometheus"}}
    spec = {"talker": {"autoscaling": {"by": "Hpa", "maxReplicas": 8}}, "tuning": prometheus}
    hpa, scaled = (ObjectKey(kind, "demo-talker") for kind in ("HorizontalPodAutoscaler", "ScaledObject"))
    before = planned(pipeline(spec))
    assert hpa in keys(before)
    spec["talker"]["autoscaling"]["by"] = "Keda"
    live = after(before)
    live.objects[TALKER]["metadata"]["resourceVersion"] = "7"
    between = planned(pipeline(spec), live)
    assert not {hpa, scaled} & keys(between), "so the former is pruned"
    del live.objects[hpa]
    assert scaled in keys(planned(pipeline(spec), live))


@pytest.mark.parametrize(
    ("model", "directory", "volume"),
    [
        ({}, "bundled", None),
        ({"path": "/weights"}, "/weights", None),
        ({"path": "a/b", "claim": "c"}, "/models/a/b", {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}),
        ({"huggingFace": {"id": "org/name", "revision": "r1"}}, "/models/org--name/r1", {"emptyDir": {}}),
        ({"s3": {"uri": "s3://voices/qwen/1.0/"}}, "/models/s3--voices/qwen/1.0", {"emptyDir": {}}),
        (
            {"s3": {"uri": "s3://voices", "endpoint": "http://minio:9000"}, "cache": {"claim": "c"}},
            "/models/s3--voices--52500c8a",
            {"persistentVolumeClaim": {"claimName": "c"}},
        ),
        (
            {"image": {"reference": "voices/qwen:1", "path": "/v1"}},
            "/models/v1",
            {"image": {"reference": "voices/qwen:1", "pullPolicy": "Always"}},
        ),
        (
            {"path": "a", "volume": {"nfs": {"server": "files", "path": "/voices"}}},
            "/models/a",
            {"nfs": {"server": "files", "path": "/voices", "readOnly": True}},
        ),
        (
            {"path": "a", "volume": {"csi": {"driver": "d.example", "nodePublishSecret": "s"}}},
            "/models/a",
            {"csi": {"driver": "d.example", "readOnly": True, "nodePublishSecretRef": {"name": "s"}}},
        ),
    ],
    ids=["bundled", "path", "claim", "hub", "s3", "s3 elsewhere", "image", "nfs", "csi"],
)
def test_the_directory_and_volume_of_a_checkpoint(model, directory, volume):
    spec = pipeline({"model": model or {"bundled": True}, "imagePullPolicy": "Always"}).spec
    assert model_directory(spec.model) == directory
    assert volume_source("demo", spec) == volume


def test_a_bucket_is_read_with_the_credentials_of_the_secret_unless_the_user_sets_them():
    s3 = {"uri": "s3://voices/1", "endpoint": "http://minio:9000", "region": "r", "credentialsSecret": "keys"}
    user = {"env": [{"name": "AWS_REGION", "value": "mine"}]}
    plan = planned(pipeline({"model": {"s3": s3}, "codec": user}))
    for component, region in ((Component.TALKER, "r"), (Component.CODEC, "mine")):
        (fetch,) = plan.release.templates[component].template["spec"]["initContainers"]
        assert fetch["command"][3:7] == ["--s3", "s3://voices/1", "--endpoint", "http://minio:9000"]
        environment = {each["name"]: each.get("value", each.get("valueFrom")) for each in fetch["env"]}
        assert len(environment) == len(fetch["env"]), "each variable once"
        assert environment["AWS_REGION"] == region
        secret = environment["AWS_SECRET_ACCESS_KEY"]["secretKeyRef"]
        assert secret == {"name": "keys", "key": "AWS_SECRET_ACCESS_KEY"}
        assert environment["AWS_SESSION_TOKEN"]["secretKeyRef"]["optional"]


def private_ports(config):
    spec = pipeline({"monitoring": {"allowFrom": [{"namespace": "monitoring"}, {"cidr": "10.0.0.0/8"}]}}).spec
    talker = next(each for each in network_policies(OWNER, spec, config) if each["metadata"]["name"] == "demo-talker")
    return {rule["ports"][0]["port"]: rule["from"] for rule in talker["spec"]["ingress"]}


def test_metrics_are_open_to_the_operator_and_configured_peers_and_settings_to_the_operator_only():
    peers = private_ports(CONFIG)
    assert peers.keys() == {9090, 9091}
    operator, prometheus, network = peers[9090]
    assert peers[9091] == [operator]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "syrinx-system"}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "syrinx-operator"}
    assert prometheus["podSelector"] == {}
    assert network == {"ipBlock": {"cidr": "10.0.0.0/8"}}


def test_settings_are_open_to_the_api_server_too_if_the_operator_is_outside():
    peers = private_ports(msgspec.structs.replace(CONFIG, proxied=True))
    assert peers[9091] == peers[9090], "its address is one of the configured peers"


def test_without_a_memory_limit_redis_has_no_maxmemory():
    assert "--maxmemory" not in redis_arguments({"resources": {"requests": {"cpu": "1"}}})
    assert redis_arguments({"resources": {"limits": {"memory": "1.5Gi"}}})[-2:] == ["--maxmemory", str(1207959552)]


def redis_arguments(connector):
    subject = pipeline({"connector": {"managed": True, **connector}})
    return pod_template(planned(subject), subject, Component.REDIS)["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((1, 1), ("12", 12), ("1500m", 1.5), ("2k", 2000), ("2Ki", 2048), ("1.5Mi", 1_572_864), ("3M", 3_000_000)),
        *(("1G", 10**9), ("1Gi", 2**30), ("1T", 10**12), ("1Ti", 2**40), ("1P", 10**15), ("1Pi", 2**50)),
    ],
)
def test_quantities(text, number):
    assert quantity(text) == number
