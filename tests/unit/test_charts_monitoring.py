"""Rules, dashboards and monitors ask for metrics and labels that exist, and are made only where they can be."""

import json
import re

import pytest
import yaml

from support.charts import CHARTS, MONITORING, objects, of_kind, one
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.spec import TtfaMs
from syrinx_stages.contract.metrics import BY_STAGE, TTFA, TTFA_BUCKETS

DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in (CHARTS / "syrinx" / "dashboards").glob("*.json")}
OBJECTIVES = pytest.mark.parametrize("ms", TtfaMs.__args__)

SELECTOR = re.compile(r"(syrinx_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
AGGREGATION = re.compile(r"by \(([^)]*)\) \((?:rate\()?(syrinx_\w+)")
HISTOGRAM = ("_bucket", "_count", "_sum")


def exported():
    """Every series name with its labels, those that a scrape adds too."""
    found = {}
    for metric in {metric for metrics in BY_STAGE.values() for metric in metrics}:
        names = [metric.name + suffix for suffix in HISTOGRAM] if metric.kind == "histogram" else [metric.name]
        found |= {name: {*metric.labels, "namespace", "pod", "pipeline"} for name in names}
    for collector in vars(Telemetry()).values():
        if hasattr(collector, "_labelnames"):
            suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": HISTOGRAM}[collector._type]
            labels = {*collector._labelnames, "namespace", "pod"}
            found |= {collector._name + suffix: labels for suffix in suffixes}
    return {name: labels | ({"le"} if name.endswith("_bucket") else set()) for name, labels in found.items()}


SERIES = exported()


def unknown(expression):
    """What an expression asks for that nobody exports."""
    problems = [name for name, _ in SELECTOR.findall(expression) if name not in SERIES]
    for name, selector in SELECTOR.findall(expression):
        problems += [f"{name}.{label}" for label in MATCHER.findall(selector) if label not in SERIES.get(name, ())]
    for labels, name in AGGREGATION.findall(expression):
        problems += [f"{name}.{label}" for label in re.split(r",\s*", labels) if label not in SERIES.get(name, ())]
    return problems


def rules(values=None):
    manifest = one(objects("syrinx", values, serves=MONITORING), "PrometheusRule")
    return {rule["alert"]: rule for group in manifest["spec"]["groups"] for rule in group["rules"]}


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board):
    return [(panel["title"], target) for panel in panels(board) for target in panel["targets"]]


def test_the_list_of_series_has_both_sides():
    assert "task_type" in SERIES["syrinx_ttfa_seconds_bucket"]
    assert "outcome" in SERIES["syrinx_operator_reconciles_total"]


@pytest.mark.parametrize(
    ("expression", "problems"),
    [
        ("rate(syrinx_nothing_total[5m])", ["syrinx_nothing_total"]),
        ('sum by (stage) (rate(syrinx_requests_total{outcom="error"}[5m]))', 2),
        ('sum by (task_type) (rate(syrinx_requests_total{outcome="error"}[5m]))', []),
    ],
)
def test_what_does_not_exist_would_be_noticed(expression, problems):
    assert unknown(expression) == problems or len(unknown(expression)) == problems


# --- rules


@pytest.mark.parametrize("values", [{}, {"clusterWide": True}, {"watchNamespaces": ["voices", "books"]}])
def test_rules_ask_for_what_exists_and_say_what_to_do(values):
    found = rules(values)
    assert len(found) >= 9
    for name, rule in found.items():
        assert SELECTOR.search(rule["expr"]), name
        assert unknown(rule["expr"]) == [], name
        assert rule["labels"] == {"severity": "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
        aggregated = [label for labels, _ in AGGREGATION.findall(rule["expr"]) for label in re.split(r",\s*", labels)]
        used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert set(used) <= set(aggregated), name


def test_rules_are_about_the_pipelines_that_the_operator_keeps():
    def matchers(values):
        expression = rules(values)["SyrinxQueueOld"]["expr"]
        return SELECTOR.search(expression)[2]

    assert matchers({}) == '{namespace=~"speech"}'
    assert matchers({"watchNamespaces": ["voices", "books"]}) == '{namespace=~"voices|books"}'
    assert matchers({"clusterWide": True}) == "{}"


@OBJECTIVES
def test_the_objective_is_an_edge_as_it_is_exported(ms):
    expression = rules({"prometheusRule": {"objectives": {"ttfaMs": ms}}})["SyrinxTTFAOverObjective"]["expr"]
    (edge,) = re.findall(r'le="([^"]+)"', expression)
    assert edge == str(float(edge))
    assert float(edge) == ms / 1000
    assert float(edge) in TTFA_BUCKETS == TTFA.buckets


def test_objectives_reach_the_rules():
    objectives = {"target": 0.9, "underrunRatio": 0.2, "errorRatio": 0.3, "queueSeconds": 7}
    found = rules({"prometheusRule": {"objectives": objectives, "alertLabels": {"team": "voice"}}})
    ends = {name: rule["expr"].split()[-1] for name, rule in found.items()}
    assert ends["SyrinxTTFAOverObjective"] == "0.9"
    assert ends["SyrinxUnderruns"] == "0.2"
    assert ends["SyrinxRequestErrors"] == "0.3"
    assert ends["SyrinxQueueOld"] == "7"
    assert {tuple(rule["labels"].items()) for rule in found.values()} >= {(("severity", "warning"), ("team", "voice"))}


def test_an_operator_that_looks_seldom_is_not_taken_for_a_stuck_one():
    assert rules()["SyrinxOperatorStalled"]["expr"].endswith("> 120")
    assert rules({"resyncSeconds": 60})["SyrinxOperatorStalled"]["expr"].endswith("> 480")


# --- dashboards


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_ask_for_what_exists(name):
    board = DASHBOARDS[name]
    assert board["uid"] == f"syrinx-{name}"
    for title, target in targets(board):
        assert SELECTOR.search(target["expr"]), title
        assert unknown(target["expr"]) == [], title
        aggregated = {label for labels, _ in AGGREGATION.findall(target["expr"]) for label in re.split(r",\s*", labels)}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= aggregated, title
    for variable in board["templating"]["list"]:
        assert unknown(variable.get("definition", "")) == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_use_the_chosen_data_source_and_do_not_overlap(name):
    board = DASHBOARDS[name]
    sources = [panel["datasource"] for panel in panels(board)] + [target["datasource"] for _, target in targets(board)]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    assert board["templating"]["list"][0]["name"] == "datasource"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_metric_is_on_a_dashboard():
    shown = {name for board in DASHBOARDS.values() for _, target in targets(board) for name in _names(target["expr"])}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in SERIES}
    shown_families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    assert families - shown_families == {"syrinx_first_byte_seconds"}, "the first byte may be silence"


def _names(expression):
    return [name for name, _ in SELECTOR.findall(expression)]


def test_grafana_finds_the_dashboards():
    made = [m for m in of_kind(objects("syrinx"), "ConfigMap") if m["metadata"]["labels"].get("grafana_dashboard")]
    shipped = {name: json.loads(text) for manifest in made for name, text in manifest["data"].items()}
    assert shipped == {f"syrinx-{name}.json": board for name, board in DASHBOARDS.items()}
    assert not of_kind(objects("syrinx", {"dashboards": {"enabled": False}}), "ConfigMap")


# --- monitors

KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@pytest.mark.parametrize("kind", KINDS)
def test_monitors_are_made_only_where_the_cluster_has_them(kind):
    assert not of_kind(objects("syrinx"), *KINDS)
    (made,) = of_kind(objects("syrinx", serves=(f"monitoring.coreos.com/v1/{kind}",)), *KINDS)
    assert made["kind"] == kind
    off = {kind[0].lower() + kind[1:]: {"enabled": False}}
    assert kind not in {manifest["kind"] for manifest in objects("syrinx", off, serves=MONITORING)}


def test_the_service_monitor_reaches_the_operator():
    made = objects("syrinx", serves=MONITORING)
    monitor, service, deployment = (one(made, kind) for kind in ("ServiceMonitor", "Service", "Deployment"))
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    assert port["targetPort"] in {each["name"] for each in template["spec"]["containers"][0]["ports"]}


def test_the_pod_monitor_reaches_every_stage_of_every_pipeline():
    spec = one(objects("syrinx", serves=MONITORING), "PodMonitor")["spec"]
    golden = yaml.safe_load_all((CHARTS.parent / "tests" / "unit" / "golden" / "default.yaml").read_text())
    stages = [manifest for manifest in golden if manifest["kind"] in ("StatefulSet", "Deployment")]
    scraped = set()
    for workload in stages:
        labels = workload["spec"]["template"]["metadata"]["labels"]
        if all(_selects(expression, labels) for expression in spec["selector"]["matchExpressions"]):
            scraped.add(labels["syrinx.dev/component"])
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            assert spec["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}
    assert scraped == {"gateway", "talker", "codec"}
    everywhere = one(objects("syrinx", {"clusterWide": True}, serves=MONITORING), "PodMonitor")["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["speech"]}
    assert everywhere["namespaceSelector"] == {"any": True}


def _selects(expression, labels):
    value = labels.get(expression["key"])
    return value is not None if expression["operator"] == "Exists" else value in expression["values"]


def test_prometheus_may_read_the_operators_metrics_and_nobody_else():
    policy = one(objects("syrinx"), "NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    ]
    assert [port["port"] for port in rule["ports"]] == [8080]
    assert policy["policyTypes"] == ["Ingress"], "what it connects to differs from cluster to cluster"
    nobody = one(objects("syrinx", {"networkPolicy": {"from": []}}), "NetworkPolicy")["spec"]
    assert "ingress" not in nobody
