"""`helm upgrade` from the previous version of the charts: nothing disappears, and nothing immutable changes.

`tests/fixtures/charts/previous` has that version's values, and what an upgrade may not change of its objects. At a
release:

    PREVIOUS=write python -m pytest tests/charts/test_upgrade.py
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import charts
from support.charts import CHARTS, MONITORING, Object, is_hook, objects, one

CRD = "CustomResourceDefinition"
PREVIOUS = Path(__file__).parents[1] / "fixtures" / "charts" / "previous"
IMMUTABLE = {
    "Deployment": ("spec.selector",),
    "Service": ("spec.clusterIP",),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    CRD: ("spec.group", "spec.names.plural", "spec.names.kind", "spec.scope"),
}
"""Fields that the API server does not let an upgrade change, by kind; other kinds of these charts have none."""
CHOICES: dict[str, Object] = {
    "defaults": {},
    "cluster-wide": {"clusterWide": True},
    "namespaces": {"watchNamespaces": ["voices", "books"]},
    "two operators": {"replicas": 2},
}
REMOVED: frozenset[str] = frozenset()
"""Objects that the new version deletes on purpose, as in the changelog."""
EVERY = pytest.mark.parametrize("choice", CHOICES)


def summary(manifests: list[Object]) -> dict[str, Object]:
    """Returns the immutable fields of all objects but hooks, by kind, namespace and name."""
    return {
        "/".join(filter(None, (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]))): {
            field: at(each, field) for field in IMMUTABLE.get(each["kind"], ()) if at(each, field) is not None
        }
        for each in manifests
        if not is_hook(each)
    }


def at(manifest: Object, path: str) -> Any:
    """Returns the value of a field by its path; None if it is absent."""
    value: Any = manifest
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def versions(crd: Object) -> dict[str, Object]:
    """Returns which versions of a CRD are served and stored."""
    return {each["name"]: {"served": each["served"], "storage": each["storage"]} for each in crd["spec"]["versions"]}


def current() -> Object:
    """Returns the summary of the charts in this tree."""
    resource = objects("syrinx-crds")
    operators = {name: summary(made(values)) for name, values in CHOICES.items()}
    return {"syrinx": operators, "syrinx-crds": summary(resource), "versions": versions(one(resource, CRD))}


@pytest.fixture(scope="module")
def previous() -> Object:
    path = PREVIOUS / "objects.yaml"
    if os.environ.get("PREVIOUS") == "write":
        path.write_text(yaml.safe_dump(current(), sort_keys=False, width=120))
        shutil.copy(CHARTS / "syrinx" / "values.yaml", PREVIOUS / "values.yaml")
    found: Object = yaml.safe_load(path.read_text())
    return found


def made(values: Object) -> list[Object]:
    return objects("syrinx", values, serves=MONITORING)


def assert_upgradable(before: dict[str, Object], manifests: list[Object]) -> None:
    after = summary(manifests)
    assert before.keys() - after.keys() <= REMOVED, "an object disappears"
    changed = {
        name: (before[name], after[name]) for name in before.keys() & after.keys() if before[name] != after[name]
    }
    assert changed == {}, "the API server refuses the upgrade"


@EVERY
def test_the_operator_can_be_upgraded(previous: Object, choice: str) -> None:
    assert_upgradable(previous["syrinx"][choice], made(CHOICES[choice]))


@EVERY
def test_all_values_of_the_previous_version_are_accepted(previous: Object, choice: str) -> None:
    """As by `helm upgrade -f` with a copy of its values.yaml."""
    values = yaml.safe_load((PREVIOUS / "values.yaml").read_text()) | CHOICES[choice]
    for image in charts.IMAGES:
        values[image].pop("repository")
    assert_upgradable(previous["syrinx"][choice], made(values))


@EVERY
def test_an_upgrade_may_reuse_the_values(
    previous: Object, choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--reuse-values` the chart's new defaults do not exist."""
    shutil.copytree(CHARTS, tmp_path / "charts")
    shutil.copy(PREVIOUS / "values.yaml", tmp_path / "charts" / "syrinx" / "values.yaml")
    monkeypatch.setattr(charts, "CHARTS", tmp_path / "charts")
    assert_upgradable(previous["syrinx"][choice], made(CHOICES[choice]))


def test_the_resource_can_be_upgraded(previous: Object) -> None:
    resource = objects("syrinx-crds")
    assert_upgradable(previous["syrinx-crds"], resource)
    crd = one(resource, CRD)
    served = versions(crd)
    for version, before in previous["versions"].items():
        assert version in served and served[version]["served"] >= before["served"], "stored objects need it"
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "uninstalling keeps the pipelines"


@EVERY
def test_selectors_match_the_pods_of_the_previous_version(previous: Object, choice: str) -> None:
    """A Service or budget whose selector changed would lose the operator that still runs."""
    found = made(CHOICES[choice])
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    (before,) = (fields for name, fields in previous["syrinx"][choice].items() if name.startswith("Deployment/"))
    pods = before["spec.selector"]["matchLabels"]
    assert pods.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    for service in (each for each in found if each["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= pods.items()
