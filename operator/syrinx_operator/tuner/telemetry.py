"""The tuner's own metrics, as made of what it remembers when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import get_args

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Phase, State, Verdict
from syrinx_operator.tuner.decide import Event

PIPELINE = ("pipeline_namespace", "pipeline")
"""Labels of every series. A scrape has a label `namespace` of its own: that of whoever is scraped."""

Series = tuple[str, str]
"""A pipeline's namespace (empty beside `syrinx up`) and name."""


class _Known(Struct):
    """What was told of a pipeline last."""

    base: Setting
    state: State
    metrics_until: datetime | None
    decisions: dict[str, int]


class TunerTelemetry(Collector):
    """Every `syrinx_tuning_*` metric. A pipeline has series as long as it is known."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._known: dict[Series, _Known] = {}
        self._clock = clock
        registry.register(self)

    def update(
        self,
        pipeline: Series,
        *,
        base: Setting,
        state: State,
        events: tuple[Event, ...] = (),
        metrics_until: datetime | None = None,
    ) -> None:
        """What holds of a pipeline now. `base` is in force, trials aside; `events` are what has just been decided.

        `metrics_until` is the time up to which its metrics are known; None leaves what was known.
        """
        before = self._known.get(pipeline)
        decisions = before.decisions if before else dict.fromkeys(get_args(Verdict), 0)
        if metrics_until is None and before is not None:
            metrics_until = before.metrics_until
        for event in events:
            if event.reason in decisions:
                decisions[event.reason] += 1
        self._known[pipeline] = _Known(base, state, metrics_until, decisions)

    def forget(self, pipeline: Series) -> None:
        """It is gone, or no longer ours."""
        self._known.pop(pipeline, None)

    def collect(self) -> Iterator[Metric]:
        """The present values."""
        families = _Families()
        now = self._clock()
        for labels, known in self._known.items():
            families.add(labels, known, now)
        yield from families.all


class _Families:
    """One scrape."""

    def __init__(self) -> None:
        knob, arm = (*PIPELINE, "knob"), (*PIPELINE, "task_type", "arm")
        self.knob = GaugeMetricFamily(
            "syrinx_tuning_knob",
            "What is in force, trials aside: rows; frames of a ramp's first chunk; the number of capture pairs.",
            labels=knob,
        )
        self.phase = GaugeMetricFamily(
            "syrinx_tuning_phase", "1 for the phase that tuning is in, else 0.", labels=(*PIPELINE, "phase")
        )
        self.age = GaugeMetricFamily(
            "syrinx_tuning_trial_age_seconds", "Age of the trial under way; 0 without one.", labels=PIPELINE
        )
        self.good = GaugeMetricFamily(
            "syrinx_tuning_good_ratio",
            "Share of requests served well in the trial under way, by task type (or all) and arm.",
            labels=arm,
        )
        self.requests = GaugeMetricFamily(
            "syrinx_tuning_requests", "Requests compared in the trial under way, by task type and arm.", labels=arm
        )
        self.stale = GaugeMetricFamily(
            "syrinx_tuning_metrics_age_seconds", "Age of the newest metrics that tuning knows.", labels=PIPELINE
        )
        self.decisions = CounterMetricFamily(
            "syrinx_tuning_decisions",
            "Trials and promotions ended since this process started, by verdict.",
            labels=(*PIPELINE, "verdict"),
        )

    @property
    def all(self) -> tuple[Metric, ...]:
        return (self.knob, self.phase, self.age, self.good, self.requests, self.stale, self.decisions)

    def add(self, pipeline: Series, known: _Known, now: datetime) -> None:
        state, trial = known.state, known.state.trial
        for knob in Knob:
            self.knob.add_metric((*pipeline, knob), _number(known.base, knob))
        for phase in get_args(Phase):
            self.phase.add_metric((*pipeline, phase), float(state.phase == phase))
        self.age.add_metric(pipeline, 0.0 if trial is None else max(0.0, (now - trial.start_time).total_seconds()))
        for cell in trial.strata if trial else ():
            for arm, counts in (("candidate", cell.candidate), ("baseline", cell.baseline)):
                self.requests.add_metric((*pipeline, cell.task_type, arm), counts.requests)
                if counts.requests:
                    self.good.add_metric((*pipeline, cell.task_type, arm), counts.good / counts.requests)
        if known.metrics_until is not None:
            self.stale.add_metric(pipeline, max(0.0, (now - known.metrics_until).total_seconds()))
        for verdict, count in known.decisions.items():
            self.decisions.add_metric((*pipeline, verdict), count)


def _number(setting: Setting, knob: Knob) -> float:
    """A knob's value as a number that can be drawn."""
    value = setting.value(knob)
    if knob is Knob.RAMP:
        return float(value[0])
    return float(len(value) if knob is Knob.PAIRS else value)
