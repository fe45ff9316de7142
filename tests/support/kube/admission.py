"""Admission of new objects: namespaces, and pod security."""

from __future__ import annotations

from typing import Any

from support.kube.errors import forbidden
from support.kube.kinds import Kind

Object = dict[str, Any]


def into_namespace(kind: Kind, new: Object, namespace: Object) -> None:
    """Raises ApiError 403 if the namespace does not admit the pod."""
    name = new["metadata"]["name"]
    restricted = namespace["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") == "restricted"
    problems = _unrestricted(new["spec"]) if restricted and kind.kind == "Pod" else []
    if problems:
        detail = f'violates PodSecurity "restricted:latest": {", ".join(problems)}'
        raise forbidden(f'pods "{name}" is forbidden: {detail}')


def complete(new: Object) -> None:
    """Sets the defaults that only new objects get, in place."""
    if new["kind"] == "Pod":
        new.setdefault("status", {"phase": "Pending", "qosClass": "Burstable"})
    if new["kind"] == "PersistentVolumeClaim":
        meta = new["metadata"]
        meta["finalizers"] = [*meta.get("finalizers", ()), "kubernetes.io/pvc-protection"]
        new["status"] = {"phase": "Pending"}


def _unrestricted(spec: Object) -> list[str]:
    """Returns violations of the restricted pod security level."""
    problems = [f"host namespaces ({field}=true)" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec.get("volumes", ()):
        if not volume.keys() - {"name"} <= allowed:
            problems.append(f'restricted volume types (volume "{volume["name"]}")')
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        problems += [f'{problem} (container "{container["name"]}")' for problem in _loose(spec, container)]
    return problems


def _loose(spec: Object, container: Object) -> list[str]:
    own, shared = container.get("securityContext", {}), spec.get("securityContext", {})
    both = {**shared, **own}
    capabilities = own.get("capabilities", {})
    wrong = {
        "allowPrivilegeEscalation != false": own.get("allowPrivilegeEscalation") is not False,
        "privileged": own.get("privileged", False),
        "unrestricted capabilities": "ALL" not in capabilities.get("drop", ())
        or bool(set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}),
        "runAsNonRoot != true": both.get("runAsNonRoot") is not True,
        "runAsUser=0": both.get("runAsUser") == 0,
        "seccompProfile": both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
        "host ports": any(port.get("hostPort") for port in container.get("ports", ())),
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]
