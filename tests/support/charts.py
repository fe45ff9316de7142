"""The charts, rendered by the real Helm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helm_python
import yaml
from helm_python import _native

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
IMAGES = {
    "image": {"repository": "registry.example/operator"},
    "stagesImage": {"repository": "registry.example/stages"},
}
"""Values that the operator's chart requires."""
MONITORING = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"))


def rendered(
    chart: str,
    values: Object | None = None,
    *,
    name: str = "syrinx",
    namespace: str = "speech",
    serves: tuple[str, ...] = (),
    kubernetes: str = "v1.30.0",
) -> dict[str, str]:
    """Returns a chart's rendered files by path in `templates/`. `serves` are additional APIs of the cluster.

    Raises `helm_python.HelmError`. Calls the native function because the binding's `render` has no such options.
    """
    values = values or {}
    if chart == "syrinx":
        values = values | {name: image | values.get(name, {}) for name, image in IMAGES.items()}
    options = {"name": name, "namespace": namespace, "api_versions": serves, "kube_version": kubernetes}
    with helm_python.Chart.load(CHARTS / chart) as loaded:
        files = _native.call_string("helm_render", loaded._raw(), json.dumps(values), json.dumps(options))
    return {path.partition("/templates/")[2]: text for path, text in json.loads(files).items()}


def objects(chart: str, values: Object | None = None, **options: Any) -> list[Object]:
    """Returns the objects of a chart, including hooks."""
    return [
        manifest
        for file, text in sorted(rendered(chart, values, **options).items())
        if file.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def is_hook(manifest: Object) -> bool:
    """Returns whether an object is a hook of `helm test`."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def of_kind(manifests: list[Object], *kinds: str) -> list[Object]:
    """Returns the objects of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def one(manifests: list[Object], kind: str) -> Object:
    """Returns the only object of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def pods(manifests: list[Object]) -> list[Object]:
    """Returns the pods of the objects, including one of each Deployment."""
    made = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
    for workload in of_kind(manifests, "Deployment"):
        template = workload["spec"]["template"]
        metadata = {**template["metadata"], "name": f"{workload['metadata']['name']}-0"}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return made
