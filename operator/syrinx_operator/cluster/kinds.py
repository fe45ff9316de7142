"""The Kubernetes kinds that the operator uses."""

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
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def group_path(self) -> str:
        """Discovery path of its group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the API path of an object or of all objects in a namespace."""
        parts = ["namespaces", namespace, self.plural, *filter(None, (name, subresource))]
        return "/".join([self.group_path, *(quote(part, safe="") for part in parts)])


PIPELINE = Kind(API_VERSION, PIPELINE_KIND, "ttspipelines")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
INGRESS = Kind("networking.k8s.io/v1", "Ingress", "ingresses")
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
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
    INGRESS,
)
"""Kinds of a plan in every cluster; a change to such an object triggers a reconcile."""
OPTIONAL = (POD_MONITOR, HTTP_ROUTE, AUTOSCALER, SCALED_OBJECT)
"""Kinds of a plan if the cluster serves them."""

BY_KIND = {kind.kind: kind for kind in (*WATCHED, *OPTIONAL, PIPELINE, POD, SECRET, EVENT, LEASE)}
