"""The operator's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from syrinx_operator.tuner.telemetry import TunerTelemetry

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Telemetry:
    """Every `syrinx_operator_*` and `syrinx_tuning_*` metric, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tuning = TunerTelemetry(self.registry)
        self.reconciles = Counter(
            "syrinx_operator_reconciles", "Looks at a pipeline, by outcome.", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "syrinx_operator_reconcile_seconds",
            "Seconds that a look at a pipeline took.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.requests = Counter(
            "syrinx_operator_api_requests",
            "Requests to the API server, by verb and HTTP code (0: no answer).",
            ["verb", "code"],
            registry=self.registry,
        )
        self.changes = Counter(
            "syrinx_operator_changes",
            "Objects written, by kind and result (applied, unchanged, deleted, refused).",
            ["kind", "result"],
            registry=self.registry,
        )
        self.pushes = Counter(
            "syrinx_operator_settings_pushes",
            "Settings sent to stage replicas, by result (confirmed, limited: for the time of a trial, failed).",
            ["result"],
            registry=self.registry,
        )
        self.pipelines = Gauge(
            "syrinx_operator_pipelines",
            "Pipelines by condition of their status and its value.",
            ["condition", "status"],
            registry=self.registry,
        )
        self.last_tick_age = Gauge(
            "syrinx_operator_last_tick_age_seconds",
            "Seconds since the pipeline that was looked at longest ago was; 0 without pipelines.",
            registry=self.registry,
        )
