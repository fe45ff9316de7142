"""The charts, rendered by the real Helm."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml
from helm_python import _native
from kubernetes_validate import utils

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
) -> dict[str, str]:
    """Returns a chart's rendered files by path in `templates/`. `serves` are additional APIs of the cluster.

    Raises `helm_python.HelmError`. Calls the native function because the binding's `render` has no such options.
    """
    values = values or {}
    if chart == "syrinx":
        values = values | {name: image | values.get(name, {}) for name, image in IMAGES.items()}
    options = {"name": name, "namespace": namespace, "api_versions": serves, "kube_version": "v1.30.0"}
    return _rendered(CHARTS / chart, json.dumps(values), json.dumps(options))


@cache
def _rendered(chart: Path, values: str, options: str) -> dict[str, str]:
    with helm_python.Chart.load(chart) as loaded:
        files = _native.call_string("helm_render", loaded._raw(), values, options)
    return {path.partition("/templates/")[2]: text for path, text in json.loads(files).items()}


def objects(chart: str, values: Object | None = None, **options: Any) -> list[Object]:
    """Returns the objects of a chart, including hooks. They are shared: a test does not change them."""
    files = sorted(rendered(chart, values, **options).items())
    return [manifest for file, text in files if file.endswith(".yaml") for manifest in parsed(text)]


@cache
def parsed(text: str) -> list[Object]:
    """Returns the objects of a file. They are shared."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def validate(manifest: Object, kubernetes: str) -> None:
    """Raises an error if an object of a built-in kind is not valid."""
    kubernetes_validate.validate(manifest, kubernetes, strict=True)


# Each validation would read megabytes of definitions again.
utils.schema_contents = cache(utils.schema_contents)


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
