"""The served kinds."""

from __future__ import annotations

import hashlib
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
    short: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    generation: bool = False
    """Whether metadata.generation counts spec changes."""
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

    def path(self, namespace: str | None, name: str = "") -> str:
        """Returns the URL path of an object or of all objects."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


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
        tuple(names.get("shortNames", ())),
        frozenset(version.get("subresources", {})),
        generation=True,
        former=frozenset(each["name"] for each in crd["spec"]["versions"] if each["served"]) - {version["name"]},
        crd=crd,
        crd_digest=hashlib.sha256(msgspec.json.encode(crd["spec"])).hexdigest(),
    )


def _core(plural: str, kind: str, *subresources: str, namespaced: bool = True) -> Kind:
    return Kind("", "v1", plural, kind, namespaced, subresources=frozenset(subresources))


def _of(group: str, plural: str, kind: str, *subresources: str, namespaced: bool = True, version: str = "v1") -> Kind:
    return Kind(group, version, plural, kind, namespaced, (), frozenset(subresources), generation=True)


BUILTIN = (
    _core("namespaces", "Namespace", "status", namespaced=False),
    _core("nodes", "Node", "status", namespaced=False),
    _core("pods", "Pod", "status", "log", "proxy", "eviction"),
    _core("services", "Service", "status"),
    _core("configmaps", "ConfigMap"),
    _core("secrets", "Secret"),
    _core("serviceaccounts", "ServiceAccount"),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", "status"),
    _core("events", "Event"),
    _of("events.k8s.io", "events", "Event"),
    _of("apps", "deployments", "Deployment", "status", "scale"),
    _of("apps", "replicasets", "ReplicaSet", "status", "scale"),
    _of("apps", "statefulsets", "StatefulSet", "status", "scale"),
    _of("apps", "controllerrevisions", "ControllerRevision"),
    _of("batch", "jobs", "Job", "status"),
    _of("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "status", version="v2"),
    _of("policy", "poddisruptionbudgets", "PodDisruptionBudget", "status"),
    _of("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
    _of("networking.k8s.io", "ingresses", "Ingress", "status"),
    _of("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    _of("coordination.k8s.io", "leases", "Lease"),
    _of("storage.k8s.io", "storageclasses", "StorageClass", namespaced=False),
    _of("rbac.authorization.k8s.io", "roles", "Role"),
    _of("rbac.authorization.k8s.io", "rolebindings", "RoleBinding"),
    _of("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", namespaced=False),
    _of("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _of(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "status",
        namespaced=False,
    ),
)

POD_MONITOR_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {
            "kind": "PodMonitor",
            "plural": "podmonitors",
            "singular": "podmonitor",
            "listKind": "PodMonitorList",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}
"""An optional kind, for clusters with the Prometheus operator."""


class Kinds:
    """The currently served kinds, including custom ones."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        """`without` names API groups that this cluster does not serve."""
        self._kinds = {(kind.group, kind.plural): kind for kind in BUILTIN if kind.group not in without}
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
            for name in (kind.kind.lower(), kind.plural, kind.resource, *kind.short):
                self._by_name.setdefault(name, kind)
            for version in kind.api_versions:
                self._by_version.setdefault((version, kind.kind), kind)

    def __iter__(self):
        return iter(self._kinds.values())

    def at(self, group: str, version: str, plural: str) -> Kind | None:
        kind = self._kinds.get((group, plural))
        return kind if kind and version in (kind.version, *kind.former) else None

    def named(self, name: str) -> Kind:
        """Returns a resource by kind, plural or short name. Raises KeyError."""
        return self._by_name[name.lower()]

    def of(self, obj: dict[str, Any]) -> Kind:
        """Returns a resource by group and plural. Raises KeyError."""
        return self._by_version[obj.get("apiVersion", ""), obj.get("kind", "")]
