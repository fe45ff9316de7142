"""Rules, dashboards and monitors use existing metrics and labels, and are rendered only if the cluster serves them."""

import json
import re
import typing

import pytest
import yaml
from prometheus_client import ProcessCollector

from support.charts import CHARTS, MONITORING, ROOT, objects, of_kind, one
from support.queries import DASHBOARDS, expanded, panels, rules, targets, variables
from support.tuning import update_telemetry
from syrinx_operator.cluster.objects.names import canary
from syrinx_operator.cluster.objects.state import STAGES
from syrinx_operator.cluster.objects.tuner_telemetry import PUT_IN_FORCE
from syrinx_operator.cluster.report.progress import STALLED
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.cluster.watch.workqueue import Outcome
from syrinx_operator.observed.evidence import WINDOW_SECONDS
from syrinx_operator.resource.fields.tuning import TtfaMs
from syrinx_operator.resource.state.status import ConditionStatus, ConditionType
from syrinx_operator.resource.state.tuning_status import Verdict
from syrinx_operator.tuner import trial
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.contract.metrics import BY_STAGE, TTFA, TTFA_BUCKETS
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.gateway.speech.outcomes import StreamOutcome
from syrinx_stages.scheduling.codec import schedule
from syrinx_stages.scheduling.codec_rows import Row, Rows

CRITICAL = {f"Syrinx{end}" for end in ("OperatorDown", "OperatorStalled", "PipelineNotReady", "RedisDown", "RedisFull")}
CRITICAL |= {"SyrinxSLOBurnFast"}
OBJECTIVES = pytest.mark.parametrize("ms", TtfaMs.__args__)

SELECTOR = re.compile(r"((?:syrinx|process)_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
AGGREGATION = re.compile(r"by \(([^)]*)\) \((?:(?:rate|increase|changes)\()?((?:syrinx|process)_\w+)")
HISTOGRAM = ("_bucket", "_count", "_sum")


def pipeline_samples():
    """Returns all samples of a pipeline with a condition and a running trial."""
    telemetry = Telemetry()
    update_telemetry(telemetry.tuning)
    telemetry.conditions.update("speech", "demo", [{"type": "Ready", "status": "True", "reason": "Serving"}])
    families = [*telemetry.tuning.collect(), *telemetry.conditions.collect()]
    return [sample for family in families for sample in family.samples]


def exported():
    """Returns every series name with its labels, including those that a scrape adds."""
    found = {}
    for metric in {metric for metrics in BY_STAGE.values() for metric in metrics}:
        names = [metric.name + suffix for suffix in HISTOGRAM] if metric.kind == "histogram" else [metric.name]
        found |= {name: {*metric.labels, "namespace", "pod", "pipeline", "track"} for name in names}
    for collector in vars(Telemetry()).values():
        if hasattr(collector, "_labelnames"):
            suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": HISTOGRAM}[collector._type]
            labels = {*collector._labelnames, "namespace", "pod"}
            found |= {collector._name + suffix: labels for suffix in suffixes}
    for sample in pipeline_samples():
        found[sample.name] = {*sample.labels, "namespace", "pod"}
    for family in ProcessCollector(registry=None).collect():
        found |= {sample.name: {"namespace", "pod", "pipeline"} for sample in family.samples}
    return {name: labels | ({"le"} if name.endswith("_bucket") else set()) for name, labels in found.items()}


SERIES = exported()


def calls(pairs):
    """Returns the codec's label for a decoder call of one row and two frames with these captured shapes."""
    settings = CodecSettings(max_num_seqs=1, chunk_ramp=(2,), capture_pairs=pairs)
    row = Row(id="a", accepted_at=0.0, live=False, pending=2)
    return schedule(Rows([row]), 0.0, settings, pairs, 0).call.result


VALUES = {
    "le": {str(edge) for metrics in BY_STAGE.values() for metric in metrics for edge in metric.buckets},
    "stage": set(BY_STAGE),
    "result": {calls(()), calls(((1, 2),)), calls(((2, 2),))},
    "condition": set(typing.get_args(ConditionType)),
    "status": set(typing.get_args(ConditionStatus)),
    "reason": {STALLED},
    "verdict": {*typing.get_args(Verdict), PUT_IN_FORCE},
    # Of the gateway, and of the operator.
    "outcome": {*EndReason, "refused", *Outcome, *StreamOutcome},
    "task_type": {"unknown"},
}
"""Possible values of labels that expressions select by value."""
CHOSEN = re.compile(r"\$\w+|speech|voices\|books")
"""Values of dashboard variables, and namespaces."""


def unknown(expression):
    """Returns the metrics and labels in an expression that nothing exports."""
    problems = [name for name, _ in SELECTOR.findall(expression) if name not in SERIES]
    for name, selector in SELECTOR.findall(expression):
        matchers = MATCHER.findall(selector)
        problems += [f"{name}.{label}" for label, _ in matchers if label not in SERIES.get(name, ())]
        asked = [(label, value) for label, either in matchers for value in either.split("|")]
        problems += [
            f"{name}.{label}={value}"
            for label, value in asked
            if not CHOSEN.fullmatch(value) and value not in VALUES.get(label, {"speech", "voices", "books"})
        ]
    for labels, name in AGGREGATION.findall(expression):
        problems += [f"{name}.{label}" for label in re.split(r",\s*", labels) if label not in SERIES.get(name, ())]
    return problems


def aggregated(expression):
    """Returns the labels that an expression's results can have."""
    return {label for labels, _ in AGGREGATION.findall(expression) for label in re.split(r",\s*", labels)}


def alerts(values=None):
    return {name: rule for name, rule in rules(values).items() if "alert" in rule}


@pytest.mark.parametrize(
    ("expression", "problems"),
    [
        ("rate(syrinx_nothing_total[5m])", ["syrinx_nothing_total"]),
        ('sum by (stage) (rate(syrinx_requests_total{outcom="error"}[5m]))', 3),
        ('sum by (task_type) (rate(syrinx_requests_total{outcome="error"}[5m]))', []),
        ('rate(syrinx_requests_total{outcome=~"error|wrong"}[5m])', ["syrinx_requests_total.outcome=wrong"]),
        ('rate(syrinx_ttfa_seconds_bucket{le="1"}[5m])', ["syrinx_ttfa_seconds_bucket.le=1"]),
        ('syrinx_tuning_knob{knob="talker.rows"}', ["syrinx_tuning_knob.knob=talker.rows"]),
    ],
)
def test_unknown_metrics_and_labels_are_detected(expression, problems):
    assert unknown(expression) == problems or len(unknown(expression)) == problems


# --- rules


@pytest.mark.parametrize("values", [{}, {"clusterWide": True}, {"watchNamespaces": ["voices", "books"]}])
def test_rules_use_existing_metrics_and_have_annotations(values):
    found = rules(values)
    for name, rule in found.items():
        expression = expanded(rule["expr"], found)
        assert SELECTOR.search(expression), name
        assert unknown(expression) == [], name
    for name, rule in alerts(values).items():
        assert rule["labels"] == {"severity": "critical" if name in CRITICAL else "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
        used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert set(used) <= aggregated(expanded(rule["expr"], found)), name


def test_alert_labels_are_added_and_replace_the_severity():
    def labels(**given):
        return alerts({"prometheusRule": {"alertLabels": given}})["SyrinxRedisDown"]["labels"]

    assert labels(team="voice") == {"severity": "critical", "team": "voice"}
    assert labels(severity="page") == {"severity": "page"}


def test_every_alert_has_a_runbook_section_and_links_to_it_if_published():
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/operating/alerts.md").read_text(), re.MULTILINE)
    guide = "https://docs.example/operating/alerts/"
    linked = alerts({"prometheusRule": {"runbookUrl": guide}})
    assert sections and sorted(sections) == sorted(linked)
    for name, rule in linked.items():
        assert rule["annotations"]["runbook_url"] == f"{guide}#{name.lower()}"


def test_rules_select_the_operators_namespaces():
    def matchers(values):
        expression = rules(values)["SyrinxRedisErrors"]["expr"]
        return SELECTOR.search(expression)[2]

    assert matchers({}) == '{namespace=~"speech"}'
    assert matchers({"watchNamespaces": ["voices", "books"]}) == '{namespace=~"voices|books"}'
    assert matchers({"clusterWide": True}) == "{}"


@OBJECTIVES
def test_the_objective_is_a_bucket_boundary(ms):
    objectives = {"prometheusRule": {"objectives": {"ttfaMs": ms}}}
    expression = rules(objectives)["syrinx:late_requests:ratio_rate5m"]["expr"]
    (edge,) = re.findall(r'le="([^"]+)"', expression)
    assert edge == str(float(edge))
    assert float(edge) == ms / 1000
    assert float(edge) in TTFA_BUCKETS == TTFA.buckets


def ends(values):
    """Returns the threshold of each alert's first comparison, by name."""
    return {
        name: re.search(r"[<>]=?\s+([\d.]+)", rule["expr"])[1]
        for name, rule in alerts({"prometheusRule": values}).items()
        if not rule["expr"].startswith("absent")
    }


def test_objectives_reach_the_rules():
    objectives = {"target": 0.9, "underrunRatio": 0.2, "errorRatio": 0.3, "refusedRatio": 0.4, "graphHitRatio": 0.6}
    tuning = {"metricsSeconds": 100, "rollbacks": 5, "trialSeconds": 900}
    found = ends({"objectives": objectives, "burn": {"fast": 8, "slow": 2}, "tuning": tuning})
    burn = {"SyrinxSLOBurnFast": "0.8", "SyrinxSLOBurnSlow": "0.2"}
    shares = {
        "SyrinxUnderruns": "0.2",
        "SyrinxRequestErrors": "0.3",
        "SyrinxOverload": "0.4",
        "SyrinxGraphHitsLow": "0.4",
    }
    tuner = {"SyrinxMetricsStale": "100", "SyrinxTuningRollbackLoop": "5", "SyrinxTrialStuck": "900"}
    assert burn.items() | shares.items() | tuner.items() <= found.items()
    # 14.4 times the error budget of a 90 % target would be more than all requests: it can still be missed.
    assert ends({"objectives": {"target": 0.9}})["SyrinxSLOBurnFast"] == "0.9"
    assert ends({"objectives": {"target": 0.99}})["SyrinxSLOBurnFast"] == "0.144"


def test_a_regular_trial_does_not_count_as_stuck_nor_a_long_resync_period_as_stalled():
    period = OVERRIDE_TTL_SECONDS + trial.WASH_OUT_SECONDS + WINDOW_SECONDS
    assert float(ends({})["SyrinxTrialStuck"]) > trial.MAX_TRIAL_SECONDS + 2 * period
    assert rules()["SyrinxOperatorStalled"]["expr"].endswith("> 120")
    assert rules({"resyncSeconds": 60})["SyrinxOperatorStalled"]["expr"].endswith("> 480")


# --- dashboards


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_use_existing_metrics(name):
    board = DASHBOARDS[name]
    assert board["uid"] == f"syrinx-{name}"
    for title, target in targets(board):
        assert SELECTOR.search(target["expr"]) or target["expr"] == "vector($objective)", title
        assert unknown(target["expr"]) == [], title
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= aggregated(target["expr"]), title
    for annotation in board["annotations"]["list"]:
        assert unknown(annotation["expr"]) == []
        shown = annotation["titleFormat"] + annotation["textFormat"]
        assert set(re.findall(r"\{\{(\w+)\}\}", shown)) <= aggregated(annotation["expr"])
        assert set(annotation["tagKeys"].split(",")) <= aggregated(annotation["expr"])
    for _, series, label, _ in variables(board):
        assert unknown(series) == []
        assert label in SERIES[SELECTOR.match(series)[1]]


@pytest.mark.parametrize("name", ["service", "tuner"])
def test_the_objective_of_a_dashboard_is_a_bucket_boundary(name):
    (objective,) = [variable for found, _, _, variable in variables(DASHBOARDS[name]) if found == "objective"]
    assert float(objective["current"]["value"]) in TTFA_BUCKETS
    assert re.fullmatch(objective["regex"].strip("/"), "+Inf") is None


def test_every_decision_is_an_annotation_of_the_tuners_dashboard():
    listed = DASHBOARDS["tuner"]["annotations"]["list"]
    shown = [value for each in listed for value in re.search(r'verdict=~"([^"]*)"', each["expr"])[1].split("|")]
    assert sorted(shown) == sorted(VALUES["verdict"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_use_the_chosen_data_source_and_do_not_overlap(name):
    board = DASHBOARDS[name]
    asking = [*panels(board), *(target for _, target in targets(board)), *board["annotations"]["list"]]
    sources = [each["datasource"] for each in asking]
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
    asked = " ".join(target["expr"] for board in DASHBOARDS.values() for _, target in targets(board))
    families, shown = (
        {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
        for names in (SERIES, (name for name, _ in SELECTOR.findall(asked)))
    )
    assert families - shown == {
        "syrinx_first_byte_seconds",  # It may be silence.
        "process_virtual_memory_bytes",
        "process_max_fds",
    }


def test_the_dashboards_have_grafanas_sidecar_label():
    made = [m for m in of_kind(objects("syrinx"), "ConfigMap") if m["metadata"]["labels"].get("grafana_dashboard")]
    shipped = {name: json.loads(text) for manifest in made for name, text in manifest["data"].items()}
    assert shipped == {f"syrinx-{name}.json": board for name, board in DASHBOARDS.items()}
    assert not of_kind(objects("syrinx", {"dashboards": {"enabled": False}}), "ConfigMap")


# --- monitors

KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@pytest.mark.parametrize("kind", KINDS)
def test_monitors_are_rendered_only_if_the_cluster_serves_them(kind):
    assert not of_kind(objects("syrinx"), *KINDS)
    (made,) = of_kind(objects("syrinx", serves=(f"monitoring.coreos.com/v1/{kind}",)), *KINDS)
    assert made["kind"] == kind
    off = {kind[0].lower() + kind[1:]: {"enabled": False}}
    assert kind not in {manifest["kind"] for manifest in objects("syrinx", off, serves=MONITORING)}


def test_the_service_monitor_selects_the_operator():
    made = objects("syrinx", serves=MONITORING)
    monitor, service, deployment = (one(made, kind) for kind in ("ServiceMonitor", "Service", "Deployment"))
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    assert port["targetPort"] in {each["name"] for each in template["spec"]["containers"][0]["ports"]}


@pytest.mark.parametrize("golden", ["default", "colocated"])
def test_the_pod_monitor_selects_every_stage(golden):
    spec = one(objects("syrinx", serves=MONITORING), "PodMonitor")["spec"]
    pipeline = yaml.safe_load_all((CHARTS.parent / "tests" / "unit" / "golden" / f"{golden}.yaml").read_text())
    ports = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
    scraped = set()
    for workload in (each for each in pipeline if each["kind"] in ("StatefulSet", "Deployment")):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        if all(_selects(expression, labels) for expression in spec["selector"]["matchExpressions"]):
            component = labels["syrinx.dev/component"]
            scraped.add(component)
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            own = {port["name"] for port in container["ports"] if "admin" in port["name"]}
            assert own == {"admin", *(["codec-admin"] if (golden, component) == ("colocated", "talker") else [])}
            assert own <= {*ports}
    assert scraped == {"gateway", "talker", *(["codec"] if golden == "default" else [])}
    (_, components) = spec["selector"]["matchExpressions"]
    assert set(components["values"]) == {*STAGES, *map(canary, STAGES)}
    everywhere = one(objects("syrinx", {"clusterWide": True}, serves=MONITORING), "PodMonitor")["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["speech"]}
    assert everywhere["namespaceSelector"] == {"any": True}


def _selects(expression, labels):
    value = labels.get(expression["key"])
    return value is not None if expression["operator"] == "Exists" else value in expression["values"]


def test_only_prometheus_may_read_the_operators_metrics():
    policy = one(objects("syrinx"), "NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    ]
    assert [port["port"] for port in rule["ports"]] == [8080]
    assert policy["policyTypes"] == ["Ingress"], "what it connects to differs from cluster to cluster"
    policy = one(objects("syrinx", {"networkPolicy": {"from": []}}), "NetworkPolicy")["spec"]
    assert "ingress" not in policy
