"""The tuner on the simulated services, and its model beside them."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

import pytest
from msgspec.structs import replace

from simulator import baselines, calibration, trials
from simulator.auto import policy, tune
from simulator.costs import GPU
from simulator.fresh import draw
from simulator.listeners import Outcome
from simulator.rows import measured
from simulator.scenario import Phase, Scenario
from simulator.world import World, run_fixed, well
from support.simulated import START, service
from syrinx_operator.observed.counters import CounterHistory
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.tuning_status import Measured, State
from syrinx_operator.tuner import decide
from syrinx_operator.tuner.model.curves import learned
from syrinx_operator.tuner.model.plan import Question, plan, question_of
from syrinx_operator.tuner.model.whatif import Model


def well_after(world: World, at: float) -> float:
    limit = world.scenario.objective.seconds
    later: list[Outcome] = [outcome for outcome in world.outcomes if outcome.at >= at]
    return sum(outcome.is_well(limit) for outcome in later) / len(later)


# The tuner --------------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_a_bad_start_improves_within_minutes():
    scenario = service(600.0, 2.5, initial=START)
    day = tune(scenario, policy(scenario))
    assert well(run_fixed(scenario, START)) < 0.6
    assert well_after(day.world, 180.0) > 0.97
    assert day.hurt < 0.005


@pytest.mark.night
def test_follows_a_shift_of_the_load():
    phases = Phase(600.0, 0.3), Phase(1500.0, 3.0)
    scenario = service(phases=phases, initial=replace(START, talker_max_num_seqs=2))
    day = tune(scenario, policy(scenario))
    assert well_after(day.world, 900.0) > 0.9


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_baselines_stay_within_bounds(name):
    rules = policy(draw(3))
    strategy = baselines.BASELINES[name](rules, random.Random(1))
    setting = next(strategy)
    assert setting == rules.requested
    for window in range(100):
        setting = strategy.send(baselines.Seen((window % 7) / 7, 100, window % 3 == 0))
        assert 1 <= setting.talker_max_num_seqs <= max(rules.rows[Knob.TALKER_ROWS])
        assert 1 <= setting.codec_max_num_seqs <= max(rules.rows[Knob.CODEC_ROWS])
        assert setting.chunk_ramp in rules.ramps


# The model beside the services ------------------------------------------------------------------------------------

WORKLOADS = {
    "two cores": service(300.0, 2.5),
    "a GPU": service(120.0, 12.0, GPU, resident=64),
    "two GPUs, bursts": service(phases=(Phase(120.0, 12.0, burst=3.0),), costs=GPU, talkers=2, codecs=2),
}
RAMP = START.chunk_ramp
SETTINGS = [
    replace(START, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
    for talker, codec, ramp in (
        (1, 1, RAMP),
        (4, 4, RAMP),
        (16, 1, (4, 4, 8, 12)),
        (16, 16, (1, 2, 4, 8, 12)),
        (32, 32, (8, 8, 12, 16)),
    )
]


def asked(scenario: Scenario, setting: Setting) -> Question:
    """Returns the question that the tuner asks of a setting after the scenario, with what was observed of it."""
    history, rules = CounterHistory(), policy(replace(scenario, initial=setting))

    def direct(world: World) -> float:
        history.observe(world.observe())
        return 15.0

    world = World(replace(scenario, initial=setting)).run(direct)
    now = world.clock()
    seen = history.evidence(rules.objectives, rules.interval, now - timedelta(seconds=world.now), now)
    question = question_of(rules, State(measured=learned(Measured(), seen)), seen, setting, now)
    assert question is not None
    return question


@pytest.mark.night
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_model_agrees_with_the_services(name):
    """From the counters of one setting, it predicts the ratio of all to ten points on average, none off by forty."""
    scenario = WORKLOADS[name]
    question = asked(scenario, SETTINGS[1])
    model = Model(question.load, question.plant, question.measured, 2000)
    errors = [abs(model.score(each).well - well(run_fixed(scenario, each))) for each in SETTINGS]
    assert sum(errors) / len(errors) < 0.1, errors
    assert max(errors) < 0.4, errors


@pytest.mark.night
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_plan_is_nearly_as_good_as_any_setting(name):
    scenario = WORKLOADS[name]
    best = max(well(run_fixed(scenario, each)) for each in SETTINGS)
    found = plan(asked(scenario, SETTINGS[1])).best.setting
    assert well(run_fixed(scenario, found)) > best - 0.05


# What is measured -------------------------------------------------------------------------------------------------


def test_an_interrupted_measurement_continues_where_it_stopped(tmp_path):
    path, keys = tmp_path / "rows.jsonl", [(seed,) for seed in range(3)]
    with ThreadPoolExecutor(1) as pool:
        first = next(measured(pool, trials.skewed_trial, keys[:1], str, path))
        known = path.read_bytes()
        rest = list(measured(pool, trials.skewed_trial, keys, str, path))
        assert rest[0] == first and len(rest) == 3
        assert path.read_bytes().startswith(known) and len(path.read_bytes().splitlines()) == 3
        assert sorted(measured(pool, trials.skewed_trial, keys, str, path)) == sorted(rest)
        assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.night
def test_a_change_that_changes_nothing_is_not_promoted():
    assert trials.no_op_trial(3) == "Inconclusive"


@pytest.mark.night
def test_a_trial_finds_a_better_setting():
    """The model may not put it in force: it is only one setting, and it errs."""
    scenario = service(1500.0, 2.5, initial=START)
    rules = replace(policy(scenario), rows={Knob.TALKER_ROWS: (1, 8), Knob.CODEC_ROWS: (1,)}, ramps=(RAMP,))
    with mock.patch.object(decide, "SURE", 100.0), mock.patch.object(decide, "MOSTLY", 1.0):
        day = tune(scenario, rules)
    (found,) = [record for record in day.state.history if record.verdict == "Promoted"]
    assert found.difference is not None and found.difference > 0.1


def test_a_forecast_that_is_off_shows_in_the_table():
    outcome = calibration.figures(0.9, [0.1] * 19 + [0.4], 4.0)
    cases = [
        calibration.Case(
            kind="simulated", workload=seed, setting=START, is_seen=False, forecast=forecast, outcome=outcome
        )
        for seed, forecast in enumerate((outcome, replace(outcome, well=0.8, p50=0.05), replace(outcome, well=0.95)))
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in calibration.text(cases).splitlines()]
    assert ["simulated", "unseen", "3", "served well", "+5.0", "-10.0"] in rows
    assert ["simulated", "unseen", "3", "TTFA p50", "+0 %", "-50 %"] in rows
