"""The tuner in the simulator: hours of a pipeline with queues, batches and failures; and what was measured of it."""

import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from msgspec.structs import replace

from simulator import baselines, costs, trials
from simulator.auto import policy, tune
from simulator.cases import RESULTS
from simulator.fresh import draw
from simulator.rows import TUNER, measured
from simulator.scenario import Costs, Decoder, Scenario
from simulator.tuning import Report, best_fixed, write_table
from simulator.twins import Twins
from simulator.world import World, clock, good, run_fixed
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Measured
from syrinx_operator.tuner.curves import learned
from syrinx_operator.tuner.decide import Assignment
from syrinx_operator.tuner.plan import Question, plan
from syrinx_operator.tuner.policy import Objective
from syrinx_operator.tuner.whatif import Load, Model, Plant

HOUR = 3600.0
START = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
GPU = Costs(
    step=((1, 0.009), (16, 0.010), (64, 0.016)),
    eager=Decoder(0.004, 0.0004, 0.0002),
    captured=Decoder(0.004, 0.0004, 0.0002),
    prefill={"CustomVoice": 0.01, "Base": 0.02},
    reference_frames={"Base": 40},
)


def service(machine=costs.CPU2, hours=1.0, *, rates=None, ms=300, **fields) -> Scenario:
    """Returns a service on two cores, or another machine, with a bad setting to start from."""
    rates = rates or {"CustomVoice": 2.5}
    given = {
        "name": "service",
        "seconds": hours * HOUR,
        "load": ((1e9, rates),),
        "objectives": {name: Objective(ms / 1000, 0.95) for name in rates},
        "initial": START,
        "costs": machine,
        "max_queue_seconds": 2.0,
        **fields,
    }
    return Scenario(**given)


def well(scenario: Scenario, setting: Setting) -> float:
    return float(good(run_fixed(scenario, setting), scenario).mean())


# The tuner --------------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_a_bad_start_improves_within_minutes():
    scenario = service(hours=2)
    day = tune(scenario, policy(scenario))
    outcomes = day.world.outcomes()
    served = good(outcomes, scenario)
    assert well(scenario, START) < 0.2
    assert served[outcomes.accepted > 1200].mean() > 0.95
    assert day.hurt < 0.005


@pytest.mark.night
def test_follows_a_shift_of_the_load():
    light, heavy = {"CustomVoice": 0.3}, {"CustomVoice": 3.0}
    scenario = service(hours=2, load=((HOUR, light), (2 * HOUR, heavy)), initial=replace(START, talker_max_num_seqs=2))
    day = tune(scenario, policy(scenario))
    outcomes = day.world.outcomes()
    late = outcomes.accepted > HOUR + 1200
    best = run_fixed(scenario, best_fixed(replace(scenario, load=((1e9, heavy),)), policy(scenario)))
    assert good(outcomes, scenario)[late].mean() > 0.95 * good(best, scenario)[best.accepted > HOUR + 1200].mean()


# Twins and baselines ----------------------------------------------------------------------------------------------


def test_a_harmful_change_is_charged_and_a_good_or_empty_one_is_not():
    best = replace(START, talker_max_num_seqs=8, codec_max_num_seqs=4)
    scenario = service(hours=0.5, initial=best)

    def hurt(*changes: Assignment) -> float:
        world = World(scenario)
        twins = Twins(world)
        for at, change in zip((300.0, 600.0), changes, strict=True):
            world.run(at)
            twins.apply(change)
        world.run(scenario.seconds)
        return twins.hurt()

    kept = Assignment(base=best)
    assert hurt(kept, kept) == 0.0
    assert hurt(replace(kept, label="a"), kept) == 0.0
    # A sixth of the requests are served by one row.
    assert hurt(Assignment(base=START), kept) == pytest.approx(1 / 6, abs=0.04)
    during = hurt(replace(kept, candidate=START, label="a"), kept)
    # A trial that is not renewed is charged for half a minute.
    assert during == pytest.approx(30 / 1800, abs=0.006)


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


# The model against the simulator ----------------------------------------------------------------------------------

WORKLOADS = {
    "two cores": service(),
    "a GPU": service(GPU, 0.5, rates={"CustomVoice": 10.0, "Base": 3.0}, ms=150, talker_resident=64, codec_resident=64),
    "two GPUs, bursts": service(GPU, 0.5, rates={"CustomVoice": 16.0}, ms=200, talkers=2, codecs=2, burst=3.0),
}
SETTINGS = [
    replace(START, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
    for talker, codec, ramp in (
        (1, 1, (2, 2, 3, 4, 5, 7, 9, 12)),
        (4, 4, (2, 2, 3, 4, 5, 7, 9, 12)),
        (16, 1, (4, 4, 8, 12)),
        (16, 16, (1, 2, 4, 8, 12)),
        (32, 32, (8, 8, 12, 16)),
    )
]


def asked(scenario: Scenario, setting: Setting) -> Question:
    """Returns the question that the tuner asks after half an hour of a setting, with what was observed of it."""
    rules = policy(scenario)
    world = World(replace(scenario, initial=setting))
    world.run(1800.0)
    evidence = world.evidence(clock(0.0), clock(1800.0))
    references = {"Base": 40.0} if "Base" in evidence.rates else {}
    served = good(world.outcomes(), scenario)
    return Question(
        load=Load(rates=evidence.rates, frames=scenario.audio_seconds / 0.08, burst=evidence.burst),
        plant=Plant(
            talkers=scenario.talkers,
            codecs=scenario.codecs,
            talker_resident=scenario.talker_resident,
            codec_resident=scenario.codec_resident,
            patience=scenario.max_queue_seconds,
            limits={name: each.seconds for name, each in scenario.objectives.items()},
            reference=references,
        ),
        measured=learned(Measured(), evidence),
        current=setting,
        rows=rules.rows,
        ramps=rules.ramps,
        observed_well=float(served.mean()),
    )


@pytest.mark.parametrize(
    "name", ["two cores", *(pytest.param(name, marks=pytest.mark.night) for name in [*WORKLOADS][1:])]
)
def test_the_model_agrees_with_the_simulator(name):
    """From the counters of one setting, it predicts the ratio of all to ten points on average, none off by forty."""
    scenario = WORKLOADS[name]
    question = asked(scenario, SETTINGS[1])
    model = Model(question.load, question.plant, question.measured, 2000)
    errors = [abs(model.score(each).well - well(replace(scenario, seconds=1800.0), each)) for each in SETTINGS]
    assert sum(errors) / len(errors) < 0.1, errors
    assert max(errors) < 0.4, errors


@pytest.mark.night
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_second_plan_is_nearly_the_best_of_the_grid(name):
    """The first one may have to guess the times of batches that never ran."""
    scenario = replace(WORKLOADS[name], seconds=900.0)
    best = well(scenario, best_fixed(scenario, policy(scenario)))
    first = plan(asked(scenario, SETTINGS[1])).best.setting
    assert well(scenario, first) > well(scenario, SETTINGS[1]) - 0.05
    found = plan(asked(scenario, first)).best
    assert well(scenario, found.setting) > best - 0.05


# What was measured ------------------------------------------------------------------------------------------------


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


def test_verdicts_on_changes_that_change_nothing():
    assert trials.errors(map(trials.no_op_trial, range(8))).promoted <= 1 / 8


def test_the_published_table_matches_the_measurements(tmp_path):
    write_table(RESULTS / "tuning.json", tmp_path / "tuning.md")
    assert (tmp_path / "tuning.md").read_text() == (RESULTS / "tuning.md").read_text()


def test_the_measured_tuner_is_better_than_the_baselines_and_rarely_wrong():
    report = msgspec.json.decode((RESULTS / "tuning.json").read_bytes(), type=Report)
    fresh = report.fresh
    assert report.aa.promoted <= 0.05 and report.aa.rolled_back <= 0.05
    assert report.skewed_promoted <= 0.05
    for name, other in report.baselines.items():
        assert fresh.integrated_regret_mean < other.integrated_regret_mean, name
        assert name == "untouched" or fresh.gross_hurt < other.gross_hurt, name
    assert all(TUNER in row.scores for row in fresh.rows)
