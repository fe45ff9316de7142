"""Prometheus metrics of the tuner, computed from its state at each scrape."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import get_args

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.tuning_status import Phase, State, Verdict
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.replicas import able

PIPELINE = ("pipeline_namespace", "pipeline")
"""Labels of every series. Prometheus adds its own label `namespace`, that of the scraped pod."""

PUT_IN_FORCE = "PutInForce"
"""A decision without a verdict: a change that came into force without a trial."""
_DECISIONS = "syrinx_tuning_decisions"
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "syrinx_tuning_knob": (
        "Value in force outside of trials: rows, frames of a ramp's first chunk, or number of capture pairs.",
        "knob",
    ),
    "syrinx_tuning_phase": ("1 for the current phase of tuning, else 0.", "phase"),
    "syrinx_tuning_trial_age_seconds": ("Age of the trial in progress; 0 without one.",),
    "syrinx_tuning_good_ratio": ("Ratio of requests served well in the trial in progress, by arm.", "arm"),
    "syrinx_tuning_requests": ("Requests in the compared periods of the trial in progress, by arm.", "arm"),
    "syrinx_tuning_forecast_ratio": (
        "Ratio of requests served well at the last run of the model: observed, and predicted for the current and the "
        "best setting.",
        "of",
    ),
    "syrinx_tuning_replicas": (
        "Replicas of a stage whose number the tuner decides: set, and needed, also beyond the bounds.",
        "stage",
        "of",
    ),
    "syrinx_tuning_capacity_requests": (
        "Requests per second that the replicas serve well, by stage, as predicted and corrected by what is observed.",
        "stage",
    ),
    "syrinx_tuning_metrics_age_seconds": ("Age of the newest stage metrics of the tuner.",),
    _DECISIONS: ("Decisions since the process started: verdicts, and changes put in force without a trial.", "verdict"),
}
"""By name: help text, and labels besides `PIPELINE`."""

PipelineKey = tuple[str, str]
"""Namespace (empty for `syrinx up`) and name of a pipeline."""


class _Exported(Struct):
    """Last update of a pipeline."""

    base: Setting
    state: State
    metrics_until: datetime | None
    decisions: dict[str, int]


class TunerTelemetry(Collector):
    """Exports all `syrinx_tuning_*` metrics of the pipelines in `update`, until `forget`."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._pipelines: dict[PipelineKey, _Exported] = {}
        self._clock = clock
        registry.register(self)

    def update(
        self,
        pipeline: PipelineKey,
        *,
        base: Setting,
        state: State,
        events: tuple[Event, ...] = (),
        metrics_until: datetime | None = None,
    ) -> None:
        """Stores the state of a pipeline and counts its new events.

        `base` is the setting in force outside of trials. `metrics_until` is the time of the newest stage metrics;
        None keeps the last one.
        """
        before = self._pipelines.get(pipeline)
        decisions = before.decisions if before else dict.fromkeys((*get_args(Verdict), PUT_IN_FORCE), 0)
        if metrics_until is None and before is not None:
            metrics_until = before.metrics_until
        for event in events:
            if event.reason in decisions:
                decisions[event.reason] += 1
        self._pipelines[pipeline] = _Exported(base, state, metrics_until, decisions)

    def forget(self, pipeline: PipelineKey) -> None:
        """Removes the series of a pipeline."""
        self._pipelines.pop(pipeline, None)

    def collect(self) -> Iterator[Metric]:
        """Returns the current values."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, (text, *extra) in _FAMILIES.items():
            family = CounterMetricFamily if name == _DECISIONS else GaugeMetricFamily
            families[name] = family(name, text, labels=(*PIPELINE, *extra))
        now = self._clock()
        for pipeline, exported in self._pipelines.items():
            for name, labels, value in _samples(exported, now):
                families[name].add_metric((*pipeline, *labels), value)
        yield from families.values()


def _samples(exported: _Exported, now: datetime) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yields name, labels besides `PIPELINE`, and value."""
    state, trial = exported.state, exported.state.trial
    for knob in Knob:
        yield "syrinx_tuning_knob", (knob,), _number(exported.base, knob)
    for phase in get_args(Phase):
        yield "syrinx_tuning_phase", (phase,), float(state.phase == phase)
    age = 0.0 if trial is None else max(0.0, (now - trial.start_time).total_seconds())
    yield "syrinx_tuning_trial_age_seconds", (), age
    if trial is not None:
        for arm, served in (("candidate", trial.candidate_served), ("baseline", trial.baseline_served)):
            yield "syrinx_tuning_requests", (arm,), served.requests
            if served.requests:
                yield "syrinx_tuning_good_ratio", (arm,), 1 - served.bad_ratio
    if (forecast := state.forecast) is not None:
        for of, ratio in (("observed", forecast.observed), ("current", forecast.current), ("best", forecast.best)):
            yield "syrinx_tuning_forecast_ratio", (of,), ratio
    if (memory := state.replicas) is not None:
        for stage, part in memory.stages.items():
            yield "syrinx_tuning_replicas", (stage, "set"), part.count
            if memory.capacity is not None:
                yield "syrinx_tuning_replicas", (stage, "needed"), part.wanted
                yield "syrinx_tuning_capacity_requests", (stage,), able(memory, stage)
    if exported.metrics_until is not None:
        yield "syrinx_tuning_metrics_age_seconds", (), max(0.0, (now - exported.metrics_until).total_seconds())
    for verdict, count in exported.decisions.items():
        yield _DECISIONS, (verdict,), count


def _number(setting: Setting, knob: Knob) -> float:
    value = setting.value(knob)
    if knob is Knob.RAMP:
        return float(value[0])
    return float(len(value) if knob is Knob.PAIRS else value)
