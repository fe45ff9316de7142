"""Every alert fires when it should and only then; promtool evaluates the rules."""

import json
import subprocess
from typing import NamedTuple

import pytest

from support.prometheus import find_prometheus, promtool
from support.queries import groups, rules

RULES = rules()
GROUPS = groups()
EVALUATION = {"syrinx-objective": "5m"}
"""Minutes between evaluations, other than one: these rules look back for hours."""
OPERATOR = {"namespace": "speech", "pod": "operator-0"}
PIPELINE = {"namespace": "speech", "pipeline": "demo"}
HEARD = {**PIPELINE, "task_type": "Base"}
TUNED = {"pipeline_namespace": "speech", "pipeline": "demo"}


def series(name, values, /, **labels):
    """Returns a series with one value per minute: `0+2x30` is 0, 2, 4, … to 60."""
    text = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def age(values):
    return series("syrinx_operator_oldest_reconcile_age_seconds", values, **OPERATOR)


def reconciles(outcome, values):
    return series("syrinx_operator_reconciles_total", values, **OPERATOR, outcome=outcome)


def watch_up(namespace, values):
    return series("syrinx_operator_watch_up", values, **OPERATOR, pipeline_namespace=namespace, kind="Pod")


def condition(kind, status, reason, values):
    labels = {"condition": kind, "status": status, "reason": reason}
    return series("syrinx_operator_pipeline_condition", values, **OPERATOR, **TUNED, **labels)


def ttfa(requests, within):
    """Returns the TTFA histogram of requests and of those within the objective."""
    served = {**HEARD, "pod": "demo-gateway-0"}
    return [
        series("syrinx_ttfa_seconds_count", requests, **served),
        series("syrinx_ttfa_seconds_bucket", within, **served, le="0.5"),
    ]


def ended(outcome, values, **labels):
    return series("syrinx_requests_total", values, **{**HEARD, "pod": "demo-gateway-0", "outcome": outcome, **labels})


def underruns(values):
    return series("syrinx_underruns_total", values, **HEARD, pod="demo-gateway-0")


def calls(result, values):
    shape = {"rows": "1", "frames": "4", "result": result}
    return series("syrinx_codec_calls_total", values, **PIPELINE, pod="demo-codec-0", **shape)


def pairs(values):
    return series("syrinx_codec_captured_shapes", values, **PIPELINE, pod="demo-codec-0")


def redis_errors(values):
    return series("syrinx_redis_errors_total", values, **PIPELINE, pod="demo-codec-0", stage="codec")


def redis_full(stage, values):
    return series("syrinx_redis_full", values, **PIPELINE, pod=f"demo-{stage}-0", stage=stage)


def file_valid(pod, values):
    return series("syrinx_file_valid", values, **PIPELINE, pod=f"demo-{pod}", file="api_keys")


def tuning(name, values, **labels):
    return series(f"syrinx_tuning_{name}", values, **OPERATOR, **TUNED, **labels)


class Case(NamedTuple):
    """Series, and whether an alert fires at a minute. `title` is the alert's summary, or why it is silent."""

    minute: int
    title: str
    fires: bool
    labels: dict[str, str]
    series: tuple[dict[str, str], ...]


def fires(minute, summary, labels, *series):
    return Case(minute, summary, True, labels, series)


def silent(minute, because, *series):
    return Case(minute, because, False, {}, series)


FAST = "of the Base requests of the last 5 minutes were late, and a similar share of the last hour."
SLOW = "of the Base requests of the last 30 minutes were late, and a similar share of the last 6 hours."
CASES = {
    "SyrinxOperatorDown": [
        fires(6, "The Syrinx operator in speech exports no metrics.", {"namespace": "speech"}),
        silent(10, "it is there", age("0x30")),
    ],
    "SyrinxOperatorStalled": [
        fires(10, "The operator operator-0 has not reconciled a pipeline for 10m 0s.", OPERATOR, age("0+60x30")),
        silent(10, "it reconciles", age("20x30")),
        silent(8, "one slow reconcile", age("0x5 130x1 0x20")),
    ],
    "SyrinxWatchDown": [
        fires(20, "The operator operator-0 cannot watch objects of the kind Pod in speech.",
            {**OPERATOR, "pipeline_namespace": "speech", "kind": "Pod"}, watch_up("speech", "1x5 0x40"),
            watch_up("other", "1x40")),
        fires(20, "The operator operator-0 cannot watch objects of the kind Pod.", {**OPERATOR, "kind": "Pod"},
            watch_up("", "0x40")),
        silent(20, "it heals", watch_up("speech", "0x5 1x40")),
    ],
    "SyrinxReconcileErrors": [
        fires(30, "The operator operator-0 repeatedly fails to reconcile a pipeline.", OPERATOR,
            reconciles("failed", "0+1x60")),
        silent(30, "it failed once", reconciles("failed", "3x60"), reconciles("succeeded", "0+4x60")),
    ],
    "SyrinxPipelineNotReady": [
        fires(20, "The pipeline demo in speech is not ready.", TUNED, condition("Ready", "False", "Starting", "1x9"),
            condition("Ready", "False", "NotReady", "_x9 1x40")),
        silent(30, "it is", condition("Ready", "True", "Serving", "1x40")),
        silent(30, "it was not", condition("Ready", "False", "Starting", "1x9"),
            condition("Ready", "True", "Serving", "_x9 1x40")),
    ],
    "SyrinxPipelineDegraded": [
        fires(15, "The pipeline demo in speech needs intervention: NodeLost.", {**TUNED, "reason": "NodeLost"},
            condition("Degraded", "True", "NodeLost", "1x40")),
        silent(30, "it is not", condition("Degraded", "False", "AsExpected", "1x40")),
    ],
    "SyrinxRolloutStuck": [
        fires(5, "A roll-out or scaling of demo in speech makes no progress.", TUNED,
            condition("Progressing", "False", "ProgressDeadlineExceeded", "1x40")),
        silent(30, "it goes on", condition("Progressing", "True", "RollingOut", "1x40")),
        silent(30, "it is complete", condition("Progressing", "False", "Complete", "1x40")),
    ],
    "SyrinxRedisDown": [
        fires(10, "The managed Redis of demo in speech is down.", TUNED,
            condition("ConnectorReady", "False", "NodeLost", "1x40")),
        silent(30, "it is ready", condition("ConnectorReady", "True", "Serving", "1x40")),
        silent(10, "it starts", condition("ConnectorReady", "False", "Starting", "1x3")),
    ],
    "SyrinxRedisFull": [
        fires(5, "The Redis of demo has no memory left.", PIPELINE, redis_full("gateway", "1x30"),
            redis_full("codec", "0x30")),
        silent(6, "for a moment", redis_full("codec", "0x5 1 0x30")),
    ],
    "SyrinxSLOBurnFast": [
        fires(70, f"demo misses its latency objective: 90% {FAST}", HEARD, *ttfa("0+60x120", "0+6x120")),
        fires(70, f"demo misses its latency objective: 90% {FAST}", HEARD, *ttfa("0+1x120", "0+1x120"),
            ended("refused", "0+9x120")),
        fires(70, f"demo misses its latency objective: 100% {FAST}", HEARD, ended("refused", "0+9x120")),
        silent(70, "in time", *ttfa("0+60x120", "0+57x120")),
        silent(70, "it has ended", *ttfa("0+60x120", "0x60 57+57x60")),
        silent(70, "only just begun", *ttfa("0+60x120", "0+57x67 3819x50")),
        silent(65, "too few requests", *ttfa("0x60 1 2x60", "0x120")),
        silent(70, "no requests", *ttfa("7x120", "2x120")),
        silent(70, "invalid requests do not count", ended("refused", "0+9x120", task_type="unknown")),
    ],
    "SyrinxSLOBurnSlow": [
        fires(380, f"demo misses its latency objective: 40% {SLOW}", HEARD, *ttfa("0+60x400", "0+36x400")),
        silent(380, "within the target", *ttfa("0+60x400", "0+57x400")),
        silent(390, "it has ended", *ttfa("0+60x400", "0x300 57+57x100")),
    ],
    "SyrinxUnderruns": [
        fires(30, "5% of the requests to demo have playback underruns.", PIPELINE, *ttfa("0+60x60", "0+60x60"),
            underruns("0+3x60")),
        silent(30, "one in many", *ttfa("0+600x60", "0+600x60"), underruns("0+1x60")),
    ],
    "SyrinxRequestErrors": [
        fires(30, "10% of the requests to demo end in an error.", PIPELINE, ended("error", "0+1x60"),
            ended("stop", "0+9x60")),
        silent(30, "clients that leave", ended("cancelled", "0+9x60"), ended("stop", "0+9x60")),
    ],
    "SyrinxOverload": [
        fires(30, "10% of the requests to demo are refused.", PIPELINE, ended("refused", "0+1x60"),
            ended("stop", "0+9x60")),
        silent(30, "one in many", ended("refused", "0+1x60"), ended("stop", "0+99x60")),
        silent(30, "invalid requests", ended("refused", "0+9x60", task_type="unknown"), ended("stop", "0+1x60")),
    ],
    "SyrinxGraphHitsLow": [
        fires(80, "90% of the decoder calls of demo use no captured shape.", PIPELINE, calls("eager", "0+9x90"),
            calls("padded", "0+1x90"), pairs("2x90")),
        fires(80, "100% of the decoder calls of demo use no captured shape.", PIPELINE, calls("eager", "0+9x90"),
            pairs("2x90")),
        silent(80, "nothing is captured", calls("eager", "0+9x90"), pairs("0x90")),
        silent(80, "most fit", calls("eager", "0+1x90"), calls("hit", "0+5x90"), calls("padded", "0+4x90"),
            pairs("2x90")),
    ],
    "SyrinxRedisErrors": [
        fires(20, "Redis commands of the codec of demo fail.", {**PIPELINE, "stage": "codec"}, redis_errors("0+1x30")),
        silent(25, "once", redis_errors("0x5 4x30")),
    ],
    "SyrinxFileInvalid": [
        fires(20, "The new api_keys of demo is invalid and not in use.", {**PIPELINE, "file": "api_keys"},
            file_valid("gateway-0", "1x30"), file_valid("gateway-1", "1x5 0x30")),
        silent(20, "corrected", file_valid("gateway-0", "1x5 0x3 1x30")),
    ],
    "SyrinxMetricsStale": [
        fires(15, "The operator has had no metrics of demo for 15m 0s.", TUNED,
            tuning("metrics_age_seconds", "0+60x30")),
        silent(15, "fresh", tuning("metrics_age_seconds", "20x30")),
    ],
    "SyrinxMetricsMissing": [
        fires(20, "The operator cannot read the metrics of demo in speech.", TUNED,
            condition("MetricsAvailable", "False", "MetricsError", "1x40")),
        silent(30, "read", condition("MetricsAvailable", "True", "MetricsFound", "1x40")),
    ],
    "SyrinxTuningRollbackLoop": [
        fires(80, "Tuning of demo rolled back 3 changes within 6 hours.", TUNED,
            tuning("decisions_total", "0x5 1x50 2x30", verdict="RolledBack"),
            tuning("decisions_total", "0x20 1x70", verdict="Regressed")),
        silent(80, "two", tuning("decisions_total", "0x5 1x50 2x30", verdict="RolledBack")),
        silent(80, "good ones", tuning("decisions_total", "0+1x80", verdict="Promoted")),
        silent(500, "long ago", tuning("decisions_total", "0 1 2 3x600", verdict="RolledBack")),
        silent(70, "a new operator", tuning("decisions_total", "5x10 0x70", verdict="RolledBack")),
    ],
    "SyrinxTuningRegressed": [
        fires(20, "Tuning of demo rolled back a setting that had come into force.", TUNED,
            tuning("decisions_total", "0x5 1x90", verdict="Regressed")),
        silent(20, "a trial that failed", tuning("decisions_total", "0x5 1x90", verdict="RolledBack")),
        silent(90, "long ago", tuning("decisions_total", "0x5 1x200", verdict="Regressed")),
    ],
    "SyrinxTrialStuck": [
        fires(70, "A trial of demo has run for 2h 20m 0s without a verdict.", TUNED,
            tuning("trial_age_seconds", "0+120x90")),
        silent(95, "a long one", tuning("trial_age_seconds", "0+60x100")),
        silent(20, "none", tuning("trial_age_seconds", "0x30")),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def promtool_path():
    return promtool(find_prometheus())


def trial(group):
    """Returns promtool's tests of a group of rules."""
    tests = []
    for name in (rule["alert"] for rule in group["rules"] if "alert" in rule):
        annotations, severity = RULES[name]["annotations"], RULES[name]["labels"]["severity"]
        for case in CASES[name]:
            alert = {"exp_labels": {"severity": severity, **case.labels}}
            alert["exp_annotations"] = {**annotations, "summary": case.title}
            expected = {"alertname": name, "eval_time": f"{case.minute}m", "exp_alerts": [alert] * case.fires}
            test = {"name": f"{name}: {case.title}", "interval": "1m", "input_series": case.series}
            tests.append({**test, "alert_rule_test": [expected]})
    interval = EVALUATION.get(group["name"], "1m")
    return {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": tests}


def test_every_alert_has_firing_and_silent_cases():
    assert CASES.keys() == {name for name, rule in RULES.items() if "alert" in rule}
    assert all({case.fires for case in cases} == {True, False} for cases in CASES.values())


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["name"])
def test_alerts_fire_when_they_should_and_only_then(group, promtool_path, tmp_path):
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [group]}))
    (tmp_path / "test.yml").write_text(json.dumps(trial(group)))
    done = subprocess.run([promtool_path, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules(promtool_path, tmp_path):
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": GROUPS}))
    subprocess.run([promtool_path, "check", "rules", "--lint-fatal", "rules.yml"], cwd=tmp_path, check=True)
