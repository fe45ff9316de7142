"""Every panel of the dashboards has only fields and values of Grafana's schema, as its TypeScript types have them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from clients.environments import FOLDER, HERE, Node, own_environment
from support.charts import CHARTS

pytestmark = pytest.mark.clients

DASHBOARDS = sorted((CHARTS / "syrinx" / "dashboards").glob("*.json"))
SCHEMA = Node("grafana", "@grafana/schema")
COMPILE = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]


@pytest.fixture(scope="module")
def folder() -> Path:
    """A folder with Grafana's types and those of the dashboards."""
    SCHEMA.prepare()
    shutil.copy(HERE / "dashboards.d.ts", FOLDER / SCHEMA.name)
    return FOLDER / SCHEMA.name


def errors(folder: Path, name: str, dashboard: str) -> str:
    """Returns what the compiler says about a dashboard; empty if it matches the schema."""
    source = folder / f"{name}.ts"
    source.write_text(
        f'import type {{ Dashboard }} from "./dashboards";\nexport const dashboard: Dashboard = {dashboard};\n'
    )
    command = [str(folder / "node_modules" / ".bin" / "tsc"), *COMPILE, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=own_environment())
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_matches_the_schema(folder: Path, dashboard: Path) -> None:
    assert errors(folder, dashboard.stem, dashboard.read_text()) == ""


def panel(path: Path, kind: str) -> tuple[dict, dict]:
    """Returns a dashboard and its first panel of a type."""
    dashboard = json.loads(path.read_text())
    panels = [each for top in dashboard["panels"] for each in (top, *top.get("panels", ()))]
    return dashboard, next(each for each in panels if each["type"] == kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda each: each.update(type="timeserie"), "timeserie"),
        (lambda each: each["options"]["legend"].update(placement="top"), '"top"'),
        (lambda each: each["fieldConfig"]["defaults"].update(unit=7), "number"),
        (lambda each: each["targets"][0].pop("expr"), "expr"),
    ],
    ids=["type", "option", "unit", "no query"],
)
def test_a_mistake_in_a_panel_is_detected(folder: Path, change, message: str) -> None:
    dashboard, timeseries = panel(DASHBOARDS[0], "timeseries")
    change(timeseries)
    assert message in errors(folder, "mistake", json.dumps(dashboard))
