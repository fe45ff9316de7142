"""Validation beyond types: immutable fields, names, and consistency between fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from support.kube.errors import invalid

Object = dict[str, Any]
Cause = tuple[str, str]

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_STATEFUL_MUTABLE = {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"} | {
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
}
_STATEFUL_MESSAGE = (
    "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' "
    "are forbidden"
)


def check(obj: Object, old: Object | None) -> None:
    """Raises ApiError 422 with all violations."""
    causes = [*_metadata(obj), *_content(obj)]
    if old is not None:
        causes += _immutable(obj, old)
    if causes:
        raise invalid(obj["kind"], obj["metadata"]["name"], *causes)


def _metadata(obj: Object) -> list[Cause]:
    meta, causes = obj["metadata"], []
    short = obj["kind"] in ("Service", "Namespace")
    free = obj["kind"] in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    if not free and (
        len(meta["name"]) > (63 if short else 253) or not (_LABEL if short else _SUBDOMAIN).match(meta["name"])
    ):
        causes.append(("metadata.name", f'Invalid value: "{meta["name"]}": not a valid DNS name'))
    causes += _labels("metadata.labels", meta.get("labels", {}))
    if sum(len(key) + len(value) for key, value in meta.get("annotations", {}).items()) > 262_144:
        causes.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    return causes


def _labels(path: str, labels: dict[str, str]) -> list[Cause]:
    return [
        (path, f'Invalid value: "{value}": a valid label must be 63 characters or less and match {_VALUE.pattern}')
        for value in labels.values()
        if not _VALUE.match(value) or len(value) > 63
    ]


def _content(obj: Object) -> list[Cause]:
    kind, spec = obj["kind"], obj.get("spec", {})
    if kind in ("Deployment", "StatefulSet", "ReplicaSet"):
        return _workload(spec)
    if kind == "Pod":
        return _pod_spec("spec", spec)
    if kind == "ConfigMap":
        size = sum(len(value) for value in obj.get("data", {}).values())
        return [("", "Too long: may not be more than 1048576 bytes")] if size > 1_048_576 else []
    if kind == "PodDisruptionBudget" and {"minAvailable", "maxUnavailable"} <= spec.keys():
        return [("spec", "Invalid value: minAvailable and maxUnavailable cannot be both set")]
    if kind == "Service" and len(spec.get("ports", ())) > 1 and not all(port.get("name") for port in spec["ports"]):
        return [("spec.ports[0].name", "Required value")]
    return []


def _workload(spec: Object) -> list[Cause]:
    wanted = spec["selector"].get("matchLabels", {})
    labels = spec["template"].get("metadata", {}).get("labels", {})
    causes = _labels("spec.template.metadata.labels", labels)
    if not wanted:
        causes.append(("spec.selector", "Invalid value: empty selector is invalid"))
    if not wanted.items() <= labels.items():
        causes.append(("spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"))
    if spec["template"]["spec"].get("restartPolicy") != "Always":
        causes.append(("spec.template.spec.restartPolicy", 'Unsupported value: supported values: "Always"'))
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
    return causes + _pod_spec("spec.template.spec", spec["template"]["spec"], claims)


def _pod_spec(path: str, spec: Object, claims: Sequence[str] = ()) -> list[Cause]:
    """`claims`: names of volumes that a StatefulSet adds."""
    causes: list[Cause] = []
    volumes = [*(volume["name"] for volume in spec.get("volumes", ())), *claims]
    for index, name in enumerate(volumes):
        if not _LABEL.match(name):
            causes.append((f"{path}.volumes[{index}].name", f'Invalid value: "{name}"'))
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            causes += _container(f"{path}.{field}[{index}]", container, volumes)
    return causes


def _container(path: str, container: Object, volumes: list[str]) -> list[Cause]:
    causes: list[Cause] = []
    if not container.get("image"):
        causes.append((f"{path}.image", "Required value"))
    for index, mount in enumerate(container.get("volumeMounts", ())):
        if mount["name"] not in volumes:
            causes.append((f"{path}.volumeMounts[{index}].name", f'Not found: "{mount["name"]}"'))
    for index, port in enumerate(container.get("ports", ())):
        if len(port.get("name", "")) > 15:
            causes.append((f"{path}.ports[{index}].name", "Too long: may not be more than 15 bytes"))
    for index, variable in enumerate(container.get("env", ())):
        if variable.get("value") and variable.get("valueFrom"):
            causes.append(
                (f"{path}.env[{index}].valueFrom", "Invalid value: may not be specified when `value` is not empty")
            )
    for probe in ("livenessProbe", "startupProbe"):
        if container.get(probe, {}).get("successThreshold", 1) != 1:
            causes.append((f"{path}.{probe}.successThreshold", "Invalid value: must be 1"))
    limits = container.get("resources", {}).get("limits", {})
    for name, wanted in container.get("resources", {}).get("requests", {}).items():
        if "/" in name and limits.get(name) != wanted:
            causes.append((f"{path}.resources.requests[{name}]", "Invalid value: must be equal to the limit"))
    return causes


def _immutable(obj: Object, old: Object) -> list[Cause]:
    kind, spec, before = obj["kind"], obj.get("spec", {}), old.get("spec", {})
    if kind == "StatefulSet":
        return (
            [("spec", _STATEFUL_MESSAGE)]
            if _without(spec, _STATEFUL_MUTABLE) != _without(before, _STATEFUL_MUTABLE)
            else []
        )
    if kind in ("Deployment", "ReplicaSet") and spec["selector"] != before["selector"]:
        return [("spec.selector", "Invalid value: field is immutable")]
    if kind == "Service" and spec.get("clusterIP") != before.get("clusterIP") and before.get("clusterIP"):
        return [("spec.clusterIPs[0]", "Invalid value: may not change once set")]
    if kind == "PersistentVolumeClaim" and _claim(spec) != _claim(before):
        return [("spec", "Forbidden: spec is immutable after creation except resources.requests for bound claims")]
    if kind in ("Secret", "ConfigMap") and old.get("immutable") and obj.get("data") != old.get("data"):
        return [("data", "Forbidden: field is immutable when `immutable` is set")]
    if kind == "Secret" and obj.get("type") != old.get("type"):
        return [("type", "Invalid value: field is immutable")]
    if kind in ("RoleBinding", "ClusterRoleBinding") and obj["roleRef"] != old["roleRef"]:
        return [("roleRef", "Invalid value: cannot change roleRef")]
    if kind == "Pod" and _pod(spec) != _pod(before):
        return [("spec", "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, …")]
    return []


def _without(spec: Object, fields: set[str]) -> Object:
    return {key: value for key, value in spec.items() if key not in fields}


def _claim(spec: Object) -> Object:
    return _without(spec, {"resources", "volumeName", "volumeAttributesClassName"})


def _pod(spec: Object) -> Object:
    images = [_without(container, {"image"}) for container in spec["containers"]]
    return {**_without(spec, {"tolerations", "terminationGracePeriodSeconds", "nodeName"}), "containers": images}
