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
    """A chart's files by path below `templates/`, for a cluster of a version that `serves` more APIs than its own.

    Raises `helm_python.HelmError`. The binding's own `render` has no word for a cluster's version and APIs.
    """
    options = {"name": name, "namespace": namespace, "api_versions": serves, "kube_version": kubernetes}
    with helm_python.Chart.load(CHARTS / chart) as loaded:
        files = _native.call_string("helm_render", loaded._raw(), json.dumps(values or {}), json.dumps(options))
    return {path.partition("/templates/")[2]: text for path, text in json.loads(files).items()}


def objects(chart: str, values: Object | None = None, **options: Any) -> list[Object]:
    """What a chart makes, hooks too."""
    return [
        manifest
        for file, text in sorted(rendered(chart, values, **options).items())
        if file.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def is_hook(manifest: Object) -> bool:
    """Whether it is there only for `helm test`."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def of_kind(manifests: list[Object], *kinds: str) -> list[Object]:
    """Those of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def one(manifests: list[Object], kind: str) -> Object:
    """The only one of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def pods(manifests: list[Object]) -> list[Object]:
    """The pods that come of it, as they would be made."""
    made = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
    for workload in of_kind(manifests, "Deployment"):
        template = workload["spec"]["template"]
        metadata = {**template["metadata"], "name": f"{workload['metadata']['name']}-0"}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return made
