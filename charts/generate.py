"""Writes what is made from the charts: the CRD chart's copy of the definition, and `deploy/`, for people without Helm.

`python charts/generate.py`, after the definition itself. A test holds the files to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
DEFINITION: Final = "ttspipelines.syrinx.dev.yaml"
NAMESPACE: Final = "syrinx"
RELEASE: Final = "syrinx"
HEADER: Final = "# Made by `make generate` from charts/; change those.\n"

# Hooks are Helm's own, dashboards and monitors are for those who chose their monitoring.
_VALUES: Final[dict[str, Any]] = {"tests": {"enabled": False}, "dashboards": {"enabled": False}}
_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": NAMESPACE,
        "labels": {
            "app.kubernetes.io/part-of": "syrinx",
            **{f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")},
        },
    },
}


def generated() -> dict[str, str]:
    """The files' contents by path below the project."""
    return {
        f"charts/syrinx-crds/files/{DEFINITION}": (ROOT / "crds" / DEFINITION).read_text(),
        "deploy/common/namespace.yaml": _documents([_NAMESPACE]),
        "deploy/common/resource.yaml": _documents(_rendered("syrinx-crds", {"keep": False})),
        "deploy/operator.yaml": _documents(_rendered("syrinx", _VALUES)),
        "deploy/cluster-wide/operator.yaml": _documents(_rendered("syrinx", {**_VALUES, "clusterWide": True})),
    }


def _rendered(chart: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """A chart's objects, without what only Helm reads."""
    with helm_python.Chart.load(ROOT / "charts" / chart) as loaded:
        files = loaded.render(values, name=RELEASE, namespace=NAMESPACE)
    manifests = [
        manifest
        for file, text in sorted(files.items())
        if file.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]
    for manifest in manifests:
        _strip(manifest["metadata"])
        if manifest["kind"] == "Deployment":
            _strip(manifest["spec"]["template"]["metadata"])
    return manifests


def _strip(metadata: dict[str, Any]) -> None:
    for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        metadata["labels"].pop(label, None)


def _documents(manifests: list[dict[str, Any]]) -> str:
    return HEADER + yaml.safe_dump_all(manifests, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    # The CRD chart is rendered from its own copy.
    copy = ROOT / "charts/syrinx-crds/files" / DEFINITION
    copy.parent.mkdir(exist_ok=True)
    copy.write_text((ROOT / "crds" / DEFINITION).read_text())
    for path, content in generated().items():
        (ROOT / path).write_text(content)
