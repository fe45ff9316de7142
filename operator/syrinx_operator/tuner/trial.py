"""A trial of a setting: a switchback experiment on the ratio of requests that are served well. Pure.

In each pair of periods a coin decides whether all replicas run the candidate or the baseline first. While requests are
counted, gateways label them with the period's own label. A pair yields one difference of the ratios, on whose mean two
bets are placed: that the candidate is better, and that it is worse. Meanwhile a guard bets that more of the candidate's
requests are bad than is usual, and ends the trial at once when it is certain.
"""

import math
import random
from datetime import datetime, timedelta

from msgspec.structs import replace

from syrinx_operator.resource.knobs import Setting, live_settings
from syrinx_operator.resource.state.tuning_status import Bet, Guard, Served, Trial, Verdict
from syrinx_operator.tuner.betting import CERTAIN, MOST_STAKE, is_certain, updated
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS, DecisionBuilder, format_change, in_force
from syrinx_operator.tuner.observed.evidence import MIN_REQUESTS, WINDOW_SECONDS, Evidence
from syrinx_operator.tuner.watch import CHECK_SECONDS, harm, put_in_force, served, watched

LABELS = 16
"""Labels are used in turns; late outcomes of a period never meet those of its label's next one."""
MAX_TRIAL_SECONDS = 3600.0
WASH_OUT_SECONDS = 3.0
"""Time until requests are counted once all replicas run a setting, in which late outcomes of the last period come."""
PERIOD_SECONDS = 2 * WASH_OUT_SECONDS
"""Shortest counted length of a period."""
PERIOD_BURSTS = 3.0
"""Bursts of requests in a period, on average."""
PERIOD_BAD_SECONDS = 40.0
"""How much longer it is if all requests are bad: queues remember the last period."""
MAX_DISCARDED = 20
"""Pairs that may be disturbed."""
LEAST_PAIRS = 5
"""Pairs after which a trial ends that is not going to find anything."""


def start_trial(builder: DecisionBuilder, candidate: Setting, why: str, recent: Evidence) -> None:
    """Starts a trial. `recent` is what is known of the setting in force."""
    before, seen = in_force(builder.policy, builder.state), served(recent.of_arm())
    trial = Trial(
        id=builder.state.trial_count + 1,
        candidate=candidate,
        baseline=before,
        why=why[:256],
        start_time=builder.now,
        period_time=builder.now,
        period_seconds=_period_seconds(recent),
        first_label=builder.state.label,
        guard=Guard(expected_bad=seen.bad_ratio),
        replicas=recent.names,
        restarts=recent.restarts,
    )
    builder.set(trial_count=trial.id, trial=trial, recommendation=None, last_change_time=builder.now)
    change = format_change(before, candidate)
    builder.set_phase("Trial", change)
    builder.emit("TrialStarted", f"trial {trial.id}, {change}: {why}", trial=trial)
    builder.requeue_after = 1.0


def _period_seconds(recent: Evidence) -> float:
    """Returns the counted length of a period: some requests, and some bursts of them."""
    shortest = PERIOD_SECONDS + PERIOD_BAD_SECONDS * recent.of_arm().bad_ratio
    return max(shortest, MIN_REQUESTS / 2 / recent.rate, PERIOD_BURSTS * recent.burst / recent.rate)


def undecidable(gain: float, recent: Evidence) -> str:
    """Returns why a trial cannot show a gain in its time; empty if it can."""
    seconds, bad = _period_seconds(recent), recent.of_arm().bad_ratio
    pairs = MAX_TRIAL_SECONDS / 2 / (seconds + 2 * WASH_OUT_SECONDS)
    # Requests of a burst are served alike.
    variance = 2 * bad * (1 - bad) * recent.burst / (recent.rate * seconds)
    if _growth(gain, gain**2 + variance) * pairs > CERTAIN:
        return ""
    return f"an hour of {recent.rate:.2g} requests/s cannot show a difference of {100 * gain:.1f} points"


def advance_trial(builder: DecisionBuilder) -> None:
    """Evaluates the trial in progress once."""
    trial = builder.state.trial
    assert trial is not None
    now = builder.look(builder.now, builder.now)
    builder.requeue_after = CHECK_SECONDS
    if now.disruption or now.names != trial.replicas:
        _discard(builder, trial, now.disruption or "the replicas changed", now)
    elif now.restarts != trial.restarts:
        if runs_candidate(trial):
            _end(builder, trial, "RolledBack", "a replica restarted under the candidate")
        else:
            _discard(builder, trial, "a replica restarted", now)
    elif trial.confirmed_time is None:
        _confirm(builder, trial, now)
    elif trial.counting_time is None:
        _begin(builder, trial)
    else:
        _count(builder, trial)


def runs_candidate(trial: Trial) -> bool:
    """Returns whether the period in progress is the candidate's."""
    # The same after a restart of this process, and not predictable from the load.
    first = random.Random(f"{trial.id} {trial.start_time.timestamp()} {trial.period // 2}").random() < 0.5
    return first == (trial.period % 2 == 0)


def label(trial: Trial, period: int) -> str:
    """Returns the label of a period's requests."""
    return f"{(trial.first_label + period) % LABELS:x}"


# A period ---------------------------------------------------------------------------------------------------------


def _confirm(builder: DecisionBuilder, trial: Trial, now: Evidence) -> None:
    """Waits until every replica runs the period's setting."""
    setting = trial.candidate if runs_candidate(trial) else trial.baseline
    if all(
        each.settings is not None and live_settings(setting, each.stage).items() <= each.settings.items()
        for each in now.replicas
    ):
        builder.set(trial=replace(trial, confirmed_time=builder.now))
        builder.requeue_after = WASH_OUT_SECONDS
    elif builder.seconds_since(trial.period_time) > OVERRIDE_TTL_SECONDS:
        _discard(builder, trial, "not every replica confirmed its settings", now)
    else:
        builder.requeue_after = 1.0


def _begin(builder: DecisionBuilder, trial: Trial) -> None:
    """Begins to count, once the last pair is known."""
    assert trial.confirmed_time is not None
    builder.requeue_after = WASH_OUT_SECONDS - builder.seconds_since(trial.confirmed_time)
    if builder.requeue_after > 0:
        return
    if trial.period % 2 == 0 and trial.pair_time is not None:
        known = _counted_since(builder, trial.pair_time)
        if known.until < trial.period_time:
            builder.requeue_after = 1.0
            if builder.seconds_since(trial.period_time) > WINDOW_SECONDS / 2:
                _end(builder, trial, "Inconclusive", known.problem or "there are no counters")
            return
        trial = _with_pair(trial, known)
        builder.set(trial=trial)
        builder.emit("Compared", f"trial {trial.id}, pair {trial.better.count}", trial=trial)
        if verdict := _verdict(trial, builder.seconds_since(trial.start_time)):
            _end(builder, trial, verdict, _effect(trial))
            return
    guard = replace(trial.guard, seen=Served())
    pair_time = trial.pair_time if trial.period % 2 else builder.now
    builder.set(trial=replace(trial, counting_time=builder.now, pair_time=pair_time, guard=guard))
    builder.requeue_after = min(CHECK_SECONDS, trial.period_seconds)


def _counted_since(builder: DecisionBuilder, moment: datetime) -> Evidence:
    """Returns what counters that are read from time to time know since then. The label tells the period."""
    return builder.look(moment - timedelta(seconds=OVERRIDE_TTL_SECONDS), builder.now)


def _count(builder: DecisionBuilder, trial: Trial) -> None:
    begin = trial.counting_time
    assert begin is not None
    if runs_candidate(trial):
        known = _counted_since(builder, begin).of_arm(label(trial, trial.period))
        trial = replace(trial, guard=watched(trial.guard, known))
        builder.set(trial=trial)
        if is_certain(trial.guard.bet):
            _end(builder, trial, "RolledBack", harm(known))
            return
    left = trial.period_seconds - builder.seconds_since(begin)
    if left > 0:
        builder.requeue_after = min(CHECK_SECONDS, left)
    else:
        _go_to(builder, trial, trial.period + 1)
        builder.requeue_after = 1.0


def _go_to(builder: DecisionBuilder, trial: Trial, period: int) -> None:
    builder.set(trial=replace(trial, period=period, period_time=builder.now, confirmed_time=None, counting_time=None))


def _discard(builder: DecisionBuilder, trial: Trial, why: str, now: Evidence) -> None:
    """Discards the pair in progress. It is repeated once the disturbance has ended."""
    if trial.discarded >= MAX_DISCARDED or builder.seconds_since(trial.start_time) > MAX_TRIAL_SECONDS:
        _end(builder, trial, "Inconclusive", f"it was disturbed too often: {why}")
        return
    # The next pair, whose order is drawn anew.
    trial = replace(trial, discarded=trial.discarded + 1, pair_time=None, replicas=now.names, restarts=now.restarts)
    _go_to(builder, trial, trial.period + 2 - trial.period % 2)


# Evidence ---------------------------------------------------------------------------------------------------------


def _with_pair(trial: Trial, known: Evidence) -> Trial:
    """Returns the trial with the pair that ended last."""
    one, two = (served(known.of_arm(label(trial, trial.period - each))) for each in (2, 1))
    candidate, baseline = (one, two) if runs_candidate(replace(trial, period=trial.period - 2)) else (two, one)
    of_baseline = trial.baseline_served + baseline
    trial = replace(
        trial,
        candidate_served=trial.candidate_served + candidate,
        baseline_served=of_baseline,
        # A burst in a baseline period is what the candidate's next one may see, too.
        guard=replace(trial.guard, expected_bad=max(baseline.bad_ratio, of_baseline.bad_ratio)),
    )
    if not candidate.requests or not baseline.requests:
        return trial
    difference = baseline.bad_ratio - candidate.bad_ratio
    return replace(trial, better=updated(trial.better, difference, -1.0), worse=updated(trial.worse, -difference, -1.0))


def _verdict(trial: Trial, seconds: float) -> Verdict | None:
    """Returns how a trial ends, or None while it must continue."""
    pairs, left = trial.better.count, MAX_TRIAL_SECONDS - seconds
    if is_certain(trial.worse):
        return "RolledBack"
    if is_certain(trial.better) and pairs >= 3:
        return "Promoted"
    is_lost = pairs >= LEAST_PAIRS and not _may_win(trial.better, pairs * left / seconds)
    return "Inconclusive" if left <= 0 or is_lost else None


def _may_win(bet: Bet, pairs: float) -> bool:
    """Returns whether a bet may be won with this many further outcomes, if the mean is a standard error larger."""
    mean = bet.mean + math.sqrt(bet.mean_square / bet.count)
    return mean > 0 and bet.log_wealth + pairs * _growth(mean, bet.mean_square) > CERTAIN


def _growth(mean: float, mean_square: float) -> float:
    """Returns by how much an outcome increases the log wealth."""
    stake = min(mean / max(mean_square, 1e-6), MOST_STAKE)
    return stake * mean - stake**2 * mean_square / 2


def _effect(trial: Trial) -> str:
    both = f"{trial.candidate_served.requests} and {trial.baseline_served.requests} requests"
    return f"{100 * trial.better.mean:+.1f} points of requests served well, {both} in {trial.better.count} pairs"


# The end ----------------------------------------------------------------------------------------------------------


def _end(builder: DecisionBuilder, trial: Trial, verdict: Verdict, reason: str) -> None:
    """Ends the trial. The resulting settings are in force from the next evaluation on."""
    end_trial(builder, trial, verdict, reason)
    rate = builder.look(trial.start_time, builder.now).rate
    shown = _shown(trial)
    if verdict == "Promoted":
        builder.remember(trial.baseline, trial.candidate, -shown, rate, hours=1.0)
        put_in_force(builder, trial.id, trial.candidate, trial.candidate_served.bad_ratio, rate)
        return
    builder.remember(trial.candidate, trial.baseline, shown, rate, hours=4.0 if verdict == "RolledBack" else 2.0)
    builder.set_phase("Watching", f"trial {trial.id} ended: {verdict}")


def _shown(trial: Trial) -> float:
    """Returns the difference that a trial has shown, nearer to 0 after few pairs."""
    if not trial.better.count:
        return trial.guard.expected_bad - 1.0 if is_certain(trial.guard.bet) else 0.0
    return trial.better.mean * trial.better.count / (trial.better.count + 2)


def end_trial(builder: DecisionBuilder, trial: Trial, verdict: Verdict, reason: str) -> None:
    """Records the end of a trial."""
    builder.record(
        verdict,
        reason,
        trial.baseline,
        trial.candidate,
        id=trial.id,
        start_time=trial.start_time,
        requests=trial.candidate_served.requests + trial.baseline_served.requests,
        difference=trial.better.mean if trial.better.count else None,
        forecast=builder.predicted,
    )
    message = f"trial {trial.id}, {format_change(trial.baseline, trial.candidate)}: {reason}"
    builder.emit(verdict, message, kind="Warning" if verdict == "RolledBack" else "Normal", trial=trial)
    builder.set(trial=None, last_change_time=builder.now, label=(trial.first_label + trial.period + 1) % LABELS)
    builder.requeue_after = 1.0
