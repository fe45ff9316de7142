"""The tuner's state, which survives restarts in a ConfigMap or a file; the status shows its outline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from syrinx_operator.resource.knobs import Identity, Mode, Setting, StatusStruct
from syrinx_stages.contract.metrics import ROW_BUCKETS
from syrinx_stages.contract.stages import Stage

Timestamp = Annotated[datetime, Meta(tz=True)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Difference = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=253)]

MAX_HISTORY = 20
MAX_SHAPES = 96
"""Shapes of calls that are kept: those that took most time."""
MAX_TRIED = 32

Phase = Literal["Off", "Paused", "NoData", "Watching", "Trial", "Soaking"]
Verdict = Literal["Promoted", "RolledBack", "Inconclusive", "Superseded", "Regressed"]


class Bet(StatusStruct, frozen=True, kw_only=True):
    """A test's progress."""

    count: Annotated[int, Meta(ge=0, description="Number of outcomes.")] = 0
    mean: Annotated[float, Meta(description="Mean outcome.")] = 0.0
    mean_square: Annotated[float, Meta(ge=0, description="Mean squared outcome.")] = 0.0
    log_wealth: Annotated[float, Meta(description="Natural logarithm of the wealth. Starts at 0.")] = 0.0


class StepPoint(StatusStruct, frozen=True, array_like=True):
    """Talker steps of up to `rows` rows, a bucket of the metric."""

    rows: Annotated[int, Meta(ge=1)]
    count: Number
    seconds: Number


class CallPoint(StatusStruct, frozen=True, array_like=True):
    """Decoder calls of one requested shape. `captured` ones ran at a captured shape of this size."""

    rows: Annotated[int, Meta(ge=1)]
    frames: Annotated[int, Meta(ge=1)]
    captured: bool
    count: Number
    seconds: Number


class PreparePoint(StatusStruct, frozen=True, array_like=True):
    """Prompts of one task type."""

    task_type: Annotated[str, Meta(max_length=32)]
    count: Number
    seconds: Number


class Measured(StatusStruct, frozen=True, kw_only=True):
    """Engine times of one model on one device, with fading weights."""

    steps: Annotated[tuple[StepPoint, ...], Meta(max_length=len(ROW_BUCKETS) + 1)] = ()
    calls: Annotated[tuple[CallPoint, ...], Meta(max_length=MAX_SHAPES)] = ()
    prepares: Annotated[tuple[PreparePoint, ...], Meta(max_length=8)] = ()
    prefills: Number = 0.0
    prefill_seconds: Number = 0.0

    @property
    def is_known(self) -> bool:
        """Whether both stages were measured."""
        return bool(self.steps and self.calls)


class Served(StatusStruct, frozen=True, kw_only=True):
    """Streamed requests."""

    requests: Count = 0
    """Accepted or refused."""
    bad: Count = 0
    """Late, interrupted, refused, failed, or stopped because they did not end."""

    def __add__(self, other: Served) -> Served:
        return Served(requests=self.requests + other.requests, bad=self.bad + other.bad)

    @property
    def bad_ratio(self) -> float:
        """Ratio of bad requests; 0 without requests."""
        return min(1.0, self.bad / self.requests) if self.requests else 0.0


class Guard(StatusStruct, frozen=True, kw_only=True):
    """Watches that requests are not served worse than expected."""

    expected_bad: Annotated[Ratio, Meta(description="Ratio of bad requests that is no harm.")]
    seen: Annotated[Served, Meta(description="Requests that were counted.")] = Served()
    bet: Annotated[Bet, Meta(description="That more are bad.")] = Bet()


class Trial(StatusStruct, frozen=True, kw_only=True):
    """A switchback experiment: all replicas run the candidate and the baseline in turns, in an order drawn by lot."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    candidate: Annotated[Setting, Meta(description="The setting under test.")]
    baseline: Annotated[Setting, Meta(description="The setting that it is compared with.")]
    why: Annotated[Text, Meta(description="Why the candidate was chosen.")]
    promised: Annotated[Difference, Meta(description="Difference that the model predicts.")] = 0.0
    doubt: Annotated[Ratio, Meta(description="Its mean error about one. 0: it predicts none.")] = 0.0
    start_time: Annotated[Timestamp, Meta(description="Start of the trial.")]
    period_seconds: Annotated[float, Meta(gt=0, description="Counted length of a period.")]
    first_label: Annotated[Count, Meta(description="Label of the first period.")] = 0
    period: Annotated[Count, Meta(description="Number of the period, from 0. Two make a pair.")] = 0
    period_time: Annotated[Timestamp, Meta(description="When its setting was assigned.")]
    confirmed_time: Annotated[Timestamp | None, Meta(description="When every replica ran it.")] = None
    counting_time: Annotated[Timestamp | None, Meta(description="When counting began.")] = None
    pair_time: Annotated[Timestamp | None, Meta(description="When counting of the pair began.")] = None
    replicas: Annotated[tuple[Name, ...], Meta(max_length=512)] = ()
    """Replicas of talker and codec. A change discards the pair."""
    restarts: Annotated[Count, Meta(description="Their restarts.")] = 0
    discarded: Annotated[Count, Meta(description="Pairs that were disturbed.")] = 0
    candidate_served: Annotated[Served, Meta(description="Requests under the candidate.")] = Served()
    baseline_served: Annotated[Served, Meta(description="Requests under the baseline.")] = Served()
    better: Annotated[Bet, Meta(description="That the candidate serves more requests well.")] = Bet()
    worse: Annotated[Bet, Meta(description="That it serves fewer well.")] = Bet()
    guard: Annotated[Guard, Meta(description="The watch over the candidate's periods.")]


class Soak(StatusStruct, frozen=True, kw_only=True):
    """The watch over a setting that has come into force."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    before: Annotated[Setting, Meta(description="The setting that a regression returns to.")]
    start_time: Annotated[Timestamp, Meta(description="Start.")]
    rate: Annotated[float, Meta(ge=0, description="Requests per second at the start.")]
    promised_bad: Annotated[
        Ratio | None, Meta(description="Ratio of bad requests that the model said, of a change without a trial.")
    ] = None
    restarts: Annotated[Count, Meta(description="Restarts of the replicas at the start.")] = 0
    guard: Annotated[Guard, Meta(description="The watch.")]


class Tried(StatusStruct, frozen=True, kw_only=True):
    """What a comparison of two settings has shown."""

    setting: Annotated[Setting, Meta(description="The setting.")]
    baseline: Annotated[Setting, Meta(description="The setting that it was compared with.")]
    difference: Difference
    """Ratio of requests served well, setting minus baseline."""
    error: Annotated[Ratio, Meta(description="Standard error of the difference.")]
    rate: Annotated[float, Meta(ge=0, description="Requests per second then. It holds for a similar load.")]
    until: Annotated[Timestamp, Meta(description="The setting is not tried again before.")]


class TrialRecord(StatusStruct, frozen=True, kw_only=True):
    """The result of a trial."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    time: Annotated[Timestamp, Meta(description="When it was decided.")]
    start_time: Annotated[Timestamp, Meta(description="Start of the trial.")]
    before: Annotated[Text, Meta(description="The values that differ, in the baseline.")]
    after: Annotated[Text, Meta(description="The same in the candidate.")]
    verdict: Annotated[Verdict, Meta(description="The verdict.")]
    reason: Annotated[Text, Meta(description="Reason for the verdict.")]
    requests: Annotated[Count, Meta(description="Requests of both arms.")] = 0
    difference: Difference | None = None
    """Mean difference of the ratio of requests served well, candidate minus baseline."""
    forecast: Difference | None = None
    """The difference that the model had predicted."""


class Recommendation(StatusStruct, frozen=True, kw_only=True):
    """The change that mode Auto would make next."""

    setting: Annotated[Setting, Meta(description="All knobs with the change.")]
    rationale: Annotated[Text, Meta(description="Why it is recommended.")]


class Forecast(StatusStruct, frozen=True, kw_only=True):
    """What the model says of the load at its last run."""

    time: Annotated[Timestamp, Meta(description="When it ran.")]
    rate: Annotated[float, Meta(ge=0, description="Requests per second.")]
    observed: Annotated[Ratio, Meta(description="Ratio of requests served well.")]
    current: Annotated[Ratio, Meta(description="The same, according to the model.")]
    best: Annotated[Ratio, Meta(description="The same under the best setting.")]
    setting: Annotated[Setting, Meta(description="The best setting.")]


class Curve(StatusStruct, frozen=True, array_like=True):
    """Requests per second that n replicas serve well: slope * n - root * sqrt(n).

    The fluctuation of a load grows as its square root. It may take several replicas to serve any load well.
    """

    slope: Number = 0.0
    """0: no number of replicas serves any load well."""
    root: Number = 0.0

    def served(self, count: float) -> float:
        """Returns the requests per second that a number of replicas serves well."""
        return max(0.0, self.slope * count - self.root * math.sqrt(count))

    def needed(self, rate: float) -> float:
        """Returns the least number of replicas that serves requests per second well; 0 if none does."""
        if self.slope <= 0:
            return 0.0
        return ((self.root + math.sqrt(self.root**2 + 4 * self.slope * rate)) / (2 * self.slope)) ** 2


class Capacity(StatusStruct, frozen=True, kw_only=True):
    """What talkers and codecs can serve, according to the model."""

    setting: Annotated[Setting, Meta(description="The setting that it holds for.")]
    shares: Annotated[Mapping[str, Ratio], Meta(description="Shares of the task types that it holds for.")]
    frames: Annotated[float, Meta(ge=0, description="Mean frames of a request that it holds for.")]
    curves: Annotated[Mapping[Stage, Curve], Meta(description="Capacity by stage.")]


LOG_WORTHS = tuple(number / 10 for number in range(-15, 13))


class Worth(StatusStruct, frozen=True, array_like=True):
    """How many of the model's replicas one is worth: the chances of each of `LOG_WORTHS`, in thousandths."""

    chances: tuple[Number, ...] = tuple(
        round(130 * math.exp(-(((each + 0.1) / 0.3) ** 2) / 2), 1) for each in LOG_WORTHS
    )

    @property
    def usual(self) -> float:
        """The median."""
        left = sum(self.chances) / 2
        for log_worth, chance in zip(LOG_WORTHS, self.chances, strict=True):
            if left < chance:
                return math.exp(log_worth + (LOG_WORTHS[1] - LOG_WORTHS[0]) * (left / chance - 0.5))
            left -= chance
        return math.exp(LOG_WORTHS[-1])


class Peak(StatusStruct, frozen=True, array_like=True):
    """The last time at which so many replicas were needed."""

    time: Timestamp
    count: Count


class StageReplicas(StatusStruct, frozen=True, kw_only=True):
    """Replicas of a stage."""

    count: Annotated[Count, Meta(description="Number in force.")]
    ready: Annotated[Count, Meta(description="How many are ready.")] = 0
    wanted: Annotated[Count, Meta(description="Number that the expected load needs, also beyond the bounds.")] = 0
    recommended: Annotated[Count | None, Meta(description="Number that mode Auto would choose.")] = None
    worth: Worth = Worth()
    peaks: tuple[Peak, ...] = ()
    """Larger needs of the last five minutes, the largest first."""


class Replicas(StatusStruct, frozen=True, kw_only=True):
    """What is known about the number of replicas."""

    stages: Annotated[Mapping[Stage, StageReplicas], Meta(description="Talkers and codecs.")] = {}
    why: Annotated[Text, Meta(description="The last change.")] = ""
    capacity: Annotated[Capacity | None, Meta(description="What replicas can do.")] = None
    ready_time: Annotated[Timestamp, Meta(description="When the number of ready replicas changed last.")]
    judged_time: Annotated[Timestamp, Meta(description="Requests up to here have shown what a replica is worth.")]
    added_time: Annotated[Timestamp | None, Meta(description="When replicas were added that are not ready yet.")] = None
    start_seconds: Annotated[float, Meta(ge=0, description="Time until a new replica is ready.")] = 120.0


class State(StatusStruct, frozen=True, kw_only=True):
    """State of the tuner."""

    # Default factories keep these three in the output: `omit_defaults` compares plain defaults only.
    mode: Annotated[Mode, Meta(description="The requested mode.")] = field(default_factory=lambda: "Recommend")
    phase: Phase = field(default_factory=lambda: "NoData")
    """Off and Paused as requested. NoData: no requests or metrics. Watching: requests are counted. Trial: a setting is
    tried. Soaking: one that has come into force is watched."""
    message: Text = field(default_factory=lambda: "not evaluated yet")
    """Details of the phase."""
    requested: Annotated[Setting | None, Meta(description="Setting that spec requested at the last evaluation.")] = None
    chosen: Setting | None = None
    """Setting in force outside of trials. Absent while it is the requested one."""
    last_change_time: Timestamp | None = None
    """Last change of settings. Earlier requests are not evaluated."""
    identity: Annotated[Identity | None, Meta(description="Model, image and device that the results hold for.")] = None
    measured: Annotated[Measured, Meta(description="Engine times.")] = Measured()
    measured_time: Annotated[Timestamp | None, Meta(description="They are known up to here.")] = None
    forecast: Annotated[Forecast | None, Meta(description="The last run of the model.")] = None
    next_plan_time: Annotated[
        Timestamp | None, Meta(description="The model does not run before, unless the load changes.")
    ] = None
    fruitless: Annotated[Count, Meta(description="Runs of the model in a row that found nothing to try.")] = 0
    load_time: Annotated[
        Timestamp | None, Meta(description="When the load changed last. Earlier requests and comparisons do not count.")
    ] = None
    recommendation: Annotated[Recommendation | None, Meta(description="The next change.")] = None
    trial_count: Annotated[Count, Meta(description="Trials so far.")] = 0
    label: Annotated[Count, Meta(description="Label of the next period.")] = 0
    replicas: Annotated[Replicas | None, Meta(description="The number of replicas. Absent if others decide.")] = None
    trial: Annotated[Trial | None, Meta(description="The trial in progress.")] = None
    soak: Annotated[Soak | None, Meta(description="The watch in progress.")] = None
    tried: Annotated[tuple[Tried, ...], Meta(max_length=MAX_TRIED)] = ()
    """Comparisons, oldest first."""
    history: Annotated[tuple[TrialRecord, ...], Meta(max_length=MAX_HISTORY)] = ()
    """The last results, oldest first."""
