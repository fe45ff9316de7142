"""A trial step by step: labels, confirmation, wash-out, counting of pairs, disturbances and ends."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from simulator.scripted import clock
from support.tuner_world import BASE, BETTER, World, better
from syrinx_operator.observed.evidence import MIN_REQUESTS, WINDOW_SECONDS, Outcomes
from syrinx_operator.tuner.trial import (
    LABELS,
    MAX_TRIAL_SECONDS,
    PERIOD_BAD_SECONDS,
    PERIOD_BURSTS,
    PERIOD_SECONDS,
    WASH_OUT_SECONDS,
    runs_candidate,
)

BAD = 0.3


def started(bad=None, **fields) -> World:
    """Returns a pipeline whose trial has just started."""
    return World(bad or better(BAD, 0.05), **fields).until(lambda w: w.state.trial is not None)


def counts(world) -> bool:
    return world.state.trial is not None and world.state.trial.counting_time is not None


def in_candidate(world) -> bool:
    return counts(world) and runs_candidate(world.state.trial)


def in_baseline(world) -> bool:
    return counts(world) and not runs_candidate(world.state.trial)


def pairs(world) -> int:
    return world.state.trial.better.count if world.state.trial else -1


# Periods ----------------------------------------------------------------------------------------------------------


def test_all_replicas_run_one_setting_and_requests_are_labeled_while_they_count():
    world = started(replicas=2)

    def check(world):
        trial, applied = world.state.trial, world.applied[-1]
        if trial is None:
            return
        assert applied.base == BASE == trial.baseline
        assert applied.candidate == (BETTER if runs_candidate(trial) else None)
        assert applied.label == (f"{(trial.first_label + trial.period) % LABELS:x}" if trial.counting_time else "")

    world.until(lambda w: w.state.trial is None, each=check)


def test_each_pair_has_both_settings_in_an_order_drawn_by_lot():
    trial = started().state.trial
    orders = [
        [runs_candidate(replace(trial, id=number, period=2 * pair + half)) for half in (0, 1)]
        for number in range(50)
        for pair in range(20)
    ]
    assert all(sorted(order) == [False, True] for order in orders)
    first = sum(order[0] for order in orders)
    assert first == pytest.approx(500, abs=60)
    flips = sum(one != other for one, other in pairwise(orders))
    assert flips == pytest.approx(500, abs=60)


@pytest.mark.parametrize(
    ("rate", "seconds"), [(20.0, PERIOD_SECONDS + PERIOD_BAD_SECONDS * BAD), (0.25, MIN_REQUESTS / 2 / 0.25)]
)
def test_a_period_is_long_enough_for_some_requests_and_for_queues(rate, seconds):
    trial = (
        World(better(BAD, 0.05), rate=rate, gain=0.25, doubt=0.2)
        .until(lambda w: w.state.trial is not None, 7200)
        .state.trial
    )
    assert trial.period_seconds == pytest.approx(seconds, rel=0.5)
    assert PERIOD_SECONDS <= trial.period_seconds <= WINDOW_SECONDS / 2


def test_a_period_has_some_bursts_of_requests():
    world = World(better(BAD, 0.05), rate=2.0, gain=0.0, doubt=0.2)
    world.burst = 15
    world.until(lambda w: w.now > 900, 7200)
    world.gain = 0.2
    trial = world.until(lambda w: w.state.trial is not None, 7200).state.trial
    assert trial.period_seconds >= 0.6 * PERIOD_BURSTS * 15 / 2.0


def test_counting_waits_for_every_replica_and_the_wash_out():
    world = started()
    world.confirms = False
    world.serve(30)
    assert world.state.trial.confirmed_time is None and world.applied[-1].label == ""
    world.confirms = True
    world.until(counts)
    trial = world.state.trial
    assert (trial.counting_time - trial.confirmed_time).total_seconds() >= WASH_OUT_SECONDS


def test_replicas_that_never_confirm_end_the_trial():
    world = started()
    world.confirms = False
    world.until(lambda w: w.state.trial is None, 2 * MAX_TRIAL_SECONDS)
    assert world.verdicts == ["Inconclusive"]
    assert "confirmed" in world.state.history[0].reason
    assert MAX_TRIAL_SECONDS < world.now < 1.5 * MAX_TRIAL_SECONDS
    assert world.is_plain and world.setting == BASE


def test_a_pair_counts_the_requests_of_its_own_periods():
    """Requests without a label, from before or between the periods, count for neither."""
    world = started()
    world.bad = lambda setting, _: 1.0 if not world.applied[-1].label else 0.05 if setting == BETTER else BAD
    world.until(lambda w: pairs(w) == 3)
    trial = world.state.trial
    assert trial.baseline_served.bad_ratio < 0.6
    counted = trial.candidate_served.requests + trial.baseline_served.requests
    assert counted == pytest.approx(6 * trial.period_seconds * world.rate, rel=0.25)
    assert trial.better.mean == pytest.approx(-trial.worse.mean)


def test_late_outcomes_count_in_their_own_period():
    world = started()
    evidence = world.evidence

    def late(since, until):
        """Outcomes become known three seconds late, accepted requests at once."""
        now, past = evidence(since, until), evidence(since, clock(world.now - 3.0))
        return replace(
            now,
            outcomes={
                key: replace(past.outcomes.get(key, Outcomes()), accepted=each.accepted)
                for key, each in now.outcomes.items()
            },
        )

    world.evidence = late
    world.until(lambda w: pairs(w) == 4)
    trial = world.state.trial
    assert trial.baseline_served.bad_ratio == pytest.approx(BAD, abs=0.1)
    assert trial.candidate_served.bad_ratio == pytest.approx(0.05, abs=0.06)


# Disturbances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["counting", "confirming"])
def test_a_disturbance_discards_the_pair_and_the_next_one_counts(at):
    world = started().until(lambda w: pairs(w) == 1 and (at == "confirming" or counts(w)))
    world.disruption = "codec-0 is not ready"
    world.evaluate()
    trial = world.state.trial
    assert (trial.discarded, trial.period % 2, trial.pair_time) == (1, 0, None)
    assert pairs(world) == 1
    world.disruption = ""
    world.until(lambda w: pairs(w) == 2)
    assert world.state.trial.discarded >= 1


def test_a_long_disturbance_ends_the_trial():
    world = started()
    world.disruption = "talker rolls out"
    world.until(lambda w: w.state.trial is None, 2 * MAX_TRIAL_SECONDS)
    assert world.verdicts == ["Inconclusive"]
    assert "talker rolls out" in world.state.history[0].reason


def test_a_restart_under_the_candidate_rolls_it_back():
    world = started().until(in_candidate)
    world.restarts["codec-0"] += 1
    world.evaluate()
    assert world.verdicts == ["RolledBack"]
    assert world.setting == BASE and world.is_plain
    assert world.state.tried[0].setting == BETTER
    assert world.decisions[-1].events[-1].kind == "Warning"


def test_a_restart_under_the_baseline_discards_the_pair():
    world = started().until(in_baseline)
    world.restarts["codec-0"] += 1
    world.evaluate()
    assert world.state.trial.discarded == 1
    world.until(lambda w: w.state.trial is None)
    assert world.verdicts == ["Promoted"]
