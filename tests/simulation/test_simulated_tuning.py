"""The tuner in the simulator: hours of a pipeline with queues, batches and failures; and what was measured of it."""

import msgspec

from simulator import tuning
from simulator.auto import harm, policy, tune
from simulator.cases import RESULTS
from simulator.scenario import Failure
from simulator.tuning import Report, workloads, write_table
from simulator.world import fixed
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.tuner.decide import assignment

HOUR = 3600.0
SCENARIOS = {scenario.name: scenario for scenario in workloads()}


def lasting(name, hours, **fields):
    return msgspec.structs.replace(SCENARIOS[name], seconds=hours * HOUR, **fields)


def test_a_bad_start_improves_within_hours():
    scenario = lasting("two cores, presets", 4)
    day = tune(scenario, policy(scenario))
    judged = lasting("two cores, presets", 0.5)
    asked = sum(scenario.load[0][1].values())
    assert fixed(judged, scenario.initial) < 0.5 * asked
    assert fixed(judged, day.chosen) > 0.9 * asked
    assert harm(day) < 0.005


def test_a_crash_during_a_trial_ends_it():
    deaths = tuple(
        Failure(stage=stage, replica=0, at=200.0 + 400 * n, down=20.0) for n in range(8) for stage in (Stage.TALKER,)
    )
    scenario = lasting("two cores, presets", 2, failures=deaths)
    day = tune(scenario, policy(scenario))
    assert day.state.trial_count >= 1
    now = assignment(policy(scenario), day.state)
    assert day.state.trial is not None or not now.has_overrides


def test_ineffective_candidates_are_not_promoted():
    assert [tuning.aa_run(seed)[1] for seed in range(4)] == [False] * 4


def test_the_published_table_matches_the_measurements(tmp_path):
    write_table(RESULTS / "tuning.json", tmp_path / "tuning.md")
    assert (tmp_path / "tuning.md").read_text() == (RESULTS / "tuning.md").read_text()


def test_the_measured_tuner_meets_its_targets():
    report = msgspec.json.decode((RESULTS / "tuning.json").read_bytes(), type=Report)
    assert len(report.workloads) >= 12
    assert {result.name for result in report.workloads} == set(SCENARIOS)
    for result in report.workloads:
        assert result.regret <= 0.05, result.name
        assert result.trials_to_choice <= 12, result.name
        assert result.harm <= 0.005, result.name
    assert report.aa.runs >= 1000
    assert report.aa.false_promotions / report.aa.runs <= 0.05
