"""A trial of a setting: a switchback experiment on the ratio of requests that are served well. Pure.

In each pair of periods a coin decides whether all replicas run the candidate or the baseline first. While requests are
counted, gateways label them with the period's own label. A pair yields one difference of the ratios, on whose mean two
bets are placed: that the candidate is better, and that it is worse. Meanwhile a guard bets that more of the candidate's
requests are bad than is usual, and ends the trial at once when it is certain.
"""

import random
from datetime import datetime, timedelta

from msgspec.structs import replace

from syrinx_operator.observed.evidence import WINDOW_SECONDS, Evidence
from syrinx_operator.resource.knobs import Setting, format_change, live_settings
from syrinx_operator.resource.state.tuning_status import Guard, Served, Trial, Verdict
from syrinx_operator.tuner.betting import CERTAIN, MOST_STAKE, PRIOR_SQUARE, is_certain, updated
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS, DecisionBuilder, in_force
from syrinx_operator.tuner.watch import CHECK_SECONDS, SLACK, harm, put_in_force, served, standard_error, watched

LABELS = 16
"""Labels are used in turns; late outcomes of a period never meet those of its label's next one."""
MAX_TRIAL_SECONDS = 3600.0
WASH_OUT_SECONDS = 3.0
"""Time until requests are counted once all replicas run a setting, in which late outcomes of the last period come."""
PERIOD_SECONDS = 2 * WASH_OUT_SECONDS
"""Shortest counted length of a period."""
PERIOD_BURSTS = 5.0
"""Bursts of requests in a period, on average, or as many single ones."""
PERIOD_BAD_SECONDS = 40.0
"""How much longer it is if all requests are bad: queues remember the last period."""
LOWEST = -0.5
"""Least outcome of a pair that a bet counts, so that it may stake more, and finds a small gain in half of the pairs. A
lower one still costs nearly all of the wealth."""
LEAST_PAIRS = 10
"""Pairs after which a trial ends that is not going to find anything."""


def start_trial(
    builder: DecisionBuilder,
    candidate: Setting,
    why: str,
    recent: Evidence,
    promised: float = 0.0,
    doubt: float = 0.0,
) -> None:
    """Starts a trial. `recent` is what is known of the setting in force; `promised` and `doubt`: see `Trial`."""
    before, seen = in_force(builder.policy, builder.state), served(recent.of_arm())
    trial = Trial(
        id=builder.state.trial_count + 1,
        candidate=candidate,
        baseline=before,
        why=why[:256],
        promised=promised,
        doubt=doubt,
        start_time=builder.now,
        period_time=builder.now,
        period_seconds=_period_seconds(recent),
        first_label=builder.state.label,
        guard=Guard(expected_bad=seen.bad_ratio),
        replicas=recent.names,
        restarts=recent.restarts,
    )
    builder.set(trial_count=trial.id, trial=trial, recommendation=None, last_change_time=builder.now)
    builder.set_phase("Trial", why)
    builder.emit("TrialStarted", f"trial {trial.id}, {format_change(before, candidate)}: {why}", trial=trial)
    builder.requeue_after = 1.0


def _period_seconds(recent: Evidence) -> float:
    """Returns the counted length of a period: some bursts of requests."""
    shortest = PERIOD_SECONDS + PERIOD_BAD_SECONDS * recent.of_arm().bad_ratio
    return max(shortest, PERIOD_BURSTS * recent.burst / recent.rate)


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
        builder.emit("Compared", f"trial {trial.id}, pair {trial.better.count}", kind="Audit", trial=trial)
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
    if builder.seconds_since(trial.start_time) > MAX_TRIAL_SECONDS:
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
    better, worse = (
        updated(bet, max(each, LOWEST), LOWEST)
        for bet, each in ((trial.better, difference), (trial.worse, -difference))
    )
    return replace(trial, better=better, worse=worse)


def _verdict(trial: Trial, seconds: float) -> Verdict | None:
    """Returns how a trial ends, or None while it must continue."""
    pairs, left = trial.better.count, MAX_TRIAL_SECONDS - seconds
    if is_certain(trial.worse):
        return "RolledBack"
    if is_certain(trial.better) and pairs >= 3:
        return "Promoted"
    is_lost = pairs >= LEAST_PAIRS and not _may_win(trial, pairs * left / seconds)
    return "Inconclusive" if left <= 0 or is_lost else None


def _may_win(trial: Trial, pairs: float) -> bool:
    """Returns whether the candidate may be found better in this many further pairs: if the mean is a standard error
    larger than what the model and the pairs so far say."""
    bet = trial.better
    # As in the bet, a usual outcome counts as one more.
    square = (PRIOR_SQUARE + bet.count * bet.mean_square) / (bet.count + 1)
    seen, believed = bet.count / square, trial.doubt**-2 if trial.doubt else 0.0
    mean = (believed * trial.promised + seen * bet.mean) / (believed + seen) + (believed + seen) ** -0.5
    return mean > 0 and bet.log_wealth + pairs * _growth(mean, square) > CERTAIN


def _growth(mean: float, mean_square: float) -> float:
    """Returns by how much an outcome increases the log wealth."""
    stake = min(mean / max(mean_square, 1e-6), MOST_STAKE / -LOWEST)
    return stake * mean - stake**2 * mean_square / 2


def _effect(trial: Trial) -> str:
    both = f"{trial.candidate_served.requests} and {trial.baseline_served.requests} requests"
    return f"{100 * trial.better.mean:+.1f} points of requests served well, {both} in {trial.better.count} pairs"


# The end ----------------------------------------------------------------------------------------------------------


def _end(builder: DecisionBuilder, trial: Trial, verdict: Verdict, reason: str) -> None:
    """Ends the trial. The resulting settings are in force from the next evaluation on."""
    end_trial(builder, trial, verdict, reason)
    known = builder.look(trial.start_time, builder.now)
    rate, (shown, error) = known.rate, _shown(trial, known.dispersion)
    if verdict == "Promoted":
        builder.remember(trial.baseline, trial.candidate, -shown, error, rate, hours=1.0)
        put_in_force(builder, trial.id, trial.candidate, trial.candidate_served.bad_ratio, rate)
        return
    hours = 4.0 if verdict == "RolledBack" else 2.0
    builder.remember(trial.candidate, trial.baseline, shown, error, rate, hours)
    builder.set_phase("Watching", f"trial {trial.id} ended: {verdict}")


def _shown(trial: Trial, dispersion: float) -> tuple[float, float]:
    """Returns the difference that a trial has shown, and its standard error."""
    if trial.better.count:
        return trial.better.mean, standard_error((trial.candidate_served, trial.baseline_served), dispersion)
    if is_certain(trial.guard.bet):
        return -trial.guard.bet.mean - SLACK, standard_error((trial.guard.seen, trial.guard.seen), dispersion)
    return 0.0, 1.0


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
