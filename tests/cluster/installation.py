"""Installs CRD, RBAC and operator from the charts, creates pipelines, and uninstalls everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import helm_python
import yaml

from cluster.client import ApiError, Kubernetes, Object, wait_until
from cluster.operators import Operator, OperatorPod, OperatorProcess
from cluster.parameters import Parameters
from cluster.speech import condition
from syrinx_operator import __version__

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RELEASE = "syrinx"
REMOVED_SECONDS = 180.0
ANYWHERE = {"cidr": "0.0.0.0/0"}
"""Peers of admin and settings ports if the operator runs outside: the API server's proxy has a node's address."""
SHOWN = ("Ready", "GatewayReady", "TalkerReady", "CodecReady", "ConnectorReady", "Progressing", "Degraded")


class Installation:
    """The charts' objects in the test namespace and a running operator."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.cluster = Kubernetes(parameters.namespace)
        self.made: list[Object] = []
        """Objects to delete at the end, in creation order."""
        self.operator: Operator = OperatorProcess(self.cluster, "", parameters)

    def install(self) -> None:
        """Creates namespace, CRD, chart objects and operator; existing objects are kept at uninstall."""
        self._make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.parameters.namespace}})
        for manifest in self._rendered("syrinx-crds", {}):
            self._make(manifest)
        wait_until("the CRD to be established", 60, self._established)
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
            self.operator = OperatorProcess(self.cluster, account, self.parameters)
        self.operator.start()

    def uninstall(self) -> None:
        """Deletes what `install` has created, newest first."""
        self.operator.kill()
        for manifest in reversed(self.made):
            self.cluster.delete(manifest["kind"], manifest["metadata"]["name"])
        for manifest in self.made:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            wait_until(f"{kind} {name} to be gone", REMOVED_SECONDS, lambda k=kind, n=name: not self.cluster.get(k, n))

    def create(self, name: str, **spec: object) -> None:
        """Applies `examples/pipeline.yaml` with a name and this cluster's images and storage."""
        pipeline = yaml.safe_load((EXAMPLES / "pipeline.yaml").read_text())
        pipeline["metadata"] = {"name": name}
        pipeline["spec"]["imagePullPolicy"] = self.parameters.pull_policy
        if self.parameters.pull_secret:
            pipeline["spec"]["imagePullSecrets"] = [{"name": self.parameters.pull_secret}]
        if not self.parameters.operator_image:
            pipeline["spec"]["monitoring"] = {"allowFrom": [ANYWHERE]}
        merge(pipeline["spec"], spec)
        self.cluster.apply(pipeline)

    def edit(self, name: str, spec: Object) -> None:
        """`kubectl patch ttsp NAME --type merge`."""
        self.cluster.patch("TTSPipeline", name, {"spec": spec})

    def wait_ready(self, name: str) -> Object:
        """Waits until the newest generation is Ready and not Progressing."""

        def ready() -> Object | None:
            body = self.cluster.get("TTSPipeline", name) or {}
            seen = body.get("status", {}).get("observedGeneration") == body.get("metadata", {}).get("generation")
            settled = condition(body, "Progressing").get("status") != "True"
            return body if seen and settled and condition(body, "Ready").get("status") == "True" else None

        try:
            body: Object = wait_until(f"{name} to be Ready", self.parameters.ready_seconds, ready)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe(name)}") from None
        return body

    def remove(self, name: str) -> None:
        """Deletes a pipeline and waits until it is gone."""
        if self.parameters.keep:
            return
        self.cluster.delete("TTSPipeline", name)
        wait_until(f"{name} to be gone", REMOVED_SECONDS, lambda: self.cluster.get("TTSPipeline", name) is None)

    def describe(self, name: str) -> str:
        """Returns conditions, pods, Events and logs as text."""
        lines = [f"=== {name} in {self.cluster.namespace}"]
        body = self.cluster.get("TTSPipeline", name)
        lines += [f"{kind}: {condition(body, kind)}" for kind in SHOWN]
        for pod in self.cluster.list("Pod", f"syrinx.dev/pipeline={name}"):
            lines.append(f"--- pod {pod['metadata']['name']}: {json.dumps(pod.get('status', {}))[:1500]}")
            lines.append(self.cluster.logs(pod["metadata"]["name"]))
        for event in self.cluster.list("Event")[-40:]:
            about = event["involvedObject"]
            lines.append(f"event {about['kind']}/{about.get('name')}: {event.get('reason')}: {event.get('message')}")
        lines += ["--- operator", self.operator.logs()]
        return "\n".join(lines)

    def _make(self, manifest: Object) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if self.cluster.get(kind, name) is None:
            self.made.append(manifest)
        self.cluster.apply(manifest)

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


def image(reference: str) -> Object:
    """Returns an image reference in the format of the charts' values."""
    repository, _, digest = reference.partition("@")
    if digest:
        return {"repository": repository, "digest": digest}
    path, slash, last = repository.rpartition("/")
    name, _, tag = last.partition(":")
    return {"repository": f"{path}{slash}{name}", "tag": tag or "latest"}


def merge(into: Object, change: Object) -> None:
    """Applies a merge patch in place."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value
