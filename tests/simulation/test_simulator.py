"""The simulated services serve as engines of those times let them, and show the tuner what their clients heard."""

import math
import statistics

import pytest
from msgspec.structs import replace

from simulator.auto import policy
from simulator.costs import CPU2, GPU, line
from simulator.scenario import Failure, Phase
from simulator.twins import Twins
from simulator.world import World, run_fixed, well
from support.simulated import GOOD, START, service
from syrinx_operator.observed.counters import CounterHistory
from syrinx_operator.resource.knobs import live_settings
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_operator.tuner.decide import Assignment
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.stages import Stage


def ttfa(world: World) -> float:
    return statistics.median(outcome.ttfa for outcome in world.outcomes)


# The load ---------------------------------------------------------------------------------------------------------


def test_draws_the_load():
    phases = Phase(1000.0, 6.0, 4.0), Phase(3000.0, 2.0, 8.0, burst=3.0)
    requests = list(service(phases=phases).requests())
    assert requests == sorted(requests, key=lambda request: request.at)
    first, second = ([each for each in requests if (each.at < 1000) is early] for early in (True, False))
    assert len(first) / 1000 == pytest.approx(6.0, rel=0.05) and len(second) / 2000 == pytest.approx(2.0, rel=0.1)
    assert [0.08 * statistics.mean(each.frames for each in part) for part in (first, second)] == [
        pytest.approx(4.0, rel=0.03),
        pytest.approx(8.0, rel=0.03),
    ]
    assert len(second) / len({each.at for each in second}) == pytest.approx(3.0, rel=0.1)


# The services -----------------------------------------------------------------------------------------------------


def test_an_idle_service_takes_prefill_two_steps_and_a_call():
    """And some messages, of at most a millisecond each."""
    costs = replace(CPU2, noise=0.0)
    expected = costs.prefill + 2 * costs.step_seconds(1) + costs.eager.at(1, 2)
    assert expected < ttfa(World(service(rate=0.2, costs=costs)).run()) < expected + 0.015


def test_a_cloned_voice_is_heard_after_its_reference_is_encoded():
    costs = replace(GPU, noise=0.0, prepare=0.5)
    preset, cloned = (
        ttfa(World(service(rate=0.2, costs=costs, task_type=task)).run())
        for task in (TaskType.CUSTOM_VOICE, TaskType.BASE)
    )
    # And the codec has decoded it, in calls of up to twelve frames.
    assert 0.5 < cloned - preset < 0.6


def test_the_same_seed_is_the_same_run():
    one, two, other = (World(service(10.0, seed=seed)).run().outcomes for seed in (1, 1, 2))
    assert one == two != other


def test_more_rows_serve_more():
    assert well(run_fixed(service(60.0), START)) < 0.6 < 0.99 < well(run_fixed(service(60.0), GOOD))


def test_streams_of_a_killed_talker_go_on():
    killed = Failure(10.0, Stage.TALKER, 0, down=2.0)
    world = World(service(talkers=2, failures=(killed,))).run()
    assert all(outcome.complete for outcome in world.outcomes)
    assert any(outcome.gaps for outcome in world.outcomes)


def test_stages_on_one_device_slow_each_other_down():
    apart = replace(CPU2, step=line(0.02, 0.004))
    alone, shared = (run_fixed(service(60.0, 1.5, replace(apart, interference=factor)), GOOD) for factor in (1.0, 2.0))
    assert ttfa(shared) > 1.2 * ttfa(alone)


def test_replicas_come_and_go():
    scenario = service(40.0)

    def direct(world: World) -> float:
        world.scale({Stage.TALKER: 2 if 10 <= world.now < 20 else 1}, start_seconds=3.0)
        return 1.0

    world = World(scenario).run(direct)
    assert all(outcome.complete for outcome in world.outcomes)
    beside = world.replica_seconds - 2 * world.now
    # Ten seconds, and until its last request has ended.
    assert 10.0 < beside < 25.0


# What the tuner sees ----------------------------------------------------------------------------------------------


def test_the_counters_show_what_the_clients_heard():
    scenario, history = service(90.0, 4.0, initial=START), CounterHistory()

    def direct(world: World) -> float:
        history.observe(world.observe())
        return 5.0

    world = World(scenario).run(direct)
    rules, begin = policy(scenario), world.clock(0.0)
    seen = history.evidence(rules.objectives, rules.interval, begin, world.clock())
    counted = seen.of_arm()
    until = (seen.until - begin).total_seconds()
    sent = [outcome for outcome in world.outcomes if outcome.at < until]
    served = sum(outcome.is_well(scenario.objective.seconds) for outcome in sent)
    assert not seen.problem and counted.accepted == pytest.approx(len(sent), abs=3)
    assert counted.refused > 0 and counted.refused == pytest.approx(sum(each.refused for each in sent), abs=12)
    assert counted.accepted - counted.bad == pytest.approx(served, abs=15)
    talker, codec = (seen.replicas_of(stage)[0] for stage in (Stage.TALKER, Stage.CODEC))
    assert talker.steps[1].seconds / talker.steps[1].count == pytest.approx(CPU2.step_seconds(1), rel=0.1)
    assert codec.calls


def test_a_candidate_ends_when_it_is_not_renewed():
    running = []

    def direct(world: World) -> float:
        if not running:
            world.apply(Assignment(base=GOOD, candidate=START, label="a"))
        talker, codec = world.observe().replicas
        assert talker.settings is not None and codec.settings is not None
        running.append(talker.settings["max_num_seqs"])
        shown = START if running[-1] == 1 else GOOD
        assert live_settings(shown, Stage.CODEC).items() <= codec.settings.items(), "as a trial confirms it"
        return OVERRIDE_TTL_SECONDS - 1 if len(running) == 1 else 2.0

    World(service(OVERRIDE_TTL_SECONDS + 10, 0.1)).run(direct)
    assert running[:3] == [1, 1, 8]


# Twins ------------------------------------------------------------------------------------------------------------


def hurt(*changes: Assignment) -> float:
    """Applies a change every half a minute."""
    world = World(service(100.0, initial=GOOD))
    twins, left = Twins(world), list(changes)

    def direct(world: World) -> float:
        if world.now > 15:
            twins.apply(left.pop(0))
        return 30.0 if left else math.inf

    world.run(direct)
    return twins.hurt()


@pytest.mark.night
def test_a_harmful_change_is_charged_and_an_empty_one_is_not():
    kept = Assignment(base=GOOD)
    assert hurt(kept, kept) == 0.0
    assert hurt(replace(kept, label="a"), kept) == 0.0
    in_force, tried = hurt(Assignment(base=START), kept), hurt(replace(kept, candidate=START, label="a"), kept)
    assert in_force > 0.15 and tried == pytest.approx(in_force, abs=0.02)
