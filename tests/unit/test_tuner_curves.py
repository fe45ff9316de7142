"""Engine times learned from counters."""

import random

import pytest

from simulator.scripted import clock
from syrinx_operator.observed.evidence import CallStats, Evidence, ReplicaStats, StepStats
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.state.tuning_status import MAX_SHAPES, CallPoint, Measured, PreparePoint, StepPoint
from syrinx_operator.tuner.model.curves import MEMORY_SECONDS, call_cost, learned, step_seconds
from syrinx_stages.contract.metrics import ROW_BUCKETS
from syrinx_stages.contract.stages import Stage


def steps(**means: float) -> Measured:
    """Returns measured steps: mean seconds by bucket, `r4=0.01`."""
    return Measured(steps=tuple(StepPoint(int(name[1:]), 100, 100 * mean) for name, mean in means.items()))


def evidence(seconds=60.0, *, step=None, calls=(), prefills=None, prepares=None, talkers=1) -> Evidence:
    replicas = [
        ReplicaStats(
            name=f"t{n}",
            stage=Stage.TALKER,
            ready=True,
            restarts=0,
            steps=step or {},
            prepares=prepares or {},
            prefills=prefills or StepStats(0, 0.0),
        )
        for n in range(talkers)
    ]
    replicas.append(ReplicaStats(name="c", stage=Stage.CODEC, ready=True, restarts=0, calls=tuple(calls)))
    identity = Identity(model="m", image="i", device="d")
    return Evidence(since=clock(0), until=clock(seconds), identity=identity, replicas=tuple(replicas))


# Steps ------------------------------------------------------------------------------------------------------------


def test_known_sizes_are_as_measured_and_those_between_are_interpolated():
    assert [ROW_BUCKETS[at] for at in range(4)] == [1, 2, 4, 8]
    known = step_seconds(steps(r1=0.010, r2=0.012, r8=0.020), 8)
    assert known[1:3] == pytest.approx([0.010, 0.012])
    # Steps of 5 to 8 rows have 6.5 on average.
    assert known[6] < 0.020 < known[7] + 1e-9
    assert known[4] == pytest.approx(0.012 + 0.008 * 2 / 4.5)


def test_steps_beyond_the_known_ones_follow_the_line():
    known = step_seconds(steps(r1=0.011, r2=0.012), 64)
    assert known[64] == pytest.approx(0.010 + 0.001 * 64, rel=0.05)


def test_sizes_that_hardly_differ_tell_little_of_larger_ones():
    """Steps of few rows may be those without a decoder call at the same time."""
    often, rare = StepPoint(4, 10_000, 10_000 * 0.035), StepPoint(2, 100, 100 * 0.027)
    known = step_seconds(Measured(steps=(rare, often)), 32)
    assert 0.035 < known[32] < 0.11


def test_a_step_never_gets_quicker_with_more_rows():
    for seed in range(50):
        randoms = random.Random(seed)
        points = tuple(
            StepPoint(rows, count := randoms.randint(1, 1000), count * randoms.uniform(0.01, 0.02))
            for rows in sorted(randoms.sample(ROW_BUCKETS, 4))
        )
        known = step_seconds(Measured(steps=points), 128)
        assert known == sorted(known)
        assert known[0] > 0


# Calls ------------------------------------------------------------------------------------------------------------


def calls(cost, shapes, noise=0.0):
    randoms = random.Random(1)
    return [
        CallPoint(
            r, f, False, 100, 100 * (cost[0] + r * (cost[1] + f * cost[2])) * (1 + randoms.uniform(-noise, noise))
        )
        for r, f in shapes
    ]


@pytest.mark.parametrize("cost", [(0.004, 0.001, 0.0005), (0.004, 0.0, 0.001), (0.0, 0.002, 0.0), (0.003, 0.0, 0.0)])
def test_the_cost_of_calls_is_recovered(cost):
    shapes = [(1, 2), (1, 8), (2, 2), (4, 8), (8, 12)]
    found = call_cost(calls(cost, shapes))
    assert (found.fixed, found.row, found.frame) == pytest.approx(cost, abs=1e-9)
    assert found.at(3, 5) == pytest.approx(cost[0] + 3 * (cost[1] + 5 * cost[2]))


def test_no_part_of_the_cost_is_negative():
    for seed in range(50):
        randoms = random.Random(seed)
        points = [
            CallPoint(randoms.randint(1, 16), randoms.randint(1, 12), False, 10, 10 * randoms.uniform(0.001, 0.1))
            for _ in range(randoms.randint(1, 6))
        ]
        found = call_cost(points)
        assert min(found.fixed, found.row, found.frame) >= 0
        assert max(found.fixed, found.row, found.frame) > 0


def test_small_errors_of_calls_change_predictions_little():
    found = call_cost(calls((0.004, 0.001, 0.0005), [(r, f) for r in (1, 2, 4, 8) for f in (2, 4, 8, 12)], noise=0.1))
    assert found.at(16, 12) == pytest.approx(0.004 + 16 * (0.001 + 12 * 0.0005), rel=0.1)


# Memory -----------------------------------------------------------------------------------------------------------


def test_learns_from_all_replicas():
    seen = evidence(
        step={4: StepStats(10, 0.2)},
        prepares={"Base": StepStats(2, 0.5)},
        prefills=StepStats(3, 0.06),
        calls=[CallStats(1, 2, "eager", 5, 0.05), CallStats(1, 2, "hit", 5, 0.01), CallStats(1, 2, "padded", 5, 0.02)],
        talkers=2,
    )
    known = learned(Measured(), seen)
    assert known.steps == (StepPoint(4, 20, 0.4),)
    assert known.prepares == (PreparePoint("Base", 4, 1.0),)
    assert (known.prefills, known.prefill_seconds) == (6, 0.12)
    assert known.calls == (CallPoint(1, 2, False, 5, 0.05), CallPoint(1, 2, True, 5, 0.01)), (
        "of a padded call, no shape is known"
    )
    assert known.is_known


def test_nothing_is_known_before_both_stages_ran():
    assert not Measured().is_known
    assert not learned(Measured(), evidence(step={4: StepStats(10, 0.2)})).is_known


def test_old_measurements_fade():
    """After a change of speed the mean follows within the memory, and a long idle time forgets."""
    known = learned(Measured(), evidence(step={4: StepStats(1000, 10.0)}))
    for _ in range(int(3 * MEMORY_SECONDS / 60)):
        known = learned(known, evidence(step={4: StepStats(100, 2.0)}))
    (point,) = known.steps
    assert point.seconds / point.count == pytest.approx(0.020, rel=0.02)
    assert point.count < 1.1 * 100 * MEMORY_SECONDS / 60
    for _ in range(60):
        known = learned(known, evidence(MEMORY_SECONDS))
    assert known.steps == ()


def test_the_state_stays_small():
    shapes = [CallStats(r, f, "eager", 10, 0.01 * r * f) for r in range(1, 20) for f in range(1, 20)]
    known = learned(Measured(), evidence(calls=shapes))
    assert len(known.calls) == MAX_SHAPES
    assert CallPoint(19, 19, False, 10, pytest.approx(3.61)) in known.calls
    assert all(point.rows * point.frames > 50 for point in known.calls)
