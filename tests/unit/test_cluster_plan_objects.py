"""Building blocks of plans: hashes, defaults, ownership, replica counts, checkpoints and network peers."""

from __future__ import annotations

import msgspec
import pytest

from support.cluster_plan import CONFIG, EMPTY, after, key, owner_of, pipeline, planned, pod_template
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.cluster.plan.network import network_policies
from syrinx_operator.cluster.plan.records import model_directory
from syrinx_operator.cluster.plan.workload.models import volume_source
from syrinx_operator.cluster.plan.workload.workloads import ReplicaCount, replica_count
from syrinx_operator.resource.resolve import RedisForm, resolve
from syrinx_stages.contract.stages import Stage

OWNER = owner_of(pipeline())
TALKER = ObjectKey("StatefulSet", "demo-talker")


def workload(manager: str) -> dict:
    fields = {"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    return {"metadata": {"resourceVersion": "7", "managedFields": [fields]}, "spec": {"replicas": 5}}


AUTO = {"minReplicas": 2, "maxReplicas": 8}
OURS, OTHERS = "syrinx-operator", "kube-controller-manager"
COPIED, LEFT = ReplicaCount(5, resource_version="7"), ReplicaCount(5, applied=False)


@pytest.mark.parametrize(
    ("autoscaling", "live", "autoscaled", "decided", "expected"),
    [
        pytest.param(None, OURS, False, None, ReplicaCount(1), id="fixed"),
        pytest.param(None, OTHERS, False, None, ReplicaCount(1), id="fixed, after an autoscaler"),
        pytest.param(None, OTHERS, True, None, LEFT, id="an autoscaler of others without a field in the spec"),
        pytest.param(None, OURS, True, None, COPIED, id="the same, which has not scaled yet"),
        pytest.param(AUTO, None, False, None, ReplicaCount(2), id="a new pipeline"),
        pytest.param(AUTO, OURS, False, None, ReplicaCount(5), id="before the first decision"),
        pytest.param(AUTO, OTHERS, False, None, ReplicaCount(5), id="after an autoscaler"),
        pytest.param(AUTO, OURS, False, 7, ReplicaCount(7), id="decided"),
        pytest.param(AUTO, OURS, False, 9, ReplicaCount(8), id="within the bounds"),
        pytest.param(AUTO, OTHERS, True, 7, LEFT, id="an autoscaler of others"),
        pytest.param(AUTO, OURS, True, 7, COPIED, id="an autoscaler that has not scaled yet"),
        pytest.param({"mode": "Recommend", **AUTO}, OURS, False, 7, ReplicaCount(1), id="Recommend"),
        pytest.param({"mode": "Recommend", **AUTO}, OTHERS, True, 7, LEFT, id="Recommend, autoscaled"),
        pytest.param({"by": "Hpa", **AUTO}, OURS, False, 7, COPIED, id="handed to an autoscaler"),
    ],
)
def test_the_tuner_decides_the_replica_count_unless_another_autoscaler_does(
    autoscaling, live, autoscaled, decided, expected
):
    slo = {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]}
    talker = pipeline({"talker": {"autoscaling": autoscaling} if autoscaling else {}, "slo": slo}).spec.talker
    observed = msgspec.structs.replace(
        EMPTY,
        objects={TALKER: workload(live)} if live else {},
        autoscaled=frozenset({TALKER} if autoscaled else ()),
    )
    assert replica_count(OWNER, Stage.TALKER, talker, observed, decided) == expected


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
        ({"path": "/weights"}, "/weights", None),
        ({"s3": {"uri": "s3://voices/qwen/1.0/"}}, "/models/s3--voices/qwen/1.0", {"emptyDir": {}}),
        (
            {"image": {"reference": "voices/qwen:1", "path": "/v1"}},
            "/models/v1",
            {"image": {"reference": "voices/qwen:1", "pullPolicy": "Always"}},
        ),
    ],
    ids=["path", "s3", "image"],
)
def test_the_directory_and_volume_of_a_checkpoint(model, directory, volume):
    """The golden plans show the other sources."""
    spec = pipeline({"model": model, "imagePullPolicy": "Always"}).spec
    assert model_directory(spec.model) == directory
    assert volume_source("demo", spec) == volume


def test_a_bucket_is_read_with_the_settings_that_the_user_has_set():
    user = {"env": [{"name": "AWS_REGION", "value": "mine"}]}
    plan = planned(pipeline({"model": {"s3": {"uri": "s3://voices/1", "region": "r"}}, "codec": user}))
    for component, region in ((Stage.TALKER, "r"), (Stage.CODEC, "mine")):
        (fetch,) = plan.release.templates[component].template["spec"]["initContainers"]
        assert [each["value"] for each in fetch["env"] if each["name"] == "AWS_REGION"] == [region]


def private_ports(config):
    peers = [{"namespace": "monitoring"}, {"cidr": "10.0.0.0/8"}]
    found = network_policies(OWNER, resolve(pipeline({"monitoring": {"allowFrom": peers}})), config)
    talker = next(each for each in found if each["metadata"]["name"] == "demo-talker")
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
    return pod_template(planned(subject), subject, RedisForm.SINGLE)["spec"]["containers"][0]["args"]
