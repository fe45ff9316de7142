"""The watch over settings: a guard bets that more requests are bad than usual, in a trial's periods of the candidate
and after a setting has come into force. Pure.
"""

import math
from collections.abc import Iterable
from datetime import timedelta

from msgspec.structs import replace

from syrinx_operator.observed.evidence import MIN_REQUESTS, WINDOW_SECONDS, Outcomes, alike
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.state.tuning_status import Guard, Served, Soak
from syrinx_operator.tuner.betting import is_certain, updated
from syrinx_operator.tuner.builder import DecisionBuilder, in_force

CHECK_SECONDS = 5.0
"""Time between two looks of a guard."""
SLACK = 0.05
"""More bad requests than expected that a guard does not bet on."""
BACKLOG_SECONDS = 15.0
"""Time after a change in which requests still wait for those from before."""
SURE_ERRORS = 3.0
"""Standard errors beyond which a setting is worse than the model said."""
GUARD_REQUESTS = MIN_REQUESTS // 4
"""Least requests of an outcome of a guard's bet."""


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


def standard_error(parts: Iterable[Served], dispersion: float) -> float:
    """Returns the standard error of a difference of ratios of bad requests. dispersion: see `Evidence`."""
    variance = 0.0
    for part in parts:
        # Few requests without a bad one do not show that there never is one.
        ratio = (part.bad + 1) / (part.requests + 2)
        variance += dispersion * ratio * (1 - ratio) / max(part.requests, 1)
    return math.sqrt(variance)


def harm(known: Outcomes) -> str:
    """Returns why a guard ends a change, as text."""
    return f"{known.bad} of {known.accepted} requests were not served well"


def put_in_force(
    builder: DecisionBuilder,
    number: int,
    setting: Setting,
    expected_bad: float,
    rate: float,
    promised_bad: float | None = None,
) -> None:
    """Makes a setting the chosen one, and watches that it is as good as what was before.

    promised_bad: what the model says of a setting that was not tried.
    """
    soak = Soak(
        id=number,
        before=in_force(builder.policy, builder.state),
        start_time=builder.now,
        rate=rate,
        restarts=builder.look(builder.now, builder.now).restarts,
        guard=Guard(expected_bad=expected_bad),
        promised_bad=promised_bad,
    )
    builder.set(chosen=setting, soak=soak, last_change_time=builder.now)
    builder.set_phase("Soaking", f"{expected_bad:.1%} of the requests were bad until now")
    builder.requeue_after = 1.0


def advance_soak(builder: DecisionBuilder) -> None:
    """Watches the setting that came into force last. Takes it back if it is worse than the one before, and ends early
    if it is worse than the model said: then the model runs again, and knows better."""
    soak = builder.state.soak
    assert soak is not None
    builder.requeue_after = CHECK_SECONDS
    known, elapsed = builder.look(soak.start_time, builder.now), builder.seconds_since(soak.start_time)
    if known.disruption or known.problem:
        if elapsed > 2 * WINDOW_SECONDS:
            _settle(builder, soak)
        return
    soak = replace(soak, guard=watched(soak.guard, known.of_arm()))
    is_broken = _is_worse_than_promised(soak, _served_alone(builder, soak), known.dispersion)
    # Of a model that was wrong, nothing speaks for a setting that seems to be worse than the one before.
    is_harmful = is_certain(soak.guard.bet) or (is_broken and known.of_arm().bad_ratio > soak.guard.expected_bad)
    if known.restarts >= soak.restarts + 2:
        _revert(builder, soak, "replicas restart repeatedly")
    elif is_harmful and alike(known.rate, soak.rate):
        _revert(builder, soak, harm(known.of_arm()))
    elif is_harmful or is_broken or elapsed > WINDOW_SECONDS:
        _settle(builder, soak, is_broken=is_broken)
    else:
        builder.set(soak=soak)


def _served_alone(builder: DecisionBuilder, soak: Soak) -> Served:
    """Returns the requests since those from before the change are served."""
    begin = soak.start_time + timedelta(seconds=BACKLOG_SECONDS)
    return served(builder.look(min(begin, builder.now), builder.now).of_arm())


def _is_worse_than_promised(soak: Soak, seen: Served, dispersion: float) -> bool:
    if soak.promised_bad is None:
        return False
    return seen.bad_ratio > soak.promised_bad + SLACK + SURE_ERRORS * standard_error((seen,), dispersion)


def _settle(builder: DecisionBuilder, soak: Soak, *, is_broken: bool = False) -> None:
    seen = _served_alone(builder, soak)
    if soak.promised_bad is not None and seen.requests >= GUARD_REQUESTS:
        chosen = in_force(builder.policy, builder.state)
        difference, error = _shown(builder, soak, seen)
        builder.remember(soak.before, chosen, -difference, error, soak.rate, hours=0.5)
        builder.record(
            "Promoted",
            f"in force without a trial: {100 * difference:+.1f} points of requests served well",
            soak.before,
            chosen,
            id=soak.id,
            start_time=soak.start_time,
            requests=seen.requests,
            difference=difference,
            forecast=builder.predicted,
        )
    builder.set(soak=None)
    if is_broken:
        builder.set(next_plan_time=None)
    outcome = "serves fewer well than the model said" if is_broken else "has passed its watch"
    builder.set_phase("Watching", f"change {soak.id} {outcome}")
    builder.emit("Settled", builder.state.message)


def _revert(builder: DecisionBuilder, soak: Soak, why: str) -> None:
    chosen = in_force(builder.policy, builder.state)
    builder.record("Regressed", why, chosen, soak.before, id=soak.id, start_time=soak.start_time)
    difference, error = _shown(builder, soak, soak.guard.seen)
    builder.remember(chosen, soak.before, min(difference, 0.0), error, soak.rate, hours=4.0)
    builder.set(chosen=soak.before, soak=None, last_change_time=builder.now)
    builder.set_phase("Watching", f"change {soak.id} was rolled back: {why}")
    builder.emit("Regressed", f"change {soak.id} was rolled back: {why}", kind="Warning")


def _shown(builder: DecisionBuilder, soak: Soak, seen: Served) -> tuple[float, float]:
    """Returns the difference to the setting before, and its standard error, as if that had had as many requests."""
    dispersion = builder.look(soak.start_time, builder.now).dispersion
    return soak.guard.expected_bad - seen.bad_ratio, standard_error((seen, seen), dispersion)
