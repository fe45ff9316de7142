"""The metrics of `contract.metrics` as prometheus-client objects."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from syrinx_stages.contract.metrics import ROW_BUCKETS, SETTINGS_GENERATION, SETTINGS_TEMPORARY, Metric
from syrinx_stages.runtime.settings import LiveSettings


class Metrics:
    """One process's metrics in one registry.

    A family is made when it is first asked for, so that a stage exports its own families and no zeros of another's:
    ask for every unlabelled family at start, so that its zero is there before the first event.
    Label values are replica names and the contract's own words, never what a client sent: that keeps the series few.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self._families: dict[str, Counter | Gauge | Histogram] = {}

    def __getitem__(self, metric: Metric) -> Any:
        """The family: a `Counter`, `Gauge` or `Histogram` by `metric.kind` (typed Any, as the union has no use)."""
        family = self._families.get(metric.name)
        if family is None:
            family = self._families[metric.name] = self._make(metric)
        return family

    def _make(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry)
        # prometheus-client takes a counter's name with or without `_total` and exports it with.
        family = Counter if metric.kind == "counter" else Gauge
        return family(metric.name, metric.help, metric.labels, registry=self.registry)


def export_settings(metrics: Metrics, stage: str, live: LiveSettings[Any]) -> None:
    """What there is to tell of any stage's settings."""
    metrics[SETTINGS_GENERATION].labels(stage).set(live.generation)
    metrics[SETTINGS_TEMPORARY].labels(stage).set(live.seconds_left is not None)


def rows_label(rows: int) -> str:
    """The `rows` label of a step: rounded up to an edge of `ROW_BUCKETS`, `+Inf` beyond the last."""
    at = bisect_left(ROW_BUCKETS, rows)
    return str(ROW_BUCKETS[at]) if at < len(ROW_BUCKETS) else "+Inf"
