"""Every alert fires when it should and only then; promtool evaluates the rules."""

import functools
import json
import subprocess

import pytest

from support.prometheus import find_prometheus, promtool
from support.queries import groups, rules

RULES = rules()
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


@functools.cache
def rendered():
    return groups()


def alerts(name, data, minute, tmp_path, labels=None, summary=""):
    """Returns promtool's error for an alert at a minute; empty if it is as expected (firing only with `labels`)."""
    group = next(each for each in rendered() if any(rule.get("alert") == name for rule in each["rules"]))
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [group]}))
    annotations = {**RULES[name]["annotations"], "summary": summary}
    severity = "critical" if name in CRITICAL else "warning"
    expected = [{"exp_labels": {"severity": severity, **labels}, "exp_annotations": annotations}] if labels else []
    test = {"interval": "1m", "input_series": data}
    test["alert_rule_test"] = [{"alertname": name, "eval_time": f"{minute}m", "exp_alerts": expected}]
    trial = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(trial))
    command = [promtool(find_prometheus()), "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


CRITICAL = {
    "SyrinxOperatorDown",
    "SyrinxOperatorStalled",
    "SyrinxPipelineNotReady",
    "SyrinxRedisDown",
    "SyrinxRedisFull",
    "SyrinxSLOBurnFast",
}
FAST = "of the Base requests of the last 5 minutes were late, and a similar share of the last hour."
SLOW = "of the Base requests of the last 30 minutes were late, and a similar share of the last 6 hours."
FIRES = {
    "SyrinxOperatorDown": [
        ("no operator", [], 6, {"namespace": "speech"}, "The Syrinx operator in speech exports no metrics.")
    ],
    "SyrinxOperatorStalled": [
        (
            "it hangs",
            [age("0+60x30")],
            10,
            OPERATOR,
            "The operator operator-0 has not reconciled a pipeline for 10m 0s.",
        )
    ],
    "SyrinxWatchDown": [
        (
            "in one namespace",
            [watch_up("speech", "1x5 0x40"), watch_up("other", "1x40")],
            20,
            {**OPERATOR, "pipeline_namespace": "speech", "kind": "Pod"},
            "The operator operator-0 cannot watch objects of the kind Pod in speech.",
        ),
        (
            "in all",
            [watch_up("", "0x40")],
            20,
            {**OPERATOR, "kind": "Pod"},
            "The operator operator-0 cannot watch objects of the kind Pod.",
        ),
    ],
    "SyrinxReconcileErrors": [
        (
            "all fail",
            [reconciles("failed", "0+1x60")],
            30,
            OPERATOR,
            "The operator operator-0 repeatedly fails to reconcile a pipeline.",
        )
    ],
    "SyrinxPipelineNotReady": [
        (
            "for changing reasons",
            [condition("Ready", "False", "Starting", "1x9"), condition("Ready", "False", "NotReady", "_x9 1x40")],
            20,
            TUNED,
            "The pipeline demo in speech is not ready.",
        )
    ],
    "SyrinxPipelineDegraded": [
        (
            "a node is lost",
            [condition("Degraded", "True", "NodeLost", "1x40")],
            15,
            {**TUNED, "reason": "NodeLost"},
            "The pipeline demo in speech needs intervention: NodeLost.",
        )
    ],
    "SyrinxRolloutStuck": [
        (
            "the deadline has passed",
            [condition("Progressing", "False", "ProgressDeadlineExceeded", "1x40")],
            5,
            TUNED,
            "A roll-out or scaling of demo in speech makes no progress.",
        )
    ],
    "SyrinxRedisDown": [
        (
            "its node is gone",
            [condition("ConnectorReady", "False", "NodeLost", "1x40")],
            10,
            TUNED,
            "The managed Redis of demo in speech is down.",
        )
    ],
    "SyrinxRedisFull": [
        (
            "a gateway has seen it",
            [redis_full("gateway", "1x30"), redis_full("codec", "0x30")],
            5,
            PIPELINE,
            "The Redis of demo has no memory left.",
        )
    ],
    "SyrinxSLOBurnFast": [
        ("late", ttfa("0+60x120", "0+6x120"), 70, HEARD, f"demo misses its latency objective: 90% {FAST}"),
        (
            "requests are refused and the others are in time",
            [*ttfa("0+1x120", "0+1x120"), ended("refused", "0+9x120")],
            70,
            HEARD,
            f"demo misses its latency objective: 90% {FAST}",
        ),
        (
            "refused, every one",
            [ended("refused", "0+9x120")],
            70,
            HEARD,
            f"demo misses its latency objective: 100% {FAST}",
        ),
    ],
    "SyrinxSLOBurnSlow": [
        ("often late", ttfa("0+60x400", "0+36x400"), 380, HEARD, f"demo misses its latency objective: 40% {SLOW}")
    ],
    "SyrinxUnderruns": [
        (
            "in every twentieth",
            [*ttfa("0+60x60", "0+60x60"), underruns("0+3x60")],
            30,
            PIPELINE,
            "5% of the requests to demo have playback underruns.",
        )
    ],
    "SyrinxRequestErrors": [
        (
            "every tenth",
            [ended("error", "0+1x60"), ended("stop", "0+9x60")],
            30,
            PIPELINE,
            "10% of the requests to demo end in an error.",
        )
    ],
    "SyrinxOverload": [
        (
            "every tenth",
            [ended("refused", "0+1x60"), ended("stop", "0+9x60")],
            30,
            PIPELINE,
            "10% of the requests to demo are refused.",
        )
    ],
    "SyrinxGraphHitsLow": [
        (
            "most do not fit",
            [calls("eager", "0+9x90"), calls("padded", "0+1x90"), pairs("2x90")],
            80,
            PIPELINE,
            "90% of the decoder calls of demo use no captured shape.",
        ),
        (
            "none fits",
            [calls("eager", "0+9x90"), pairs("2x90")],
            80,
            PIPELINE,
            "100% of the decoder calls of demo use no captured shape.",
        ),
    ],
    "SyrinxRedisErrors": [
        (
            "again and again",
            [redis_errors("0+1x30")],
            20,
            {**PIPELINE, "stage": "codec"},
            "Redis commands of the codec of demo fail.",
        )
    ],
    "SyrinxFileInvalid": [
        (
            "of one gateway",
            [file_valid("gateway-0", "1x30"), file_valid("gateway-1", "1x5 0x30")],
            20,
            {**PIPELINE, "file": "api_keys"},
            "The new api_keys of demo is invalid and not in use.",
        )
    ],
    "SyrinxMetricsStale": [
        (
            "nothing new",
            [tuning("metrics_age_seconds", "0+60x30")],
            15,
            TUNED,
            "The operator has had no metrics of demo for 15m 0s.",
        )
    ],
    "SyrinxMetricsMissing": [
        (
            "one cannot be read",
            [condition("MetricsAvailable", "False", "MetricsError", "1x40")],
            20,
            TUNED,
            "The operator cannot read the metrics of demo in speech.",
        )
    ],
    "SyrinxTuningRollbackLoop": [
        (
            "two trials and a regression",
            [
                tuning("decisions_total", "0x5 1x50 2x30", verdict="RolledBack"),
                tuning("decisions_total", "0x20 1x70", verdict="Regressed"),
            ],
            80,
            TUNED,
            "Tuning of demo rolled back 3 changes within 6 hours.",
        )
    ],
    "SyrinxTuningRegressed": [
        (
            "one",
            [tuning("decisions_total", "0x5 1x90", verdict="Regressed")],
            20,
            TUNED,
            "Tuning of demo took back a setting that had come into force.",
        )
    ],
    "SyrinxTrialStuck": [
        (
            "2 h 20 min",
            [tuning("trial_age_seconds", "0+120x90")],
            70,
            TUNED,
            "A trial of demo has run for 2h 20m 0s without a verdict.",
        )
    ],
}
QUIET = {
    "SyrinxOperatorDown": [("it is there", [age("0x30")], 10)],
    "SyrinxOperatorStalled": [
        ("it reconciles", [age("20x30")], 10),
        ("one slow reconcile", [age("0x5 130x1 0x20")], 8),
    ],
    "SyrinxWatchDown": [("it heals", [watch_up("speech", "0x5 1x40")], 20)],
    "SyrinxReconcileErrors": [
        ("it failed once", [reconciles("failed", "3x60"), reconciles("succeeded", "0+4x60")], 30)
    ],
    "SyrinxPipelineNotReady": [
        ("it is", [condition("Ready", "True", "Serving", "1x40")], 30),
        (
            "it was not",
            [condition("Ready", "False", "Starting", "1x9"), condition("Ready", "True", "Serving", "_x9 1x40")],
            30,
        ),
    ],
    "SyrinxPipelineDegraded": [("it is not", [condition("Degraded", "False", "AsExpected", "1x40")], 30)],
    "SyrinxRolloutStuck": [
        ("it goes on", [condition("Progressing", "True", "RollingOut", "1x40")], 30),
        ("it is complete", [condition("Progressing", "False", "Complete", "1x40")], 30),
    ],
    "SyrinxRedisDown": [
        ("it is ready", [condition("ConnectorReady", "True", "Serving", "1x40")], 30),
        ("it starts", [condition("ConnectorReady", "False", "Starting", "1x3")], 10),
    ],
    "SyrinxRedisFull": [("for a moment", [redis_full("codec", "0x5 1 0x30")], 6)],
    "SyrinxSLOBurnFast": [
        ("in time", ttfa("0+60x120", "0+57x120"), 70),
        ("it has ended", ttfa("0+60x120", "0x60 57+57x60"), 70),
        ("only just begun", ttfa("0+60x120", "0+57x67 3819x50"), 70),
        ("too few requests", ttfa("0x60 1 2x60", "0x120"), 64),
        ("no requests", ttfa("7x120", "2x120"), 70),
        ("invalid requests do not count", [ended("refused", "0+9x120", task_type="unknown")], 70),
    ],
    "SyrinxSLOBurnSlow": [
        ("within the target", ttfa("0+60x400", "0+57x400"), 380),
        ("it has ended", ttfa("0+60x400", "0x300 57+57x100"), 390),
    ],
    "SyrinxUnderruns": [("one in many", [*ttfa("0+600x60", "0+600x60"), underruns("0+1x60")], 30)],
    "SyrinxRequestErrors": [("clients that leave", [ended("cancelled", "0+9x60"), ended("stop", "0+9x60")], 30)],
    "SyrinxOverload": [
        ("one in many", [ended("refused", "0+1x60"), ended("stop", "0+99x60")], 30),
        ("invalid requests", [ended("refused", "0+9x60", task_type="unknown"), ended("stop", "0+1x60")], 30),
    ],
    "SyrinxGraphHitsLow": [
        ("nothing is captured", [calls("eager", "0+9x90"), pairs("0x90")], 80),
        ("most fit", [calls("eager", "0+1x90"), calls("hit", "0+5x90"), calls("padded", "0+4x90"), pairs("2x90")], 80),
    ],
    "SyrinxRedisErrors": [("once", [redis_errors("0x5 4x30")], 25)],
    "SyrinxFileInvalid": [("corrected", [file_valid("gateway-0", "1x5 0x3 1x30")], 20)],
    "SyrinxMetricsStale": [("fresh", [tuning("metrics_age_seconds", "20x30")], 15)],
    "SyrinxMetricsMissing": [("read", [condition("MetricsAvailable", "True", "MetricsFound", "1x40")], 30)],
    "SyrinxTuningRollbackLoop": [
        ("two", [tuning("decisions_total", "0x5 1x50 2x30", verdict="RolledBack")], 80),
        ("good ones", [tuning("decisions_total", "0+1x80", verdict="Promoted")], 80),
        ("long ago", [tuning("decisions_total", "0 1 2 3x600", verdict="RolledBack")], 500),
        ("a new operator", [tuning("decisions_total", "5x10 0x70", verdict="RolledBack")], 70),
    ],
    "SyrinxTuningRegressed": [
        ("a trial that failed", [tuning("decisions_total", "0x5 1x90", verdict="RolledBack")], 20),
        ("long ago", [tuning("decisions_total", "0x5 1x200", verdict="Regressed")], 90),
    ],
    "SyrinxTrialStuck": [
        ("a long one", [tuning("trial_age_seconds", "0+60x100")], 95),
        ("none", [tuning("trial_age_seconds", "0x30")], 20),
    ],
}


def cases(table):
    return [pytest.param(name, *case[1:], id=f"{name}: {case[0]}") for name, listed in table.items() for case in listed]


def test_every_alert_has_firing_and_silent_cases():
    names = {name for name, rule in RULES.items() if "alert" in rule}
    assert names == FIRES.keys() == QUIET.keys()


@pytest.mark.parametrize(("name", "data", "minute", "labels", "summary"), cases(FIRES))
def test_it_fires(name, data, minute, labels, summary, tmp_path):
    assert alerts(name, data, minute, tmp_path, labels, summary) == ""


@pytest.mark.parametrize(("name", "data", "minute"), cases(QUIET))
def test_it_does_not_fire(name, data, minute, tmp_path):
    assert alerts(name, data, minute, tmp_path) == ""


def test_prometheus_accepts_the_rules(tmp_path):
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": rendered()}))
    subprocess.run(
        [promtool(find_prometheus()), "check", "rules", "--lint-fatal", "rules.yml"], cwd=tmp_path, check=True
    )
