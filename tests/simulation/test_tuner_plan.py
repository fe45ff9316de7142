"""Choosing a setting by the model. `test_simulated_tuning.py` checks the choice against brute force."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from support.tuner_world import machine, plant
from syrinx_operator.resource.knobs import RAMP_LADDER, Knob, Setting
from syrinx_operator.resource.state.tuning_status import Tried
from syrinx_operator.tuner.model.plan import ROUNDS, Question, calibrated, plan
from syrinx_operator.tuner.model.whatif import Load, Model

ROWS, RAMPS = (1, 4, 16), RAMP_LADDER[:3]
REQUESTS, _ = ROUNDS[-1]
"""Those of the last round, and of the calibration."""
START = Setting(talker_max_num_seqs=1, codec_max_num_seqs=16, chunk_ramp=RAMPS[2])
MEASURED = machine()
PLANT = plant()


def compared(setting: Setting, difference: float, error: float = 0.0) -> Tried:
    """Returns what a comparison of a setting with the start has shown."""
    return Tried(setting=setting, baseline=START, difference=difference, error=error, rate=8.0, until=datetime.now(UTC))


def question(**fields) -> Question:
    """Returns a question about a busy machine with one talker row, under which nearly all requests are bad."""
    given = {
        "load": Load(rates={"CustomVoice": 8.0}, frames=20.0),
        "plant": PLANT,
        "measured": MEASURED,
        "current": START,
        "rows": {Knob.TALKER_ROWS: ROWS, Knob.CODEC_ROWS: ROWS},
        "ramps": RAMPS,
        **fields,
    }
    return Question(**given)


def served(asked: Question, setting: Setting, count: int = 600) -> float:
    """Returns the ratio of requests served well according to a model with other requests than the plan's."""
    return Model(asked.load, asked.plant, asked.measured, count, seed=99).score(setting).well


@pytest.fixture(scope="module")
def answer():
    return plan(question())


def test_finds_a_setting_that_serves_nearly_as_many_as_any(answer):
    asked = question()
    grid = [
        replace(START, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
        for talker in ROWS
        for codec in ROWS
        for ramp in asked.ramps
    ]
    best = max(served(asked, each, 200) for each in grid)
    assert served(asked, START) < 0.3
    assert served(asked, answer.best.setting) > best - 0.03
    assert answer.best.well > answer.current.well + 0.5


def test_avoided_settings_are_not_proposed(answer):
    other = plan(question(avoided=(answer.best.setting,)))
    assert other.best.setting != answer.best.setting
    assert other.best.well > answer.best.well - 0.1


def test_rows_that_the_first_round_leaves_out_are_found():
    rows = (4, 8, 16)
    coarse = [
        replace(START, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
        for talker in (4, 16)
        for codec in rows
        for ramp in RAMPS
    ]
    best = plan(question(rows={Knob.TALKER_ROWS: rows, Knob.CODEC_ROWS: rows}, avoided=tuple(coarse))).best
    assert best.setting.talker_max_num_seqs == 8
    assert best.well > 0.9


def test_the_current_setting_stays_if_it_is_as_good(answer):
    again = plan(question(current=answer.best.setting))
    assert again.best.setting == again.current.setting == answer.best.setting


def test_bounds_are_kept():
    found = plan(question(rows={Knob.TALKER_ROWS: (1, 2), Knob.CODEC_ROWS: (4,)}, ramps=RAMPS[2:3])).best.setting
    assert found.talker_max_num_seqs in (1, 2)
    assert found.codec_max_num_seqs in (4, START.codec_max_num_seqs)
    assert found.chunk_ramp == RAMPS[2]


def test_a_comparison_shifts_the_choice_and_its_neighbors(answer):
    """The best setting was tried and was no better than the start: the model was wrong about it."""
    failed = compared(answer.best.setting, 0.0)
    other = plan(question(compared=(failed,)))
    assert other.doubt > answer.doubt + 0.2
    assert other.best.score < answer.best.score
    assert len(other.best.setting.differing_knobs(answer.best.setting)) > 1


def test_a_comparison_counts_as_much_as_it_is_exact(answer):
    exact, vague = (plan(question(compared=(compared(answer.best.setting, 0.0, error),))) for error in (0.0, 0.15))
    assert exact.doubt - answer.doubt > 5 * (vague.doubt - answer.doubt) > 0
    assert exact.best.score < vague.best.score < answer.best.score


def test_a_comparison_that_came_true_changes_nothing(answer):
    gain = Model(question().load, PLANT, MEASURED, REQUESTS).score(answer.best.setting).well
    gain -= Model(question().load, PLANT, MEASURED, REQUESTS).score(START).well
    other = plan(question(compared=(compared(answer.best.setting, gain),)))
    assert other.best.score == pytest.approx(answer.best.score, abs=0.003)
    assert other.doubt < answer.doubt


def test_where_something_must_be_tried_the_model_may_err_in_favor_of_what_is_unknown(answer):
    """No setting is predicted to be better, so the one that may be is: not one that is predicted to be far worse."""
    asked = question(current=answer.best.setting, observed_well=answer.best.well)
    bold = plan(replace(asked, is_bold=True))
    assert plan(asked).best.setting == answer.best.setting
    assert bold.best.setting != answer.best.setting
    assert bold.current.well - bold.doubt < bold.best.well <= bold.best.score
    assert bold.best.score - bold.best.well <= bold.doubt + 0.02


# Calibration ------------------------------------------------------------------------------------------------------


def test_a_model_that_agrees_is_not_calibrated():
    asked = question(current=replace(START, talker_max_num_seqs=8, codec_max_num_seqs=8))
    known = Model(asked.load, PLANT, MEASURED, REQUESTS).score(asked.current)
    asked = replace(asked, observed_well=known.well, observed_quick=known.quick)
    found = calibrated(asked)
    assert found.slowdown == 1.0
    assert found.offsets == {"CustomVoice": pytest.approx(0.0)}


@pytest.mark.parametrize("slowdown", [0.7, 1.5, 2.0])
def test_a_slower_machine_than_measured_is_found_out(slowdown):
    asked = question(current=replace(START, talker_max_num_seqs=8, codec_max_num_seqs=8))
    for rate in (4.0, 8.0):
        asked = replace(asked, load=Load(rates={"CustomVoice": 1.5 * rate}, frames=20.0))
        true = Model(asked.load, replace(PLANT, slowdown=slowdown), MEASURED, REQUESTS).score(asked.current).well
        plain = Model(asked.load, PLANT, MEASURED, REQUESTS).score(asked.current).well
        found = calibrated(replace(asked, observed_well=true))
        agrees = Model(asked.load, found, MEASURED, REQUESTS).score(asked.current).well
        assert agrees == pytest.approx(true, abs=0.11), "where most are bad, a tenth is near enough"
        if abs(true - plain) > 0.2:
            assert found.slowdown == pytest.approx(slowdown, rel=0.25)


def test_ttfa_that_the_model_does_not_explain_is_an_offset_of_its_task_type():
    asked = question(
        current=replace(START, talker_max_num_seqs=8, codec_max_num_seqs=8),
        load=Load(rates={"CustomVoice": 1.0, "Base": 1.0}, frames=20.0),
    )
    known = Model(asked.load, PLANT, MEASURED, REQUESTS).score(asked.current)
    quick = {"CustomVoice": known.quick["CustomVoice"], "Base": known.quick["Base"] + 0.1}
    found = calibrated(replace(asked, observed_well=known.well, observed_quick=quick))
    assert found.offsets == {"CustomVoice": pytest.approx(0.0), "Base": pytest.approx(0.1 * known.well, rel=0.01)}
    quick["Base"] = 60.0
    found = calibrated(replace(asked, observed_well=known.well, observed_quick=quick))
    assert found.offsets["Base"] == PLANT.limits["Base"] / 2


@pytest.mark.parametrize("rate", [20.0, 25.0])
def test_where_none_is_served_well_the_setting_that_carries_more_load_is_better(rate):
    asked = question(load=Load(rates={"CustomVoice": rate}, frames=20.0), observed_well=0.0)
    found = plan(asked)
    less = replace(asked, load=Load(rates={"CustomVoice": 0.5 * rate}, frames=20.0))
    assert found.best.score > found.current.score + 0.015
    assert served(less, found.best.setting) > served(less, START) + 0.05
