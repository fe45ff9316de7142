"""The metrics of `contract.metrics` as prometheus-client objects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from syrinx_stages.contract.metrics import ROW_BUCKETS, SETTINGS_GENERATION, SETTINGS_TEMPORARY, Metric
from syrinx_stages.runtime.settings import LiveSettings

if TYPE_CHECKING:
    from syrinx_stages.runtime.telemetry.otel import Tracer


class Metrics:
    """The metrics of one process, in one registry.

    A family is created when it is first accessed, so a stage exports only its own. Access unlabeled families at the
    start: their zero must be exported before the first event. Label values are replica names, names of API keys, arms
    of trials and constants of the contract, never client input, which bounds the number of series.
    """

    def __init__(self, registry: CollectorRegistry, tracer: Tracer | None = None) -> None:
        """`tracer` records the spans of this process's requests; None if they are not traced."""
        self.tracer = tracer
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self._families: dict[str, Counter | Gauge | Histogram] = {}

    def __getitem__(self, metric: Metric) -> Any:
        """Returns the `Counter`, `Gauge` or `Histogram` (typed Any, because callers know the kind)."""
        if metric.name not in self._families:
            self._families[metric.name] = self._create(metric)
        return self._families[metric.name]

    def families(self) -> Sequence[Counter | Gauge | Histogram]:
        """Returns the families that exist now. Safe in any thread."""
        return list(self._families.values())

    def _create(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry)
        # prometheus-client accepts the name of a counter with or without `_total` and exports it with the suffix.
        family = Counter if metric.kind == "counter" else Gauge
        return family(metric.name, metric.help, metric.labels, registry=self.registry)


def series_labels(pipeline: str, track: str = "") -> dict[str, str]:
    """Returns the labels of all series of a process, by which dashboards and alerts select them.

    `track`: that of a canary.
    """
    return {"pipeline": pipeline, **({"track": track} if track else {})}


def export_settings(metrics: Metrics, stage: str, live: LiveSettings[Any]) -> None:
    """Exports the generation of a stage's settings and whether temporary ones are in force."""
    metrics[SETTINGS_GENERATION].labels(stage).set(live.generation)
    metrics[SETTINGS_TEMPORARY].labels(stage).set(live.seconds_left is not None)


def rows_label(rows: int) -> str:
    """Returns the `rows` label of a step: rounded up to an edge of `ROW_BUCKETS`, or `+Inf`."""
    index = bisect_left(ROW_BUCKETS, rows)
    return str(ROW_BUCKETS[index]) if index < len(ROW_BUCKETS) else "+Inf"
