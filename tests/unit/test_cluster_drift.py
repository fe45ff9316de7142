"""Comparison of live objects with their manifests."""

from __future__ import annotations

import copy

import pytest

from support.cluster_plan import objects, pipeline, planned
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.cluster.plan.objects import differs

TALKER = {
    "replicas": 2,
    "env": [{"name": "A", "value": "b"}, {"name": "EMPTY", "value": ""}],
    "nodeSelector": {"disk": "ssd"},
    "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}},
    "podTemplate": {"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1024Mi"}}]}},
}
PLANNED = objects(planned(pipeline({"talker": TALKER})))
WORKLOAD = PLANNED[ObjectKey("StatefulSet", "demo-talker")]
POLICY = PLANNED[ObjectKey("NetworkPolicy", "demo-redis")]
SERVICE = PLANNED[ObjectKey("Service", "demo-gateway")]


def served() -> dict:
    """Returns the workload as an API server returns it: with defaults, normalized quantities, without empty values."""
    live = copy.deepcopy(WORKLOAD)
    live["metadata"] |= {"uid": "x", "resourceVersion": "7", "generation": 1, "managedFields": [{}]}
    live["metadata"]["labels"]["team"] = "speech"
    live["metadata"]["ownerReferences"].append({"kind": "Other", "name": "o", "uid": "v"})
    live["spec"] |= {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}
    pod = live["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    container = pod["containers"][0]
    container |= {"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"}
    container["resources"]["requests"] = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    del container["env"][-1]["value"]
    pod["volumes"][-1]["emptyDir"]["sizeLimit"] = "1Gi"
    live["status"] = {"replicas": 2}
    return live


def test_fields_added_by_the_server_and_by_others_are_no_difference():
    assert not differs(WORKLOAD, served())


def test_injected_containers_and_volumes_are_no_difference():
    live = served()
    pod = live["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "proxy"})
    pod["volumes"].insert(0, {"name": "certificates"})
    assert not differs(WORKLOAD, live)


def change(path: str, value: object) -> dict:
    live = served()
    *parents, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split("/")]
    at = live
    for part in parents:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return live


POD = "spec/template/spec"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/replicas", 3),
        ("spec/replicas", None),
        ("metadata/labels", {}),
        ("metadata/annotations", {"syrinx.dev/applied": "0000000000"}),
        ("metadata/annotations", None),
        ("metadata/ownerReferences", []),
        ("spec/selector/matchLabels/more", "x"),
        (f"{POD}/automountServiceAccountToken", True),
        (f"{POD}/automountServiceAccountToken", 0),
        (f"{POD}/nodeSelector/zone", "a"),
        (f"{POD}/containers/0/command", ["a"]),
        (f"{POD}/containers/0/command", WORKLOAD["spec"]["template"]["spec"]["containers"][0]["command"][::-1]),
        (f"{POD}/containers/0/env", []),
        (f"{POD}/containers/0/env/0/value", "redis://other"),
        (f"{POD}/containers/0/ports/0/containerPort", 9099),
        (f"{POD}/containers/0/resources/requests/cpu", "1001m"),
        (f"{POD}/containers/0/resources/requests/memory", "1G"),
        (f"{POD}/containers/0/resources", {}),
        (f"{POD}/volumes/-1/emptyDir/sizeLimit", "2Gi"),
        (f"{POD}/volumes", None),
    ],
)
def test_a_changed_field_is_a_difference(path, value):
    assert differs(WORKLOAD, change(path, value))


def test_a_widened_network_policy_is_a_difference():
    def opened(edit) -> bool:
        live = copy.deepcopy(POLICY)
        edit(live["spec"])
        return differs(POLICY, live)

    assert not opened(lambda spec: None)
    assert opened(lambda spec: spec["ingress"].append({}))
    assert opened(lambda spec: spec["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}}))
    assert opened(lambda spec: spec["ingress"][0]["ports"].append({"port": 22}))
    assert opened(lambda spec: spec["ingress"][0]["from"][0]["podSelector"].clear())
    assert opened(lambda spec: spec["podSelector"]["matchLabels"].update(more="x"))
    assert opened(lambda spec: spec["podSelector"].update(matchExpressions=[{"key": "a", "operator": "Exists"}]))
    assert opened(lambda spec: spec["policyTypes"].append("Egress"))


def test_an_empty_selector_differs_from_a_selector():
    everyone = copy.deepcopy(POLICY)
    everyone["spec"]["ingress"][0]["from"] = [{"namespaceSelector": {}}]
    selected = copy.deepcopy(everyone)
    assert not differs(everyone, selected)
    selected["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {"matchLabels": {"a": "b"}}
    assert differs(everyone, selected)


def test_a_service_may_have_more_ports_but_no_other_selector():
    live = copy.deepcopy(SERVICE)
    live["spec"] |= {"clusterIP": "10.0.0.1", "type": "ClusterIP"}
    live["spec"]["ports"][0] |= {"protocol": "TCP", "nodePort": 30_000}
    live["spec"]["ports"].append({"name": "other", "port": 1})
    assert not differs(SERVICE, live)
    live["spec"]["selector"]["c"] = "d"
    assert differs(SERVICE, live)
