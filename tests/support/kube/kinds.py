"""The served kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from support.kube import schemas


@dataclass(frozen=True)
class Kind:
    """A served resource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    former: frozenset[str] = frozenset()
    """Other served versions of a custom kind, which are converted by their name alone."""
    crd: Any = field(default=None, compare=False, hash=False, repr=False)
    """The CustomResourceDefinition of a custom kind."""
    crd_digest: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def api_versions(self) -> frozenset[str]:
        """All served versions."""
        return frozenset({self.api_version, *(f"{self.group}/{version}" for version in self.former)})

    @property
    def resource(self) -> str:
        """The resource as in messages: `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def titled(self) -> str:
        """The kind as in validation messages: `Deployment.apps`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @cached_property
    def schema(self) -> dict[str, Any]:
        if self.crd is None:
            return schemas.builtin(self.group, self.version, self.kind)
        return schemas.custom(crd_version(self.crd)["schema"]["openAPIV3Schema"])


def crd_version(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(version for version in crd["spec"]["versions"] if version["storage"])
    return found


def from_crd(crd: dict[str, Any]) -> Kind:
    names, version = crd["spec"]["names"], crd_version(crd)
    return Kind(
        crd["spec"]["group"],
        version["name"],
        names["plural"],
        names["kind"],
        crd["spec"]["scope"] == "Namespaced",
        frozenset(version.get("subresources", {})),
        former=frozenset(each["name"] for each in crd["spec"]["versions"] if each["served"]) - {version["name"]},
        crd=crd,
        crd_digest=hashlib.sha256(msgspec.json.encode(crd["spec"])).hexdigest(),
    )


_CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
_IRREGULAR = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}
_BUILTIN = {
    "v1": {
        "Namespace": "",
        "Pod": "status log proxy",
        "Service": "",
        "ConfigMap": "",
        "Secret": "",
        "ServiceAccount": "",
        "PersistentVolumeClaim": "status",
        "Event": "",
    },
    "apps/v1": {"Deployment": "status scale", "StatefulSet": "status scale"},
    "batch/v1": {"Job": "status"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "status"},
    "policy/v1": {"PodDisruptionBudget": "status"},
    "networking.k8s.io/v1": {"NetworkPolicy": "", "Ingress": "status"},
    "coordination.k8s.io/v1": {"Lease": ""},
    "rbac.authorization.k8s.io/v1": {"Role": "", "RoleBinding": "", "ClusterRole": "", "ClusterRoleBinding": ""},
    "apiextensions.k8s.io/v1": {"CustomResourceDefinition": ""},
}
"""Subresources by version and kind."""


def _builtin() -> Iterator[Kind]:
    for api_version, kinds in _BUILTIN.items():
        group, _, version = api_version.rpartition("/")
        for kind, subresources in kinds.items():
            plural = _IRREGULAR.get(kind, f"{kind.lower()}s")
            yield Kind(group, version, plural, kind, kind not in _CLUSTER_WIDE, frozenset(subresources.split()))


_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_POD_MONITOR = {"type": "object", "required": ["spec"], "properties": {"spec": _ANY}}
POD_MONITOR_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _POD_MONITOR}}],
    },
}
"""An optional kind, for clusters with the Prometheus operator."""


class Kinds:
    """The currently served kinds, including custom ones."""

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.plural): kind for kind in _builtin()}
        self._index()

    def add(self, kind: Kind) -> None:
        self._kinds[kind.group, kind.plural] = kind
        self._index()

    def drop(self, kind: Kind) -> None:
        self._kinds.pop((kind.group, kind.plural), None)
        self._index()

    def _index(self) -> None:
        self._by_name: dict[str, Kind] = {}
        self._by_version: dict[tuple[str, str], Kind] = {}
        for kind in self._kinds.values():
            for name in (kind.kind.lower(), kind.plural):
                self._by_name.setdefault(name, kind)
            for version in kind.api_versions:
                self._by_version.setdefault((version, kind.kind), kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def at(self, group: str, version: str, plural: str) -> Kind | None:
        kind = self._kinds.get((group, plural))
        return kind if kind and version in (kind.version, *kind.former) else None

    def named(self, name: str) -> Kind:
        """Returns a resource by kind or plural. Raises KeyError."""
        return self._by_name[name.lower()]

    def of(self, obj: dict[str, Any]) -> Kind:
        """Returns a resource by group and plural. Raises KeyError."""
        return self._by_version[obj.get("apiVersion", ""), obj.get("kind", "")]
