"""Installs CRD, RBAC and operator from the charts, and uninstalls everything."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import helm_python
import yaml

from cluster.client import ApiError, Kubernetes, Object, wait_until
from cluster.operators import Operator, OperatorPod, OperatorProcess
from cluster.parameters import Parameters
from syrinx_operator import __version__

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RELEASE = "syrinx"
REMOVED_SECONDS = 180.0


class Installation:
    """The charts' objects in the test namespace and a running operator."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.cluster = Kubernetes(parameters.namespace)
        self.other = Kubernetes(f"{parameters.namespace}-other")
        """Another namespace that the operator watches."""
        self.made: list[Object] = []
        """Objects to delete at the end, in creation order."""
        self.operator: Operator = OperatorProcess(self.cluster, "", parameters, self.namespaces)

    def install(self) -> None:
        """Creates namespaces, CRD, chart objects and operator; existing objects are kept at uninstall."""
        for namespace in self.namespaces:
            self._make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.define()
        account, deployment = "", None
        for manifest in self._rendered("syrinx", self._values()):
            if manifest["kind"] == "Deployment":
                deployment = manifest
                continue
            if manifest["kind"] == "ServiceAccount":
                account = manifest["metadata"]["name"]
            self._make(manifest)
        assert deployment is not None, "the chart has a Deployment"
        if self.parameters.operator_image:
            self.made.append(deployment)
            self.operator = OperatorPod(self.cluster, deployment, self.parameters)
        else:
            self.operator = OperatorProcess(self.cluster, account, self.parameters, self.namespaces)
        self.operator.start()

    def define(self) -> None:
        """Installs the CRD, and waits until it is served."""
        for manifest in self._rendered("syrinx-crds", {}):
            self._make(manifest)
        wait_until("the CRD to be established", 60, self._established)

    def uninstall(self) -> None:
        """Deletes what `install` has created, newest first."""
        self.operator.kill()
        for manifest in reversed(self.made):
            self._cluster_of(manifest).delete(manifest["kind"], manifest["metadata"]["name"])
        for manifest in self.made:
            cluster, kind, name = self._cluster_of(manifest), manifest["kind"], manifest["metadata"]["name"]
            wait_until(f"{kind} {name} to be gone", REMOVED_SECONDS, partial(is_gone, cluster, kind, name))

    def permit(self) -> None:
        """Creates the objects of the chart that give the operator its rights, where they are missing."""
        for manifest in self._rendered("syrinx", self._values()):
            if manifest["kind"] in ("Role", "RoleBinding"):
                self._cluster_of(manifest).apply(manifest)

    @property
    def namespaces(self) -> tuple[str, str]:
        """The namespaces that the operator watches."""
        return self.cluster.namespace, self.other.namespace

    def _make(self, manifest: Object) -> None:
        cluster, kind, name = self._cluster_of(manifest), manifest["kind"], manifest["metadata"]["name"]
        if cluster.get(kind, name) is None:
            self.made.append(manifest)
        cluster.apply(manifest)

    def _cluster_of(self, manifest: Object) -> Kubernetes:
        """Returns the client for the namespace of an object."""
        is_other = manifest["metadata"].get("namespace") == self.other.namespace
        return self.other if is_other else self.cluster

    def _established(self) -> bool:
        try:
            self.cluster.list("TTSPipeline")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _values(self) -> Object:
        # The chart requires an image, also where the operator runs from this checkout.
        operator_image = self.parameters.operator_image or f"syrinx/operator:{__version__}"
        values: Object = {
            "image": {**image(operator_image), "pullPolicy": self.parameters.pull_policy},
            "stagesImage": image(self.parameters.stages_image),
            "redisImage": image(self.parameters.redis_image),
            "watchNamespaces": list(self.namespaces),
            "stageAccess": "direct" if self.parameters.operator_image else "proxy",
        }
        if self.parameters.pull_secret:
            values["imagePullSecrets"] = [{"name": self.parameters.pull_secret}]
        return values

    def _rendered(self, chart: str, values: Object) -> Iterator[Object]:
        """Yields a chart's objects without hooks, in Helm's install order."""
        loaded = helm_python.Chart.load(ROOT / "charts" / chart)
        files = loaded.render(values, name=RELEASE, namespace=self.parameters.namespace, is_install=True)
        manifests = [
            manifest
            for file, text in sorted(files.items())
            if file.endswith(".yaml")
            for manifest in yaml.safe_load_all(text)
            if manifest and "helm.sh/hook" not in manifest["metadata"].get("annotations", {})
        ]
        order = {"ServiceAccount": 0, "ClusterRole": 1, "Role": 1, "ClusterRoleBinding": 2, "RoleBinding": 2}
        yield from sorted(manifests, key=lambda manifest: order.get(manifest["kind"], 3))


def is_gone(cluster: Kubernetes, kind: str, name: str) -> bool:
    """Returns whether an object does not exist."""
    return cluster.get(kind, name) is None


def image(reference: str) -> Object:
    """Returns an image reference in the format of the charts' values."""
    repository, _, digest = reference.partition("@")
    if digest:
        return {"repository": repository, "digest": digest}
    path, slash, last = repository.rpartition("/")
    name, _, tag = last.partition(":")
    return {"repository": f"{path}{slash}{name}", "tag": tag or "latest"}
