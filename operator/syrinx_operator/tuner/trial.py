"""One trial: its periods, its arms, what is counted for them, and its verdict. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

import msgspec

from syrinx_operator.resource.knobs import Setting, Stage, live_settings
from syrinx_operator.resource.tuning_status import (
    MAX_CANDIDATES,
    ArmWork,
    Counts,
    Period,
    PeriodCounts,
    Stratum,
    StratumName,
    Trial,
    Verdict,
)
from syrinx_operator.tuner.estimate import BURSTY_UTILIZATION, fit_load_model, utilization
from syrinx_operator.tuner.evidence import Evidence, ReplicaStats, Route, RouteStats
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.search import Proposal
from syrinx_operator.tuner.stats import ALPHA, DEADBAND, interval, threshold, update_test
from syrinx_operator.tuner.workload import (
    CONGESTED_UTILIZATION,
    good_ratio,
    histogram,
    overloaded,
    quantile,
    request_rate,
    summed,
    totals,
    with_failures,
)
from syrinx_stages.contract.family import TaskName

MIN_PAIRS = 4
MIN_REQUESTS_PER_ARM = 100
"""Requests in each arm before a candidate is promoted."""
MAX_PAIRS = 12
"""Pairs after which a trial is given up; or goes on for as many with longer periods, if it looks promising."""
EXTENSION_FACTOR = 3
"""How much longer: what queues remember from one arm to the next then weighs less."""
MAX_EXTENSIONS = 3
MAX_DISCARDED = 10
PERIOD_REQUESTS = 20
"""Requests that a period is made long enough for."""
_FEW = 5
"""Requests in an arm below which a pair tells nothing of its work."""
MAX_PERIOD_SECONDS = 300.0
CONFIRM_SECONDS = 45.0
"""How long replicas may take to confirm their arm."""
NO_DATA_SECONDS = 90.0
MARGIN = 0.05
"""Share of requests of one task type by which a candidate may seem worse and still be promoted."""
SHARED_FATE = 0.8
"""Share served well below which most who are served badly wait for the stage as a whole."""
COLLAPSE = 0.25
"""Share of requests of one period by which a candidate must be worse to be stopped at once."""

ALL: Literal["all"] = "all"


class Outcome(NamedTuple):
    """How a trial ends."""

    verdict: Verdict
    reason: str


def start_trial(
    policy: Policy, number: int, proposal: Proposal, current: Setting, evidence: Evidence, now: datetime
) -> Trial:
    """A trial of a proposal; its first period waits for the replicas to confirm."""
    workers = evidence.replicas_of(proposal.knob.stage)
    full = _fullness(policy, evidence, current)
    served = good_ratio(summed(with_failures(totals(evidence.routes), evidence).values()))
    crowded = overloaded(policy, evidence) or full[proposal.knob.stage] > CONGESTED_UTILIZATION or served < SHARED_FATE
    stormy = max(full.values()) > BURSTY_UTILIZATION
    seconds = _period_seconds(policy, evidence, len(workers))
    trial = Trial(
        id=number,
        knob=proposal.knob,
        goal=proposal.goal,
        candidate=proposal.setting,
        baseline=current,
        # Where requests wait for the stage as a whole, what one replica does is felt through all of them.
        design="Switchback" if len(workers) < 2 or crowded else "Parallel",
        rationale=proposal.rationale[:256],
        aborts_to_reject=2 if stormy else 1,
        start_time=now,
        period_seconds=min(EXTENSION_FACTOR * seconds, MAX_PERIOD_SECONDS)
        if stormy and proposal.goal == "Listeners"
        else seconds,
        period=Period(index=0, start_time=now),
        strata=_first_cells(evidence),
    )
    return msgspec.structs.replace(trial, period=next_period(trial, workers, 0, now))


def next_period(trial: Trial, workers: Sequence[ReplicaStats], index: int, now: datetime) -> Period:
    """The arms of a period: within each pair they change places, and a coin that follows from the trial begins."""
    names = tuple(worker.name for worker in workers)
    coin = random.Random(f"{trial.id}:{trial.start_time.isoformat()}:{index // 2}")
    first = coin.random() < 0.5
    begins = first == (index % 2 == 0)
    period = Period(
        index=index, start_time=now, replicas=names[:256], restarts=tuple(worker.restarts for worker in workers)[:256]
    )
    if trial.design == "Switchback":
        return msgspec.structs.replace(period, all_replicas=begins)
    ours, theirs = _sides(coin, names)
    return msgspec.structs.replace(
        period, candidate_replicas=ours if begins else theirs, baseline_replicas=theirs if begins else ours
    )


def confirmed(trial: Trial, workers: Sequence[ReplicaStats]) -> bool:
    """Whether every replica says that its arm is in force."""
    return all(_in_force(worker, _arm(trial, worker.name)) for worker in workers)


def wash_out(policy: Policy) -> float:
    """Seconds after a change that do not count: what began before it ends."""
    return min(max(policy.interval / 2, 3.0), 15.0)


def failure(trial: Trial, evidence: Evidence) -> str:
    """Why the trial is over at once; empty if nothing is wrong."""
    return _crashed(trial, evidence) or ("" if evidence.problem else _errors(trial, evidence))


def suspicion(policy: Policy, trial: Trial, evidence: Evidence) -> str:
    """Why the candidate seems to do harm in this period; empty if it does not, or if too little is known."""
    if evidence.problem:
        return ""
    theirs = _arm_counts(trial, evidence, candidate=False)
    cells: dict[str, Stratum] = {cell.task_type: cell for cell in trial.strata}
    for task_type, counts in _arm_counts(trial, evidence, candidate=True).items():
        before = cells.get(task_type)
        if before is None or before.baseline_min_good is None or counts.requests < PERIOD_REQUESTS:
            continue
        # What strikes both arms at once is a storm.
        was = min(before.baseline_min_good, good_ratio(theirs.get(task_type, Counts())))
        now = good_ratio(counts)
        chance = 2 * math.sqrt(was * (1 - was) / counts.requests)
        if was - now > COLLAPSE + chance:
            return f"{task_type}: {now:.0%} served well, never less than {was:.0%} under the baseline"
        slow = _slow(policy, trial, evidence, before) if was - now > chance else ""
        if slow:
            return slow
    return ""


def recovered(trial: Trial, evidence: Evidence) -> bool:
    """Whether listeners are served as before, now that the suspected candidate is out of force."""
    counts = summed(_arm_counts(trial, evidence, candidate=False).values())
    return (
        trial.recovery_threshold is not None
        and counts.requests >= PERIOD_REQUESTS
        and good_ratio(counts) >= trial.recovery_threshold
    )


def worst(trial: Trial) -> float:
    """The smallest share that the baseline served well, over all task types; 0 if that is not known."""
    return min((cell.baseline_min_good for cell in trial.strata if cell.baseline_min_good is not None), default=0.0)


def counted(trial: Trial, evidence: Evidence, workers: Sequence[ReplicaStats], now: datetime) -> Trial:
    """The trial after a period that is over: its counts, the pair's differences, and the next period."""
    ours = _arm_counts(trial, evidence, candidate=True)
    theirs = _arm_counts(trial, evidence, candidate=False)
    before = {half.task_type: half for half in trial.first_period}
    halves = tuple(
        PeriodCounts(
            task_type=msgspec.convert(name, TaskName),
            candidate=summed([ours.get(name, Counts()), before[name].candidate if name in before else Counts()]),
            baseline=summed([theirs.get(name, Counts()), before[name].baseline if name in before else Counts()]),
        )
        for name in sorted({*ours, *theirs, *before})
    )
    pair = _spent(trial, evidence)
    trial = msgspec.structs.replace(trial, strata=_after_baseline(trial, evidence))
    period = next_period(trial, workers, trial.period.index + 1, now)
    if trial.period.index % 2 == 0:
        return msgspec.structs.replace(trial, first_period=halves, first_period_work=pair, period=period)
    gained = {"Listeners": None, "Throughput": throughput_gain(pair), "Work": engine_time_saving(pair)}[trial.goal]
    if min(sum(half.candidate.requests for half in halves), sum(half.baseline.requests for half in halves)) < _FEW:
        gained = None  # Of a load that went away in mid-pair, frames tell nothing.
    return msgspec.structs.replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        strata=_paired(trial, halves, gained),
        work=_sum(trial.work, pair),
        period=period,
    )


def wasted(trial: Trial, workers: Sequence[ReplicaStats], now: datetime) -> Trial:
    """The trial after a period that cannot be used: the pair begins anew, with another coin."""
    index = trial.period.index - trial.period.index % 2 + 2
    period = next_period(trial, workers, index, now)
    return msgspec.structs.replace(
        trial,
        first_period=(),
        first_period_work=ArmWork(),
        period=period,
        discarded_periods=trial.discarded_periods + 1,
    )


def verdict(trial: Trial) -> Outcome | None:
    """What the evidence says after a pair; None while it says nothing yet."""
    cells = _tested(trial)
    needed = threshold(len(cells))
    for cell in cells:
        if cell.test.worse.log_wealth >= needed:
            return Outcome("RolledBack", f"{_whom(trial, cell)} worse, {_words(cell)}")
    whole = trial.strata[0]
    pairs = whole.test.pairs
    if pairs < MIN_PAIRS or min(whole.candidate.requests, whole.baseline.requests) < MIN_REQUESTS_PER_ARM:
        return _given_up(trial, pairs)
    better = [
        cell for cell in cells if cell.test.better.log_wealth >= needed and (cell is whole or trial.goal == "Listeners")
    ]
    if better and not any(cell.test.mean < -MARGIN and cell.test.worse.log_wealth > math.log(2) for cell in cells):
        return Outcome("Promoted", f"{_whom(trial, better[0])} better, {_words(better[0])}")
    if all(cell.test.futile.log_wealth >= needed or cell.test.mean < DEADBAND for cell in cells) and (
        whole.test.futile.log_wealth >= needed
    ):
        return Outcome("Inconclusive", f"not better by {DEADBAND:.0%}: {_words(whole)}")
    return _given_up(trial, pairs)


def extended(trial: Trial) -> Trial | None:
    """A trial that has had its time but looks better than the deadband, with longer periods; None if it does not."""
    promising = any(cell.test.mean > DEADBAND and cell.test.better.log_wealth > 0 for cell in _tested(trial))
    if trial.extensions >= MAX_EXTENSIONS or not promising:
        return None
    seconds = min(EXTENSION_FACTOR * trial.period_seconds, MAX_PERIOD_SECONDS)
    return msgspec.structs.replace(trial, extensions=trial.extensions + 1, period_seconds=seconds)


def _period_seconds(policy: Policy, evidence: Evidence, replicas: int) -> float:
    """An interval, and long enough for some requests in each arm."""
    asked = request_rate(evidence) * (max(1, replicas // 4) / replicas if replicas > 1 else 1.0)
    enough = PERIOD_REQUESTS / asked if asked else MAX_PERIOD_SECONDS
    return min(max(policy.interval, enough), MAX_PERIOD_SECONDS)


def _fullness(policy: Policy, evidence: Evidence, current: Setting) -> dict[Stage, float]:
    """What is asked of each stage, as a part of what it can do; 1 while that is not known."""
    known = fit_load_model(policy, evidence, current)
    return {stage: utilization(known, current, stage) if known else 1.0 for stage in Stage}


def _first_cells(evidence: Evidence) -> tuple[Stratum, ...]:
    """The whole, and what the baseline's 95th percentiles were when the trial began."""
    cells = _seen((), with_failures(totals(evidence.routes), evidence), evidence.routes)
    return (Stratum(task_type=ALL), *(_less_sure(cell) for cell in cells))


def _less_sure(cell: Stratum) -> Stratum:
    """What was seen over minutes is smoother than a period will be: until one was seen, the worst may be much worse."""
    if cell.baseline_min_good is None:
        return cell
    return msgspec.structs.replace(cell, baseline_min_good=max(0.0, cell.baseline_min_good - COLLAPSE / 2))


def _p95(served: Mapping[Route, RouteStats], task_type: str) -> float | None:
    found = histogram(one for route, one in served.items() if route.task_type == task_type)
    return quantile(found, 0.95) if found.get(math.inf, 0) >= PERIOD_REQUESTS else None


def _sides(coin: random.Random, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two equal groups that change places: a quarter of the replicas each, one at least."""
    size = min(max(1, len(names) // 4), MAX_CANDIDATES)
    drawn = coin.sample(sorted(names), 2 * size)
    return tuple(sorted(drawn[:size])), tuple(sorted(drawn[size:]))


def _arm(trial: Trial, replica: str) -> Setting:
    candidate = trial.period.all_replicas or replica in trial.period.candidate_replicas
    return trial.candidate if candidate else trial.baseline


def _in_force(worker: ReplicaStats, setting: Setting) -> bool:
    if worker.settings is None:
        return False
    return all(worker.settings.get(name) == value for name, value in live_settings(setting, worker.stage).items())


def _crashed(trial: Trial, evidence: Evidence) -> str:
    """A replica that was started anew under the candidate: whatever the cause, it is not tried on."""
    before = dict(zip(trial.period.replicas, trial.period.restarts, strict=False))
    for worker in evidence.replicas_of(trial.knob.stage):
        if worker.restarts > before.get(worker.name, worker.restarts) and _arm(trial, worker.name) == trial.candidate:
            return f"{worker.name} was started anew under the candidate"
    return ""


def _errors(trial: Trial, evidence: Evidence) -> str:
    """Errors of the candidate's replicas, beyond the others' and beyond chance."""
    workers = evidence.replicas_of(trial.knob.stage)
    ours = sum(each.errors or 0 for each in workers if _arm(trial, each.name) == trial.candidate)
    theirs = sum(each.errors or 0 for each in workers if _arm(trial, each.name) != trial.candidate)
    if ours >= 3 and ours > 2 * theirs:
        return f"{ours} requests ended with an error under the candidate"
    return ""


def _slow(policy: Policy, trial: Trial, evidence: Evidence, cell: Stratum) -> str:
    objective = policy.objectives.get(cell.task_type)
    if objective is None or cell.baseline_ttfa_p95 is None:
        return ""
    served = {route: one for route, one in evidence.routes.items() if _on(trial, route, candidate=True)}
    slow = _p95(served, cell.task_type)
    if slow is None or slow <= 2 * cell.baseline_ttfa_p95 or slow <= objective.seconds:
        return ""
    return f"{cell.task_type}: 95th percentile {slow * 1000:.0f} ms, {cell.baseline_ttfa_p95 * 1000:.0f} ms under the baseline"  # noqa: E501


def _on(trial: Trial, route: Route, *, candidate: bool) -> bool:
    """Whether a route is in an arm. With replicas side by side, only the two groups that change places count."""
    if trial.design == "Switchback":
        return trial.period.all_replicas == candidate
    replica = route.talker if trial.knob.stage is Stage.TALKER else route.codec
    return replica in (trial.period.candidate_replicas if candidate else trial.period.baseline_replicas)


def _arm_counts(trial: Trial, evidence: Evidence, *, candidate: bool) -> dict[str, Counts]:
    found = totals(evidence.routes, [route for route in evidence.routes if _on(trial, route, candidate=candidate)])
    if trial.design == "Switchback" and trial.period.all_replicas == candidate:
        return with_failures(found, evidence)
    return found


def engine_time_saving(spent: ArmWork) -> float | None:
    """How much less work a frame is under the candidate, as a part of the larger of both; None if it is not known."""
    if not (spent.candidate_frames and spent.baseline_frames):
        return None
    ours, theirs = (
        spent.candidate_busy_seconds / spent.candidate_frames,
        spent.baseline_busy_seconds / spent.baseline_frames,
    )
    return (theirs - ours) / max(theirs, ours) if theirs + ours else None


def throughput_gain(spent: ArmWork) -> float | None:
    """How many more frames a replica makes under the candidate, as a part of the larger; None if it is not known."""
    if not (spent.candidate_replica_seconds and spent.baseline_replica_seconds):
        return None
    ours, theirs = (
        spent.candidate_frames / spent.candidate_replica_seconds,
        spent.baseline_frames / spent.baseline_replica_seconds,
    )
    return (ours - theirs) / max(ours, theirs) if ours + theirs else None


def _spent(trial: Trial, evidence: Evidence) -> ArmWork:
    """Work in the pair so far."""
    frames, seconds, time = {True: 0, False: 0}, {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for worker in evidence.replicas_of(trial.knob.stage):
        candidate = _arm(trial, worker.name) == trial.candidate
        frames[candidate] += worker.frames or 0
        time[candidate] += evidence.seconds
        seconds[candidate] += sum(step.seconds for step in worker.steps.values())
    period = ArmWork(
        candidate_frames=frames[True],
        candidate_busy_seconds=seconds[True],
        candidate_replica_seconds=time[True],
        baseline_frames=frames[False],
        baseline_busy_seconds=seconds[False],
        baseline_replica_seconds=time[False],
    )
    return _sum(trial.first_period_work, period)


def _sum(one: ArmWork, other: ArmWork) -> ArmWork:
    return ArmWork(**{name: getattr(one, name) + getattr(other, name) for name in ArmWork.__struct_fields__})


def _after_baseline(trial: Trial, evidence: Evidence) -> tuple[Stratum, ...]:
    served = {route: one for route, one in evidence.routes.items() if _on(trial, route, candidate=False)}
    return (trial.strata[0], *_seen(trial.strata[1:], _arm_counts(trial, evidence, candidate=False), served))


def _seen(
    cells: Sequence[Stratum], counts: Mapping[str, Counts], served: Mapping[Route, RouteStats]
) -> tuple[Stratum, ...]:
    """Cells with the worst that the baseline did: what a candidate does no worse than is no harm."""
    known: dict[str, Stratum] = {cell.task_type: cell for cell in cells}
    for name, one in counts.items():
        cell = known.get(name) or Stratum(task_type=msgspec.convert(name, StratumName))
        if one.requests >= PERIOD_REQUESTS:
            worst = min(good_ratio(one), 1.0 if cell.baseline_min_good is None else cell.baseline_min_good)
            cell = msgspec.structs.replace(cell, baseline_min_good=worst)
        slowest = max(_p95(served, name) or 0.0, cell.baseline_ttfa_p95 or 0.0)
        known[name] = msgspec.structs.replace(cell, baseline_ttfa_p95=slowest or None)
    return tuple(known[name] for name in sorted(known))


def _paired(trial: Trial, halves: Sequence[PeriodCounts], gained: float | None) -> tuple[Stratum, ...]:
    """The cells after a pair. The whole weighs each task type by how much it was asked for in both arms together;

    or, if the trial is not about listeners, it is about what the stage `gained`.
    """
    known: dict[str, Stratum] = {cell.task_type: cell for cell in trial.strata}
    weight = difference = 0.0
    for half in halves:
        cell = known.get(half.task_type, Stratum(task_type=half.task_type))
        comparable = half.candidate.requests and half.baseline.requests
        if comparable:
            each = _difference(trial, half)
            asked = half.candidate.requests + half.baseline.requests
            weight, difference = weight + asked, difference + asked * each
            cell = msgspec.structs.replace(cell, test=update_test(cell.test, each))
        known[half.task_type] = _added(cell, half.candidate, half.baseline)
    whole = _added(known[ALL], summed(half.candidate for half in halves), summed(half.baseline for half in halves))
    one = gained if trial.goal != "Listeners" else difference / weight if weight else None
    if one is not None:
        whole = msgspec.structs.replace(whole, test=update_test(whole.test, one))
    return (whole, *(known[name] for name in sorted(known) if name != ALL))


def _difference(trial: Trial, half: PeriodCounts) -> float:
    """In share of requests served well. Replicas side by side share the load, and one that takes less of it serves its
    own better while the others pay: so there it is no more than the difference in how many each of them served well.
    """
    ours, theirs = half.candidate, half.baseline
    by_share = good_ratio(ours) - good_ratio(theirs)
    if trial.design == "Switchback":
        return by_share
    by_number = (ours.good - theirs.good) / max(ours.requests, theirs.requests)
    if by_share * by_number <= 0:
        return 0.0
    return min(by_share, by_number, key=abs)


def _added(cell: Stratum, candidate: Counts, baseline: Counts) -> Stratum:
    return msgspec.structs.replace(
        cell, candidate=summed([cell.candidate, candidate]), baseline=summed([cell.baseline, baseline])
    )


def _tested(trial: Trial) -> list[Stratum]:
    """The whole, and each task type with enough requests: if there are several, or if the whole is about work."""
    kinds = [
        cell for cell in trial.strata[1:] if min(cell.candidate.requests, cell.baseline.requests) >= PERIOD_REQUESTS
    ]
    return [trial.strata[0], *kinds] if len(kinds) > 1 or trial.goal != "Listeners" else [trial.strata[0]]


def _given_up(trial: Trial, pairs: int) -> Outcome | None:
    if pairs < MAX_PAIRS * (1 + trial.extensions):
        return None
    return Outcome("Inconclusive", f"{pairs} pairs of periods do not tell: {_words(trial.strata[0])}")


def _whom(trial: Trial, cell: Stratum) -> str:
    if cell.task_type != ALL:
        return f"{cell.task_type}: served"
    return {"Listeners": "listeners: served", "Throughput": "frames:", "Work": "work for a frame:"}[trial.goal]


def _words(cell: Stratum) -> str:
    lower, upper = interval(cell.test, ALPHA)
    counts = f"{cell.candidate.requests} against {cell.baseline.requests} requests"
    return f"{cell.test.mean:+.1%} (95 %: {lower:+.1%} to {upper:+.1%}), {counts}"


def due(trial: Trial, now: datetime) -> bool:
    """Whether the period has counted for as long as it should."""
    counting = trial.period.counting_since
    return counting is not None and now >= counting + timedelta(seconds=trial.period_seconds)
