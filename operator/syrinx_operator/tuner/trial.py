"""A trial of a setting: a switchback experiment on the ratio of requests that are served well. Pure.

In each pair of periods a coin decides whether all replicas run the candidate or the baseline first. While requests are
counted, gateways label them with the period's own label. A pair yields one difference of the ratios, on whose mean two
bets are placed: that the candidate is better, and that it is worse. Meanwhile a guard bets that more of the candidate's
requests are bad than is usual, and ends the trial at once when it is certain.
"""

import math
import random
from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from syrinx_operator.resource.knobs import TUNED_STAGES, Setting, live_settings
from syrinx_operator.resource.tuning_status import Bet, Guard, Served, Soak, Trial, Verdict
from syrinx_operator.tuner.betting import CERTAIN, MOST_STAKE, is_certain, updated
from syrinx_operator.tuner.builder import DecisionBuilder, EventKind, alike, format_change, in_force
from syrinx_operator.tuner.evidence import Evidence, Outcomes

LABELS = 16
"""Labels are used in turns; late outcomes of a period never meet those of its label's next one."""
MAX_TRIAL_SECONDS = 3600.0
PERIOD_SECONDS = 6.0
"""Shortest counted length of a period."""
PERIOD_BAD_SECONDS = 40.0
"""How much longer it is if all requests are bad: queues remember the last period."""
PERIOD_REQUESTS = 10
"""Expected requests of a period, at least."""
MAX_PERIOD_SECONDS = 180.0
CONFIRM_SECONDS = 60.0
"""Time for every replica to run its setting."""
WASH_OUT_SECONDS = 3.0
"""Time from then until requests are counted, and late outcomes of the last period are waited for."""
MAX_DATA_SECONDS = 150.0
"""How long a trial waits for counters."""
CHECK_SECONDS = 5.0
"""Time between two looks of a guard."""
MAX_DISCARDED = 20
LEAST_PAIRS = 8
"""Pairs after which a trial ends that is not going to find anything."""
EARLIER = timedelta(seconds=60)
"""How much earlier counters are read from. A label tells the requests of its period, and is not used again so soon."""
SLACK = 0.05
"""More bad requests than expected that a guard does not bet on."""
GUARD_REQUESTS = 5
"""Least requests of an outcome of a guard's bet."""
SOAK_SECONDS = 300.0
SHORT_SOAK_SECONDS = 75.0


class Outcome(NamedTuple):
    """End of a trial."""

    verdict: Verdict
    reason: str


def label(trial: Trial) -> str:
    """Returns the label of the period in progress; empty while requests are not counted."""
    return "" if trial.counting_time is None else _label(trial, trial.period)


def runs_candidate(trial: Trial) -> bool:
    """Returns whether the period in progress is the candidate's."""
    # The same after a restart of this process, and not predictable from the load.
    first = random.Random(f"{trial.id} {trial.start_time.timestamp()} {trial.period // 2}").random() < 0.5
    return first == (trial.period % 2 == 0)


def start_trial(builder: DecisionBuilder, candidate: Setting, why: str, recent: Evidence) -> None:
    """Starts a trial. `recent` is what is known of the setting in force."""
    state, before = builder.state, in_force(builder.policy, builder.state)
    seen = served(recent.of_arm())
    least = PERIOD_SECONDS + PERIOD_BAD_SECONDS * seen.bad_ratio
    seconds = max(least, PERIOD_REQUESTS / max(sum(recent.rates.values()), 1e-6))
    trial = Trial(
        id=state.trial_count + 1,
        candidate=candidate,
        baseline=before,
        why=why[:256],
        start_time=builder.now,
        period_time=builder.now,
        period_seconds=min(seconds, MAX_PERIOD_SECONDS),
        first_label=state.label,
        guard=Guard(expected_bad=seen.bad_ratio),
        replicas=_replicas(recent).names,
        restarts=_replicas(recent).restarts,
    )
    builder.set(trial_count=trial.id, trial=trial, recommendation=None, last_change_time=builder.now)
    change = format_change(before, candidate)
    builder.set_phase("Trial", change)
    builder.emit("TrialStarted", f"trial {trial.id}, {change}: {why}", trial=trial)
    builder.requeue_after = 1.0


def advance_trial(builder: DecisionBuilder) -> None:
    """Evaluates the trial in progress once."""
    trial = builder.state.trial
    assert trial is not None
    now = builder.look(builder.now, builder.now)
    builder.requeue_after = CHECK_SECONDS
    replicas = _replicas(now)
    if now.disruption or replicas.names != trial.replicas:
        _discard(builder, trial, now.disruption or "the replicas changed", now)
    elif replicas.restarts != trial.restarts:
        if runs_candidate(trial):
            _end(builder, trial, Outcome("RolledBack", "a replica restarted under the candidate"))
        else:
            _discard(builder, trial, "a replica restarted", now)
    elif trial.confirmed_time is None:
        _confirm(builder, trial, now)
    elif trial.counting_time is None:
        _begin(builder, trial)
    else:
        _count(builder, trial)


class _Replicas(NamedTuple):
    """Talkers and codecs."""

    names: tuple[str, ...]
    restarts: int


def _replicas(evidence: Evidence) -> _Replicas:
    replicas = [each for stage in TUNED_STAGES for each in evidence.replicas_of(stage)]
    return _Replicas(tuple(each.name for each in replicas), sum(each.restarts for each in replicas))


def _confirm(builder: DecisionBuilder, trial: Trial, now: Evidence) -> None:
    setting = trial.candidate if runs_candidate(trial) else trial.baseline
    wanted = {stage: live_settings(setting, stage) for stage in TUNED_STAGES}
    replicas = [each for stage in TUNED_STAGES for each in now.replicas_of(stage)]
    if all(
        each.settings is not None
        and all(each.settings.get(name) == value for name, value in wanted[each.stage].items())
        for each in replicas
    ):
        builder.set(trial=replace(trial, confirmed_time=builder.now))
        builder.requeue_after = WASH_OUT_SECONDS
    elif builder.seconds_since(trial.period_time) > CONFIRM_SECONDS:
        _discard(builder, trial, "not every replica confirmed its settings", now)
    else:
        builder.requeue_after = 1.0


def _begin(builder: DecisionBuilder, trial: Trial) -> None:
    """Begins to count, once the last pair is known."""
    assert trial.confirmed_time is not None
    if builder.seconds_since(trial.confirmed_time) < WASH_OUT_SECONDS:
        builder.requeue_after = WASH_OUT_SECONDS - builder.seconds_since(trial.confirmed_time)
        return
    if trial.period % 2 == 0 and trial.pair_time is not None:
        known = builder.look(trial.pair_time - EARLIER, builder.now)
        if known.until < trial.period_time:
            _await_data(builder, trial, known)
            return
        trial = _with_pair(trial, known)
        builder.set(trial=trial)
        builder.emit("Compared", f"trial {trial.id}, pair {trial.better.count}", trial=trial)
        if outcome := _verdict(trial, builder.seconds_since(trial.start_time)):
            _end(builder, trial, outcome)
            return
    guard = replace(trial.guard, seen=Served())
    pair = trial.pair_time if trial.period % 2 else builder.now
    builder.set(trial=replace(trial, counting_time=builder.now, pair_time=pair, guard=guard))
    builder.requeue_after = min(CHECK_SECONDS, trial.period_seconds)


def _await_data(builder: DecisionBuilder, trial: Trial, known: Evidence) -> None:
    builder.requeue_after = 1.0
    if builder.seconds_since(trial.period_time) > MAX_DATA_SECONDS:
        _end(builder, trial, Outcome("Inconclusive", known.problem or "there are no counters"))


def _with_pair(trial: Trial, known: Evidence) -> Trial:
    """Returns the trial with the pair that ended last."""
    last = replace(trial, period=trial.period - 1)
    first = replace(trial, period=trial.period - 2)
    one, two = (served(known.of_arm(_label(trial, each.period))) for each in (first, last))
    candidate, baseline = (one, two) if runs_candidate(first) else (two, one)
    trial = replace(
        trial,
        candidate_served=trial.candidate_served + candidate,
        baseline_served=trial.baseline_served + baseline,
        # A burst in a baseline period is what the candidate's next one may see, too.
        guard=replace(trial.guard, expected_bad=max(baseline.bad_ratio, (trial.baseline_served + baseline).bad_ratio)),
    )
    if not candidate.requests or not baseline.requests:
        return trial
    difference = baseline.bad_ratio - candidate.bad_ratio
    return replace(trial, better=updated(trial.better, difference, -1.0), worse=updated(trial.worse, -difference, -1.0))


def _verdict(trial: Trial, seconds: float) -> Outcome | None:
    """Returns the end of a trial, or None while it must continue."""
    pairs, effect = trial.better.count, describe(trial)
    if is_certain(trial.worse):
        return Outcome("RolledBack", effect)
    if is_certain(trial.better) and pairs >= 3:
        return Outcome("Promoted", effect)
    left = MAX_TRIAL_SECONDS - seconds
    if left <= 0 or (pairs >= LEAST_PAIRS and not _may_win(trial.better, pairs * left / seconds)):
        return Outcome("Inconclusive", effect)
    return None


def _may_win(bet: Bet, pairs: float) -> bool:
    """Returns whether a bet may be won with this many further outcomes, if the mean is a standard error larger."""
    mean = bet.mean + math.sqrt(bet.mean_square / bet.count)
    stake = min(mean / max(bet.mean_square, 1e-6), MOST_STAKE)
    return mean > 0 and bet.log_wealth + pairs * (stake * mean - stake**2 * bet.mean_square / 2) > CERTAIN


def describe(trial: Trial) -> str:
    """Returns the effect so far as text."""
    both = trial.candidate_served.requests, trial.baseline_served.requests
    points = 100 * trial.better.mean
    return (
        f"{points:+.1f} points of requests served well, {both[0]} and {both[1]} requests in {trial.better.count} pairs"
    )


def _count(builder: DecisionBuilder, trial: Trial) -> None:
    assert trial.counting_time is not None
    elapsed = builder.seconds_since(trial.counting_time)
    if runs_candidate(trial):
        known = builder.look(trial.counting_time - EARLIER, builder.now)
        guard = watched(trial.guard, known.of_arm(label(trial)))
        trial = replace(trial, guard=guard)
        builder.set(trial=trial)
        if is_certain(guard.bet):
            bad = known.of_arm(label(trial))
            _end(builder, trial, Outcome("RolledBack", f"{bad.bad} of {bad.accepted} requests were not served well"))
            return
    if elapsed < trial.period_seconds:
        builder.requeue_after = min(CHECK_SECONDS, trial.period_seconds - elapsed)
        return
    _next_period(builder, trial, trial.period + 1)


def _next_period(builder: DecisionBuilder, trial: Trial, period: int) -> None:
    following = replace(trial, period=period, period_time=builder.now, confirmed_time=None, counting_time=None)
    builder.set(trial=following)
    builder.requeue_after = 1.0


def _discard(builder: DecisionBuilder, trial: Trial, why: str, now: Evidence) -> None:
    """Discards the pair in progress. It is repeated once the disturbance has ended."""
    if trial.discarded >= MAX_DISCARDED or builder.seconds_since(trial.start_time) > MAX_TRIAL_SECONDS:
        _end(builder, trial, Outcome("Inconclusive", f"it was disturbed too often: {why}"))
        return
    # The next pair, whose order is drawn anew.
    names, restarts = _replicas(now)
    trial = replace(trial, discarded=trial.discarded + 1, pair_time=None, replicas=names, restarts=restarts)
    _next_period(builder, trial, trial.period + 2 - trial.period % 2)
    builder.requeue_after = CHECK_SECONDS


def _end(builder: DecisionBuilder, trial: Trial, outcome: Outcome) -> None:
    """Ends the trial. The resulting settings are in force from the next evaluation on."""
    end_trial(builder, trial, outcome.verdict, outcome.reason)
    rate = sum(builder.look(trial.start_time, builder.now).rates.values())
    shown = _shown(trial)
    if outcome.verdict == "Promoted":
        builder.remember(trial.baseline, trial.candidate, -shown, rate, hours=1.0)
        put_in_force(builder, trial.id, trial.candidate, trial.candidate_served.bad_ratio, rate)
        return
    hours = 4.0 if outcome.verdict == "RolledBack" else 2.0
    builder.remember(trial.candidate, trial.baseline, shown, rate, hours)
    builder.set_phase("Watching", f"trial {trial.id} ended: {outcome.verdict}")


def _shown(trial: Trial) -> float:
    """Returns the difference that a trial has shown, nearer to 0 after few pairs."""
    if not trial.better.count:
        return trial.guard.expected_bad - 1.0 if is_certain(trial.guard.bet) else 0.0
    return trial.better.mean * trial.better.count / (trial.better.count + 2)


def end_trial(builder: DecisionBuilder, trial: Trial, verdict: Verdict, reason: str) -> None:
    """Records the end of a trial."""
    both = trial.candidate_served + trial.baseline_served
    builder.record(
        verdict,
        reason,
        trial.baseline,
        trial.candidate,
        id=trial.id,
        start_time=trial.start_time,
        requests=both.requests,
        difference=trial.better.mean if trial.better.count else None,
        forecast=_forecast(builder),
    )
    change = format_change(trial.baseline, trial.candidate)
    kind: EventKind = "Warning" if verdict == "RolledBack" else "Normal"
    builder.emit(verdict, f"trial {trial.id}, {change}: {reason}", kind=kind, trial=trial)
    builder.set(trial=None, last_change_time=builder.now, label=(trial.first_label + trial.period + 1) % LABELS)
    builder.requeue_after = 1.0


def _forecast(builder: DecisionBuilder) -> float | None:
    """Returns the difference that the model predicted."""
    forecast = builder.state.forecast
    return None if forecast is None else forecast.best - forecast.current


def _label(trial: Trial, period: int) -> str:
    return f"{(trial.first_label + period) % LABELS:x}"


# What has come into force ------------------------------------------------------------------------------------------


def put_in_force(
    builder: DecisionBuilder, number: int, setting: Setting, expected_bad: float, rate: float, *, urgent: bool = False
) -> None:
    """Makes a setting the chosen one, and watches that it is as good as expected."""
    before = in_force(builder.policy, builder.state)
    restarts = _replicas(builder.look(builder.now, builder.now)).restarts
    soak = Soak(
        id=number,
        before=before,
        start_time=builder.now,
        rate=rate,
        was_urgent=urgent,
        restarts=restarts,
        guard=Guard(expected_bad=expected_bad),
    )
    builder.set(chosen=setting, soak=soak, last_change_time=builder.now, fruitless=0)
    builder.set_phase("Soaking", f"change {number} is in force on all replicas; it is watched")
    builder.requeue_after = 1.0


def advance_soak(builder: DecisionBuilder) -> None:
    """Watches a setting that has come into force, and takes it back if it disappoints."""
    soak = builder.state.soak
    assert soak is not None
    builder.requeue_after = CHECK_SECONDS
    known = builder.look(soak.start_time, builder.now)
    if known.disruption or known.problem:
        if builder.seconds_since(soak.start_time) > 2 * SOAK_SECONDS:
            _settle(builder, soak)
        return
    guard = watched(soak.guard, known.of_arm())
    restarts = _replicas(known).restarts
    if restarts >= soak.restarts + 2:
        _revert(builder, soak, "replicas restart repeatedly")
    elif is_certain(guard.bet) and alike(sum(known.rates.values()), soak.rate):
        bad = known.of_arm()
        _revert(builder, soak, f"{bad.bad} of {bad.accepted} requests were not served well")
    elif is_certain(guard.bet) or builder.seconds_since(soak.start_time) > _soak_seconds(soak, guard):
        _settle(builder, soak)
    else:
        builder.set(soak=replace(soak, guard=guard))


def _soak_seconds(soak: Soak, guard: Guard) -> float:
    """Returns how long a setting is watched: not long if it came into force without a trial and was no great help."""
    is_poor = soak.was_urgent and 2 * guard.seen.bad_ratio > soak.guard.expected_bad
    return SHORT_SOAK_SECONDS if is_poor else SOAK_SECONDS


def _settle(builder: DecisionBuilder, soak: Soak) -> None:
    seen = soak.guard.seen
    if seen.requests >= GUARD_REQUESTS and soak.was_urgent:
        chosen = in_force(builder.policy, builder.state)
        difference = soak.guard.expected_bad - seen.bad_ratio
        builder.remember(soak.before, chosen, -difference, soak.rate, hours=0.5)
        reason = f"in force without a trial: {100 * difference:+.1f} points of requests served well"
        builder.record(
            "Promoted",
            reason,
            soak.before,
            chosen,
            id=soak.id,
            start_time=soak.start_time,
            requests=seen.requests,
            difference=difference,
            forecast=_forecast(builder),
        )
    builder.set(soak=None)
    builder.set_phase("Watching", f"change {soak.id} has passed its watch")
    builder.emit("Settled", f"change {soak.id} has passed its watch")


def _revert(builder: DecisionBuilder, soak: Soak, why: str) -> None:
    chosen = in_force(builder.policy, builder.state)
    builder.record("Regressed", why, chosen, soak.before, id=soak.id, start_time=soak.start_time)
    difference = soak.guard.expected_bad - soak.guard.seen.bad_ratio
    builder.remember(chosen, soak.before, min(difference, 0.0), soak.rate, hours=4.0)
    builder.set(chosen=soak.before, soak=None, last_change_time=builder.now)
    builder.set_phase("Watching", f"change {soak.id} was taken back: {why}")
    builder.emit("Regressed", f"change {soak.id} was taken back: {why}", kind="Warning")


# Guards ------------------------------------------------------------------------------------------------------------


def served(outcomes: Outcomes) -> Served:
    """Returns the requests and the bad ones."""
    return Served(requests=outcomes.accepted, bad=outcomes.bad)


def watched(guard: Guard, known: Outcomes) -> Guard:
    """Returns the guard with the requests since it last looked, once they are enough for an outcome of its bet."""
    requests, bad = known.accepted - guard.seen.requests, known.bad - guard.seen.bad
    if requests < GUARD_REQUESTS:
        return guard
    usual = min(guard.expected_bad + SLACK, 1.0)
    return replace(guard, seen=served(known), bet=updated(guard.bet, min(1.0, bad / requests) - usual, -usual))


__all__ = [
    "advance_soak",
    "advance_trial",
    "end_trial",
    "label",
    "put_in_force",
    "runs_candidate",
    "start_trial",
]
