"""The tuner's state: the ConfigMap NAME-tuning on Kubernetes, and a file for `syrinx up`. Types only.

The state is bounded and holds everything needed to continue after a restart. The settings in force follow from it
alone.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from msgspec import Meta, field

from syrinx_operator.resource.knobs import Identity, Knob, Mode, Setting, StatusStruct
from syrinx_stages.contract.family import TaskName

Timestamp = Annotated[datetime, Meta(tz=True)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Difference = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=253)]

MAX_CANDIDATES = 64
"""Limit of replicas that run a candidate before its promotion."""
MAX_HISTORY = 20
MAX_QUARANTINE = 32
MAX_BEST_KNOWN = 32

Phase = Literal["Off", "Paused", "NoData", "Watching", "Trial", "Promoting", "Soaking"]
Verdict = Literal["Promoted", "RolledBack", "Inconclusive", "Superseded", "Regressed"]
Goal = Literal["GoodRequests", "Throughput", "EngineTime"]
StratumName = Literal["all", TaskName]


class _Sums(StatusStruct, frozen=True, kw_only=True):
    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Counts(_Sums, frozen=True, kw_only=True):
    """Requests of one arm and task type."""

    requests: Count = 0
    """Streaming requests that reached first audio or were refused or failed."""
    good: Count = 0
    """Requests that met the TTFA objective, minus streams with an underrun."""
    underruns: Annotated[Count, Meta(description="Streams whose playback underran.")] = 0
    errors: Annotated[Count, Meta(description="Requests that failed.")] = 0

    @property
    def good_ratio(self) -> float:
        """Ratio of good requests; 1 without requests."""
        return self.good / self.requests if self.requests else 1.0


class EProcess(StatusStruct, frozen=True, kw_only=True):
    """Evidence for one hypothesis: the wealth of a test by betting."""

    log_wealth: Annotated[float, Meta(description="Natural logarithm of the wealth. Starts at 0.")] = 0.0
    mean_payoff: Annotated[Difference, Meta(description="Mean payoff of the bets.")] = 0.0


class PairedTest(StatusStruct, frozen=True, kw_only=True):
    """Anytime-valid test of paired differences, candidate minus baseline."""

    pairs: Annotated[Count, Meta(description="Pairs of periods.")] = 0
    mean: Annotated[Difference, Meta(description="Mean difference.")] = 0.0
    mean_square: Annotated[Ratio, Meta(description="Mean squared difference.")] = 0.0
    better: EProcess = EProcess()
    """Evidence that the candidate is better by more than the deadband."""
    worse: Annotated[EProcess, Meta(description="Evidence that the candidate is worse.")] = EProcess()
    futile: EProcess = EProcess()
    """Evidence that the candidate is not better by the deadband."""


class Stratum(StatusStruct, frozen=True, kw_only=True):
    """Evidence for one task type, or for `all`, where each task type is weighted by its requests."""

    task_type: Annotated[StratumName, Meta(description="Task type, or `all`.")]
    candidate: Annotated[Counts, Meta(description="Requests under the candidate.")] = Counts()
    baseline: Annotated[Counts, Meta(description="Requests under the baseline.")] = Counts()
    test: Annotated[PairedTest, Meta(description="The paired test.")] = PairedTest()
    baseline_min_good: Ratio | None = None
    """Smallest ratio of good requests in a baseline period or before the trial."""
    baseline_ttfa_p95: Seconds | None = None
    """Largest 95th percentile of TTFA in a baseline period, in seconds."""


class PeriodCounts(StatusStruct, frozen=True, kw_only=True):
    """Counts of one task type in the first period of a pair."""

    task_type: Annotated[TaskName, Meta(description="Task type.")]
    candidate: Annotated[Counts, Meta(description="Requests under the candidate.")] = Counts()
    baseline: Annotated[Counts, Meta(description="Requests under the baseline.")] = Counts()


class Period(StatusStruct, frozen=True, kw_only=True):
    """A time span in which each replica keeps its arm."""

    index: Annotated[Count, Meta(description="Index within the trial, from 0. Two periods make a pair.")]
    candidate_replicas: Annotated[tuple[Name, ...], Meta(max_length=MAX_CANDIDATES)] = ()
    """Replicas that run the candidate."""
    baseline_replicas: Annotated[tuple[Name, ...], Meta(max_length=MAX_CANDIDATES)] = ()
    """Replicas that they are compared with."""
    all_replicas: Annotated[bool, Meta(description="Whether all replicas of the stage run the candidate.")] = False
    start_time: Annotated[Timestamp, Meta(description="When the arms were assigned.")]
    counting_since: Timestamp | None = None
    """Start of counting. Absent until every replica has confirmed its arm."""
    replicas: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()
    """Replicas of the stage at the start. A change discards the period."""
    restarts: Annotated[tuple[Count, ...], Meta(max_length=256, description="Restart counts of the replicas.")] = ()


class ArmWork(_Sums, frozen=True, kw_only=True):
    """Engine work of the tuned stage, by arm."""

    candidate_frames: Annotated[Count, Meta(description="Frames generated under the candidate.")] = 0
    candidate_busy_seconds: Annotated[Seconds, Meta(description="Engine time under the candidate.")] = 0.0
    candidate_replica_seconds: Annotated[Seconds, Meta(description="Replica time under the candidate.")] = 0.0
    baseline_frames: Annotated[Count, Meta(description="Frames generated under the baseline.")] = 0
    baseline_busy_seconds: Annotated[Seconds, Meta(description="Engine time under the baseline.")] = 0.0
    baseline_replica_seconds: Annotated[Seconds, Meta(description="Replica time under the baseline.")] = 0.0


class Trial(StatusStruct, frozen=True, kw_only=True):
    """The experiment in progress: a candidate that differs from the baseline in one knob."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    knob: Annotated[Knob, Meta(description="The knob under test.")]
    goal: Goal = "GoodRequests"
    """The metric under test. GoodRequests: ratio of good requests. Throughput: frames per replica second, used
    under overload. EngineTime: engine time per frame."""
    candidate: Annotated[Setting, Meta(description="The setting under test.")]
    baseline: Annotated[Setting, Meta(description="The setting that it is compared with.")]
    design: Literal["Parallel", "Switchback"]
    """Parallel: both arms at once on different replicas. Switchback: alternating on all replicas."""
    rationale: Annotated[Text, Meta(description="Why the candidate was chosen.")]
    start_time: Annotated[Timestamp, Meta(description="Start of the trial.")]
    period_seconds: Annotated[float, Meta(gt=0, description="Counted length of a period.")]
    period: Annotated[Period, Meta(description="The period in progress.")]
    first_period: Annotated[tuple[PeriodCounts, ...], Meta(max_length=3)] = ()
    """Counts of the first period while the second runs."""
    first_period_work: Annotated[ArmWork, Meta(description="Engine work of the first period.")] = ArmWork()
    strata: Annotated[tuple[Stratum, ...], Meta(max_length=4, description="Evidence: `all`, then by task type.")] = ()
    discarded_periods: Annotated[Count, Meta(description="Periods that were disturbed and discarded.")] = 0
    aborts_to_reject: Annotated[int, Meta(ge=1, le=2)] = 1
    """Aborted periods that reject the candidate; 2 for a stage with high utilization."""
    aborted_periods: Annotated[Count, Meta(description="Periods aborted because the candidate seemed harmful.")] = 0
    recovery_threshold: Ratio | None = None
    """After an aborted period: ratio of good requests that rejects the candidate."""
    extensions: Annotated[Count, Meta(description="How often the trial was extended with longer periods.")] = 0
    work: Annotated[ArmWork, Meta(description="Engine work of all pairs.")] = ArmWork()

    @property
    def overall(self) -> Stratum:
        """The evidence for `all`."""
        return self.strata[0] if self.strata else Stratum(task_type="all")

    @property
    def baseline_min_good(self) -> float | None:
        """Smallest ratio of good requests under the baseline over all task types; None if unknown."""
        return min((s.baseline_min_good for s in self.strata if s.baseline_min_good is not None), default=None)


class Promotion(StatusStruct, frozen=True, kw_only=True):
    """The roll-out of a promoted setting, replica by replica."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    setting: Annotated[Setting, Meta(description="The promoted setting.")]
    replicas: Annotated[tuple[Name, ...], Meta(max_length=MAX_CANDIDATES)]
    """Replicas that run it. Their number doubles with each step."""
    last_step_time: Annotated[Timestamp, Meta(description="When the last replicas were added.")]


class Soak(StatusStruct, frozen=True, kw_only=True):
    """The observation time after a promotion."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    start_time: Annotated[Timestamp, Meta(description="When every replica ran the setting.")]
    end_time: Annotated[Timestamp, Meta(description="When the soak passes.")]
    expected_good: Ratio
    """Ratio of good requests before the promotion. A lower ratio is a regression."""
    restarts: Annotated[Count, Meta(description="Restarts of the stage's replicas at the start.")] = 0


class Workload(StatusStruct, frozen=True, kw_only=True):
    """A coarse class of workloads. Results hold only within it."""

    mix: Annotated[str, Meta(max_length=64)]
    """Task types and their shares in quarters, as in Base:1,CustomVoice:3."""
    rate_bucket: Annotated[int, Meta(description="Requests per second as a rounded power of the square root of 2.")]


class QuarantinedSetting(StatusStruct, frozen=True, kw_only=True):
    """A setting that is not tried again before a given time."""

    setting: Annotated[Setting, Meta(description="The setting.")]
    workload: Annotated[Workload, Meta(description="The workload that it failed under.")]
    reason: Annotated[Text, Meta(description="Why it failed.")]
    failures: Annotated[Annotated[int, Meta(ge=1)], Meta(description="Number of failures. Each doubles the time.")]
    until: Annotated[Timestamp, Meta(description="When it may be tried again.")]


class BestKnown(StatusStruct, frozen=True, kw_only=True):
    """The best setting found under a workload."""

    workload: Annotated[Workload, Meta(description="The workload.")]
    setting: Annotated[Setting, Meta(description="The setting.")]
    good_ratio: Annotated[Ratio, Meta(description="Its ratio of good requests.")]
    time: Annotated[Timestamp, Meta(description="When it was found.")]


class TrialRecord(StatusStruct, frozen=True, kw_only=True):
    """The result of a trial or promotion."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    time: Annotated[Timestamp, Meta(description="When it was decided.")]
    start_time: Annotated[Timestamp, Meta(description="Start of the trial.")]
    workload: Annotated[Workload | None, Meta(description="The workload.")] = None
    knob: Annotated[Knob, Meta(description="The knob under test.")]
    before: Annotated[Text, Meta(description="Value of the baseline.")]
    after: Annotated[Text, Meta(description="Value of the candidate.")]
    verdict: Annotated[Verdict, Meta(description="The verdict.")]
    reason: Annotated[Text, Meta(description="Reason for the verdict.")]
    requests: Annotated[Count, Meta(description="Requests of both arms.")] = 0
    baseline_min_good: Ratio | None = None
    """Smallest ratio of good requests in a baseline period."""
    difference: Difference | None = None
    """Mean difference, candidate minus baseline. GoodRequests: of the ratios. Throughput and EngineTime (sign
    reversed): divided by the larger arm."""
    lower: Annotated[Difference | None, Meta(description="Lower bound of the 95 % confidence sequence.")] = None
    upper: Annotated[Difference | None, Meta(description="Upper bound of the 95 % confidence sequence.")] = None


class Recommendation(StatusStruct, frozen=True, kw_only=True):
    """The change that mode Auto would try next."""

    knob: Annotated[Knob, Meta(description="The knob.")]
    setting: Annotated[Setting, Meta(description="All knobs with the change.")]
    rationale: Annotated[Text, Meta(description="Why it is recommended.")]


class State(StatusStruct, frozen=True, kw_only=True):
    """State of the tuner."""

    # Default factories keep these three in the output: `omit_defaults` compares plain defaults only.
    mode: Annotated[Mode, Meta(description="The requested mode.")] = field(default_factory=lambda: "Recommend")
    phase: Phase = field(default_factory=lambda: "NoData")
    """Off and Paused as requested. NoData: no requests or metrics. Watching: the objectives are evaluated.
    Trial, Promoting, Soaking: a change is tested, rolled out, and observed."""
    message: Text = field(default_factory=lambda: "not evaluated yet")
    """Details of the phase."""
    requested: Annotated[Setting | None, Meta(description="Setting that spec requested at the last evaluation.")] = None
    chosen: Setting | None = None
    """Setting in force outside of trials. Absent while it is the requested one."""
    last_change_time: Timestamp | None = None
    """Last change of settings. Earlier requests are not evaluated."""
    last_good: Annotated[Setting | None, Meta(description="Setting that a regression reverts to.")] = None
    identity: Annotated[Identity | None, Meta(description="Model, image and device that the results hold for.")] = None
    workload: Annotated[Workload | None, Meta(description="The current workload.")] = None
    consecutive_breaches: Count = 0
    """Consecutive evaluations that missed an objective, up to 3."""
    last_breach_time: Annotated[Timestamp | None, Meta(description="When the last of them was counted.")] = None
    next_trial_time: Annotated[Timestamp | None, Meta(description="No trial starts before this time.")] = None
    recommendation: Annotated[Recommendation | None, Meta(description="The next change to try.")] = None
    trial_count: Annotated[Count, Meta(description="Trials so far.")] = 0
    trial: Annotated[Trial | None, Meta(description="The trial in progress.")] = None
    promotion: Annotated[Promotion | None, Meta(description="The promotion in progress.")] = None
    soak: Annotated[Soak | None, Meta(description="The soak in progress.")] = None
    quarantine: Annotated[tuple[QuarantinedSetting, ...], Meta(max_length=MAX_QUARANTINE)] = ()
    """Settings that are not tried for now."""
    best_known: Annotated[tuple[BestKnown, ...], Meta(max_length=MAX_BEST_KNOWN)] = ()
    """Best settings by workload."""
    history: Annotated[tuple[TrialRecord, ...], Meta(max_length=MAX_HISTORY)] = ()
    """The last results, oldest first."""
