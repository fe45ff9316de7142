"""A Kubernetes cluster for tests: the API server, its controllers and a kubelet, in the test's process."""

from support.kube.cluster import KubeCluster
from support.kube.errors import ApiError
from support.kube.rights import Rights

__all__ = ["ApiError", "KubeCluster", "Rights"]
