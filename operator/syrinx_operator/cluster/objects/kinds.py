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

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the API path of an object, of all objects in a namespace, or of all in the cluster (None)."""
        within = [] if namespace is None else ["namespaces", namespace]
        parts = [*within, self.plural, *filter(None, (name, subresource))]
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

PLANNED = (
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("batch/v1", "Job", "jobs"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    INGRESS,
    AUTOSCALER,
)
"""Kinds of a plan in every cluster."""
OPTIONAL = (POD_MONITOR, HTTP_ROUTE, SCALED_OBJECT)
"""Kinds of a plan if the cluster serves them."""

CHILDREN = (POD, *PLANNED, *OPTIONAL)
"""Kinds of objects that carry a pipeline's label; a change to such an object triggers a reconcile."""
WATCHED = (PIPELINE, *CHILDREN)
UNLABELED = (PIPELINE, AUTOSCALER)
"""Of these all objects are watched: autoscalers of others may set the replicas of a pipeline."""

BY_KIND = {kind.kind: kind for kind in (*WATCHED, SECRET, EVENT, LEASE)}
