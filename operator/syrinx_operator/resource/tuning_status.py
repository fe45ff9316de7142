"""All that the tuner remembers: `status.tuning` of the resource, and a file beside `syrinx up`. Types only.

Everything needed to go on after a restart is here, and bounded. What settings are in force follows from it alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from syrinx_operator.resource.knobs import Identity, Knob, Mode, Setting, StatusStruct
from syrinx_stages.contract.family import TaskName

Timestamp = Annotated[datetime, Meta(tz=True)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Difference = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=253)]

MAX_CANDIDATES = 64
"""Replicas that run a candidate at most, before it is promoted."""
MAX_HISTORY = 20
MAX_QUARANTINE = 32
MAX_BEST_KNOWN = 32

Phase = Literal["Off", "Paused", "NoData", "Watching", "Trial", "Promoting", "Soaking"]
Verdict = Literal["Promoted", "RolledBack", "Inconclusive", "Superseded", "Regressed"]
Goal = Literal["Listeners", "Throughput", "Work"]
StratumName = Literal["all", TaskName]


class Counts(StatusStruct, frozen=True, kw_only=True):
    """What one arm did to the requests of one task type."""

    requests: Annotated[Count, Meta(description="Live requests heard, or refused.")] = 0
    good: Annotated[Count, Meta(description="Of these, heard within the objective, less those that had to wait.")] = 0
    underruns: Annotated[Count, Meta(description="Streams whose playback had to wait.")] = 0
    errors: Annotated[Count, Meta(description="Requests that ended with an error.")] = 0


class EProcess(StatusStruct, frozen=True, kw_only=True):
    """Evidence against one hypothesis, as money won in bets on its being wrong (`stats`)."""

    log_wealth: Annotated[float, Meta(description="Log of the money, from 0.")] = 0.0
    mean_payoff: Annotated[float, Meta(ge=-1, le=1, description="Mean outcome of the bets, from -1 to 1.")] = 0.0


class PairedTest(StatusStruct, frozen=True, kw_only=True):
    """A running test of paired differences: anytime-valid, so it may be looked at after each pair (`stats`)."""

    pairs: Annotated[Count, Meta(description="Pairs of periods compared.")] = 0
    mean: Annotated[Difference, Meta(description="Mean difference, candidate less baseline.")] = 0.0
    mean_square: Annotated[float, Meta(ge=0, le=1, description="Mean of the squared differences.")] = 0.0
    better: Annotated[EProcess, Meta(description="That it is better by more than the deadband.")] = EProcess()
    worse: Annotated[EProcess, Meta(description="That it is worse.")] = EProcess()
    futile: Annotated[EProcess, Meta(description="That it is not better by the deadband.")] = EProcess()


class Stratum(StatusStruct, frozen=True, kw_only=True):
    """The evidence on one task type; `all` is the whole, each task type weighing as much as it was asked for."""

    task_type: Annotated[StratumName, Meta(description="Task type, or `all` of them.")]
    candidate: Annotated[Counts, Meta(description="Under the candidate.")] = Counts()
    baseline: Annotated[Counts, Meta(description="Under the baseline.")] = Counts()
    test: Annotated[PairedTest, Meta(description="The comparison.")] = PairedTest()
    baseline_min_good: Annotated[
        Ratio | None,
        Meta(description="Smallest share served well under the baseline in a period, or before the trial."),
    ] = None
    baseline_ttfa_p95: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="95th percentile of time to first audio under the baseline, in seconds; the largest."),
    ] = None


class PeriodCounts(StatusStruct, frozen=True, kw_only=True):
    """One task type in the first period of a pair."""

    task_type: Annotated[TaskName, Meta(description="Task type.")]
    candidate: Annotated[Counts, Meta(description="Under the candidate.")] = Counts()
    baseline: Annotated[Counts, Meta(description="Under the baseline.")] = Counts()


class Period(StatusStruct, frozen=True, kw_only=True):
    """A stretch of time in which each replica keeps its arm."""

    index: Annotated[Count, Meta(description="Of the trial's periods, from 0; two make a pair.")]
    candidate_replicas: Annotated[
        tuple[Name, ...], Meta(max_length=MAX_CANDIDATES, description="Replicas that run the candidate.")
    ] = ()
    baseline_replicas: Annotated[
        tuple[Name, ...], Meta(max_length=MAX_CANDIDATES, description="Replicas that they are compared with.")
    ] = ()
    all_replicas: Annotated[bool, Meta(description="Whether every replica of the stage runs the candidate.")] = False
    start_time: Annotated[Timestamp, Meta(description="When the arms were assigned.")]
    counting_since: Annotated[
        Timestamp | None,
        Meta(description="From when on requests count. Absent until every replica has confirmed its arm."),
    ] = None
    replicas: Annotated[
        tuple[Name, ...], Meta(max_length=256, description="Replicas of the stage when it began; others end it.")
    ] = ()
    restarts: Annotated[
        tuple[Count, ...], Meta(max_length=256, description="How often each of them had been started anew.")
    ] = ()


class ArmWork(StatusStruct, frozen=True, kw_only=True):
    """Engine work of the tuned stage, by arm."""

    candidate_frames: Annotated[Count, Meta(description="Frames made under the candidate.")] = 0
    candidate_busy_seconds: Annotated[float, Meta(ge=0, description="Seconds of engine steps under the candidate.")] = (
        0.0
    )
    candidate_replica_seconds: Annotated[
        float, Meta(ge=0, description="Seconds that replicas ran the candidate, in all.")
    ] = 0.0
    baseline_frames: Annotated[Count, Meta(description="Frames made under the baseline.")] = 0
    baseline_busy_seconds: Annotated[float, Meta(ge=0, description="Seconds of engine steps under the baseline.")] = 0.0
    baseline_replica_seconds: Annotated[
        float, Meta(ge=0, description="Seconds that replicas ran the baseline, in all.")
    ] = 0.0


class Trial(StatusStruct, frozen=True, kw_only=True):
    """A comparison under way: one change, and the setting it is compared with."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    knob: Annotated[Knob, Meta(description="The knob that it is about.")]
    goal: Annotated[
        Goal,
        Meta(
            description="What is compared. Listeners: how many are served well. Throughput: frames made, where more is "
            "asked for than can be done. Work: seconds of engine steps for a frame."
        ),
    ] = "Listeners"
    candidate: Annotated[Setting, Meta(description="What is tried.")]
    baseline: Annotated[Setting, Meta(description="What it is compared with, and what failure returns to.")]
    design: Annotated[
        Literal["Parallel", "Switchback"],
        Meta(description="Parallel: both at once on different replicas. Switchback: in turns on all of them."),
    ]
    rationale: Annotated[Text, Meta(description="Why it is worth a try.")]
    start_time: Annotated[Timestamp, Meta(description="When it began.")]
    period_seconds: Annotated[float, Meta(gt=0, description="How long a period counts.")]
    period: Annotated[Period, Meta(description="The period under way.")]
    first_period: Annotated[
        tuple[PeriodCounts, ...], Meta(max_length=3, description="The first period of the pair, while the second runs.")
    ] = ()
    first_period_work: Annotated[ArmWork, Meta(description="Work in the first period of the pair.")] = ArmWork()
    strata: Annotated[tuple[Stratum, ...], Meta(max_length=4, description="The evidence so far.")] = ()
    discarded_periods: Annotated[Count, Meta(description="Periods that could not be used.")] = 0
    aborts_to_reject: Annotated[
        Annotated[int, Meta(ge=1, le=2)],
        Meta(description="Periods broken off that prove harm: two where a stage is so busy that queues cause storms."),
    ] = 1
    aborted_periods: Annotated[
        Count, Meta(description="Periods broken off because the candidate seemed to do harm.")
    ] = 0
    recovery_threshold: Annotated[
        Ratio | None,
        Meta(description="After such a period: what the baseline must reach to prove it."),
    ] = None
    extensions: Annotated[Count, Meta(description="How often it went on with longer periods.")] = 0
    work: Annotated[ArmWork, Meta(description="Work in each arm, over all pairs.")] = ArmWork()


class Promotion(StatusStruct, frozen=True, kw_only=True):
    """A verdict that is carried out, replica by replica."""

    id: Annotated[Count, Meta(description="Of the trial.")]
    setting: Annotated[Setting, Meta(description="What every replica gets.")]
    replicas: Annotated[
        tuple[Name, ...],
        Meta(max_length=MAX_CANDIDATES, description="Replicas that have it already; doubled each time."),
    ]
    last_step_time: Annotated[Timestamp, Meta(description="When the last of them got it.")]


class Soak(StatusStruct, frozen=True, kw_only=True):
    """A time of watching after a promotion."""

    id: Annotated[Count, Meta(description="Of the trial.")]
    start_time: Annotated[Timestamp, Meta(description="When every replica had it.")]
    end_time: Annotated[Timestamp, Meta(description="When it counts as good.")]
    expected_good: Annotated[
        Ratio, Meta(description="Share of requests served well before: less than that is a regression.")
    ]
    restarts: Annotated[Count, Meta(description="Restarts of the stage's replicas when it began.")] = 0


class Workload(StatusStruct, frozen=True, kw_only=True):
    """The workload, coarsely: knowledge of one holds for it alone."""

    mix: Annotated[
        str, Meta(max_length=64, description="Task types and their share in quarters, as Base:1,CustomVoice:3.")
    ]
    rate_bucket: Annotated[int, Meta(description="Power of the square root of two next to the requests per second.")]


class QuarantinedSetting(StatusStruct, frozen=True, kw_only=True):
    """A setting that is not tried again before a certain time."""

    setting: Annotated[Setting, Meta(description="The setting.")]
    workload: Annotated[Workload, Meta(description="The workload it failed under.")]
    reason: Annotated[Text, Meta(description="Why.")]
    failures: Annotated[Annotated[int, Meta(ge=1)], Meta(description="How often; each doubles the time.")]
    until: Annotated[Timestamp, Meta(description="When it may be tried again.")]


class BestKnown(StatusStruct, frozen=True, kw_only=True):
    """What was found to be best under a workload."""

    workload: Annotated[Workload, Meta(description="The workload.")]
    setting: Annotated[Setting, Meta(description="The setting.")]
    good_ratio: Annotated[Ratio, Meta(description="Share of requests that it served well.")]
    time: Annotated[Timestamp, Meta(description="When that was found.")]


class TrialRecord(StatusStruct, frozen=True, kw_only=True):
    """One decision, in the bounded history."""

    id: Annotated[Count, Meta(description="Number of the trial.")]
    time: Annotated[Timestamp, Meta(description="When it was decided.")]
    start_time: Annotated[Timestamp, Meta(description="When the trial began.")]
    workload: Annotated[Workload | None, Meta(description="The workload.")] = None
    knob: Annotated[Knob, Meta(description="The knob.")]
    before: Annotated[Text, Meta(description="Its value before.")]
    after: Annotated[Text, Meta(description="The value that was tried.")]
    verdict: Annotated[Verdict, Meta(description="What was decided.")]
    reason: Annotated[Text, Meta(description="Why.")]
    requests: Annotated[Count, Meta(description="Requests compared, both arms.")] = 0
    baseline_min_good: Annotated[
        Ratio | None, Meta(description="Smallest share that the value before served well in a period of the trial.")
    ] = None
    difference: Annotated[
        Difference | None,
        Meta(description="What was compared, candidate less baseline: a share, or a part of the larger."),
    ] = None
    lower: Annotated[Difference | None, Meta(description="Lower end of its 95 % confidence sequence.")] = None
    upper: Annotated[Difference | None, Meta(description="Upper end of its 95 % confidence sequence.")] = None


class Recommendation(StatusStruct, frozen=True, kw_only=True):
    """What Auto would try next."""

    knob: Annotated[Knob, Meta(description="The knob.")]
    setting: Annotated[Setting, Meta(description="All knobs, as they would be.")]
    rationale: Annotated[Text, Meta(description="Why.")]


class State(StatusStruct, frozen=True, kw_only=True):
    """What tuning does, and all that it remembers."""

    # These three are always said, even as by default: `omit_defaults` does not look into a factory.
    mode: Annotated[Mode, Meta(description="The mode asked for.")] = field(default_factory=lambda: "Recommend")
    phase: Annotated[
        Phase,
        Meta(
            description="Off and Paused as asked for; NoData while there is nothing to judge by; Watching while "
            "requests are counted; Trial, Promoting and Soaking as a change is tried, carried out and watched."
        ),
    ] = field(default_factory=lambda: "NoData")
    message: Annotated[Text, Meta(description="The phase in words.")] = field(
        default_factory=lambda: "not looked at yet"
    )
    requested: Annotated[Setting | None, Meta(description="What the resource asked for at the last look.")] = None
    chosen: Annotated[
        Setting | None,
        Meta(description="What is in force, trials aside. Absent while it is what the resource asks for."),
    ] = None
    last_change_time: Annotated[
        Timestamp | None, Meta(description="When settings changed last: what was before counts no more.")
    ] = None
    last_good: Annotated[Setting | None, Meta(description="What a regression returns to.")] = None
    identity: Annotated[Identity | None, Meta(description="What all knowledge is about.")] = None
    workload: Annotated[Workload | None, Meta(description="The workload.")] = None
    consecutive_breaches: Annotated[
        Count, Meta(description="Looks in a row that found the objectives missed, up to 3.")
    ] = 0
    last_breach_time: Annotated[Timestamp | None, Meta(description="When that was counted last.")] = None
    next_trial_time: Annotated[Timestamp | None, Meta(description="No trial before this time.")] = None
    recommendation: Annotated[Recommendation | None, Meta(description="What would be tried next.")] = None
    trial_count: Annotated[Count, Meta(description="Trials so far.")] = 0
    trial: Annotated[Trial | None, Meta(description="The trial under way.")] = None
    promotion: Annotated[Promotion | None, Meta(description="The promotion under way.")] = None
    soak: Annotated[Soak | None, Meta(description="The soak under way.")] = None
    quarantine: Annotated[
        tuple[QuarantinedSetting, ...],
        Meta(max_length=MAX_QUARANTINE, description="Settings that are not tried for now."),
    ] = ()
    best_known: Annotated[
        tuple[BestKnown, ...], Meta(max_length=MAX_BEST_KNOWN, description="What was best, by workload.")
    ] = ()
    history: Annotated[
        tuple[TrialRecord, ...], Meta(max_length=MAX_HISTORY, description="The last decisions, oldest first.")
    ] = ()
