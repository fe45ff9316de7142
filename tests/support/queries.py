"""Everything that the charts ask a Prometheus: of dashboards, their annotations and variables, and of rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from support.charts import CHARTS, MONITORING, Object, objects, one

DASHBOARDS: dict[str, Object] = {
    file.stem: json.loads(file.read_text()) for file in sorted((CHARTS / "syrinx" / "dashboards").glob("*.json"))
}
ALERT_PARTS = re.compile(r"\s+and\s+")
COMPARISON = re.compile(r"\s+(?:>=|<=|==|!=|>|<)\s+[\d.e+-]+$")
RECORDED = re.compile(r"(syrinx:[\w:]+)(?:\{[^}]*\})?")


def panels(board: Object) -> list[Object]:
    """Its panels, without the rows that head them."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Object) -> list[tuple[str, Object]]:
    """Its queries, each with its panel's title."""
    return [(panel["title"], target) for panel in panels(board) for target in panel["targets"]]


def groups(values: Object | None = None) -> list[Object]:
    """The groups of the rendered PrometheusRule."""
    found: list[Object] = one(objects("syrinx", values, serves=MONITORING), "PrometheusRule")["spec"]["groups"]
    return found


def rules(values: Object | None = None) -> dict[str, Object]:
    """Every rule by its alert's or record's name."""
    return {rule.get("alert") or rule["record"]: rule for group in groups(values) for rule in group["rules"]}


def expanded(expression: str, found: dict[str, Object]) -> str:
    """An expression with what it takes from recording rules written out."""
    while match := RECORDED.search(expression):
        expression = expression.replace(match[0], f"({found[match[1]]['expr']})")
    return expression


def parts(expression: str) -> list[str]:
    """An alert's operands without what they are compared with: each has a value also when all is well."""
    return [COMPARISON.sub("", part.strip()) for part in ALERT_PARTS.split(expression)]


def substituted(expression: str, **variables: str) -> str:
    """A dashboard's query with its variables replaced, as Grafana does."""
    for name, value in variables.items():
        expression = re.sub(rf"\${name}\b|\${{{name}}}", lambda _: value, expression)  # noqa: B023
    assert "$" not in expression, f"an unknown variable: {expression}"
    return expression


def dashboard_queries(**variables: str) -> Iterator[tuple[str, str]]:
    """Every query of every dashboard, annotations too, by where it stands."""
    for name, board in DASHBOARDS.items():
        for title, target in targets(board):
            yield f"{name}: {title}: {target['refId']}", substituted(target["expr"], **variables)
        for annotation in board["annotations"]["list"]:
            yield f"{name}: annotation {annotation['name']}", substituted(annotation["expr"], **variables)


def variables(board: Object) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """A dashboard's variables that are asked of Prometheus: name, series selector, label, and all there is to one."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match, variable["query"]["query"]
            yield variable["name"], match[1], match[2], variable
