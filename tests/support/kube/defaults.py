"""The API server's defaults for built-in kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Object = dict[str, Any]


def fill(obj: Object) -> None:
    """Sets the defaults of an object, in place."""
    if filler := _BY_KIND.get(obj["kind"]):
        filler(obj)


def _set(target: Object, **values: Any) -> None:
    for key, value in values.items():
        target.setdefault(key, value)


def _workload(obj: Object) -> None:
    _set(obj["spec"], replicas=1, revisionHistoryLimit=10)
    pod_template(obj["spec"]["template"])


def _deployment(obj: Object) -> None:
    _workload(obj)
    spec = obj["spec"]
    _set(spec, progressDeadlineSeconds=600, strategy={})
    _set(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _set(spec["strategy"].setdefault("rollingUpdate", {}), maxSurge="25%", maxUnavailable="25%")


def _stateful_set(obj: Object) -> None:
    _workload(obj)
    spec = obj["spec"]
    _set(spec, podManagementPolicy="OrderedReady", updateStrategy={})
    _set(spec, persistentVolumeClaimRetentionPolicy={})
    _set(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")
    _set(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _set(spec["updateStrategy"].setdefault("rollingUpdate", {}), partition=0)


def _replica_set(obj: Object) -> None:
    _set(obj["spec"], replicas=1)
    pod_template(obj["spec"].get("template", {}))


def pod_template(template: Object) -> None:
    spec = template.get("spec")
    if spec is not None:
        _pod_spec(spec)


def _pod(obj: Object) -> None:
    spec = obj["spec"]
    _pod_spec(spec)
    _set(spec, enableServiceLinks=True, serviceAccountName="default", serviceAccount="default", priority=0)
    _set(spec, preemptionPolicy="PreemptLowerPriority")
    not_ready = [{"effect": "NoExecute", "key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in _TAINTS]
    present = {toleration.get("key") for toleration in spec.get("tolerations", ())}
    missing = [{**toleration, "tolerationSeconds": 300} for toleration in not_ready if toleration["key"] not in present]
    if missing:
        spec["tolerations"] = [*spec.get("tolerations", ()), *missing]
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}


_TAINTS = ("not-ready", "unreachable")


def _pod_spec(spec: Object) -> None:
    _set(spec, restartPolicy="Always", dnsPolicy="ClusterFirst", schedulerName="default-scheduler", securityContext={})
    _set(spec, terminationGracePeriodSeconds=30)
    if name := spec.get("serviceAccountName"):
        _set(spec, serviceAccount=name)
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        _container(container)
    for volume in spec.get("volumes", ()):
        _volume(volume)


def _container(container: Object) -> None:
    _, _, tag = container.get("image", "").rpartition("/")[2].partition(":")
    latest = "@" not in container.get("image", "") and tag in ("", "latest")
    _set(container, imagePullPolicy="Always" if latest else "IfNotPresent", resources={})
    _set(container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File")
    for port in container.get("ports", ()):
        _set(port, protocol="TCP")
    for variable in container.get("env", ()):
        if "fieldRef" in variable.get("valueFrom", {}):
            _set(variable["valueFrom"]["fieldRef"], apiVersion="v1")
        if "resourceFieldRef" in variable.get("valueFrom", {}):
            _set(variable["valueFrom"]["resourceFieldRef"], divisor="0")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe := container.get(name):
            _set(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            _action(probe)
    for hook in container.get("lifecycle", {}).values():
        if isinstance(hook, dict):
            _action(hook)


def _action(action: Object) -> None:
    if get := action.get("httpGet"):
        _set(get, path="/", scheme="HTTP")


def _volume(volume: Object) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if content := volume.get(source):
            _set(content, defaultMode=420)
    for item in volume.get("downwardAPI", {}).get("items", ()):
        if "fieldRef" in item:
            _set(item["fieldRef"], apiVersion="v1")


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _set(spec, internalTrafficPolicy="Cluster", ipFamilyPolicy="SingleStack", ipFamilies=["IPv4"])
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _set(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _set(spec, allocateLoadBalancerNodePorts=True)
    for port in spec.get("ports", ()):
        _set(port, protocol="TCP")
        _set(port, targetPort=port["port"])


def _secret(obj: Object) -> None:
    _set(obj, type="Opaque")


def _claim(obj: Object) -> None:
    _set(obj["spec"], volumeMode="Filesystem", storageClassName="standard")


def _network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
    for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
        for port in rule.get("ports", ()):
            _set(port, protocol="TCP")


def _autoscaler(obj: Object) -> None:
    _set(obj["spec"], minReplicas=1)


def _binding(obj: Object) -> None:
    for subject in obj.get("subjects", ()):
        if subject["kind"] != "ServiceAccount":
            _set(subject, apiGroup="rbac.authorization.k8s.io")


def _namespace(obj: Object) -> None:
    _set(obj, spec={"finalizers": ["kubernetes"]})
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


_BY_KIND: dict[str, Callable[[Object], None]] = {
    "Deployment": _deployment,
    "StatefulSet": _stateful_set,
    "ReplicaSet": _replica_set,
    "Pod": _pod,
    "Service": _service,
    "Secret": _secret,
    "PersistentVolumeClaim": _claim,
    "NetworkPolicy": _network_policy,
    "HorizontalPodAutoscaler": _autoscaler,
    "RoleBinding": _binding,
    "ClusterRoleBinding": _binding,
    "Namespace": _namespace,
}
