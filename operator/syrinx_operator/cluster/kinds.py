"""The kinds of object that the operator reads and writes, and where the API server keeps them."""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Struct

from syrinx_operator.resource.spec import API_VERSION
from syrinx_operator.resource.spec import KIND as PIPELINE_KIND


class Kind(Struct, frozen=True):
    """A namespaced kind."""

    api_version: str
    kind: str
    plural: str

    @property
    def group_path(self) -> str:
        """Where its group and version are discovered."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Of one object, or of all of a namespace or (None) of the cluster."""
        parts = [self.group_path]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/".join(parts)


PIPELINE = Kind(API_VERSION, PIPELINE_KIND, "ttspipelines")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")

WATCHED = (
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
)
"""What a plan consists of in every cluster; a change of one wakes its pipeline."""
OPTIONAL = (POD_MONITOR,)
"""What a plan may also hold where the cluster serves it."""

BY_KIND = {kind.kind: kind for kind in (*WATCHED, *OPTIONAL, PIPELINE, POD, SECRET, EVENT, LEASE, AUTOSCALER)}
