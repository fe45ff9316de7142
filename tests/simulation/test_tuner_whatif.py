"""The model of the pipeline obeys the laws of any queue. `test_simulated_tuning` compares it with the services."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from support.tuner_world import machine, plant
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_operator.resource.state.tuning_status import PreparePoint
from syrinx_operator.tuner.model.whatif import Load, Model, draw

LOAD = Load(rates={"CustomVoice": 3.0, "Base": 1.0}, frames=50.0)
PLANT = plant(patience=5.0, limits={"CustomVoice": 0.3, "Base": 0.5}, reference={"Base": 40.0})
SETTING = Setting(talker_max_num_seqs=16, codec_max_num_seqs=8, chunk_ramp=RAMP_LADDER[1])
REQUESTS = 300
NOISE = 0.02
"""Ratio of requests: a queue is chaotic near its capacity."""


def outcome(setting=SETTING, *, load=LOAD, plant=PLANT, measured=None, seed=0):
    return Model(load, plant, measured or machine(), REQUESTS, seed).score(setting)


def rate(load, factor):
    return replace(load, rates={name: factor * each for name, each in load.rates.items()})


# The drawn load ---------------------------------------------------------------------------------------------------


def test_draws_the_load():
    requests = draw(Load(rates={"CustomVoice": 6.0, "Base": 2.0}, frames=50.0), 20_000, seed=1)
    assert requests == sorted(requests)
    assert len(requests) / requests[-1].accepted == pytest.approx(8.0, rel=0.03)
    assert sum(each.task_type == "Base" for each in requests) / len(requests) == pytest.approx(0.25, abs=0.01)
    assert sum(each.frames for each in requests) / len(requests) == pytest.approx(50.0, rel=0.02)


def test_bursts_have_the_mean_size_and_keep_the_rate():
    requests = draw(replace(LOAD, burst=3.0), 20_000, seed=1)
    arrivals = len({each.accepted for each in requests})
    assert len(requests) / arrivals == pytest.approx(3.0, rel=0.03)
    assert len(requests) / requests[-1].accepted == pytest.approx(4.0, rel=0.05)


# Laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_quicker_engines_never_serve_fewer(factor, seed):
    setting = replace(SETTING, chunk_ramp=RAMP_LADDER[seed])
    served = [
        outcome(setting, load=rate(LOAD, factor), plant=replace(PLANT, slowdown=slowdown), seed=seed).well
        for slowdown in (0.5, 0.7, 1.0, 1.4, 2.0)
    ]
    assert all(slower <= quicker + NOISE for quicker, slower in pairwise(served)), served


@pytest.mark.parametrize("seed", range(3))
def test_more_replicas_never_serve_fewer(seed):
    served = [
        outcome(load=rate(LOAD, 4.0), plant=replace(PLANT, talkers=count, codecs=count), seed=seed).well
        for count in (1, 2, 4, 8)
    ]
    assert all(few <= many + NOISE for few, many in pairwise(served)), served
    assert served[0] < 0.9 < served[-1]


def test_less_load_is_never_served_worse():
    served = [outcome(load=rate(LOAD, factor)).well for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(more <= less + NOISE for less, more in pairwise(served)), served
    assert served[0] > 0.99 and served[-1] < 0.5


def test_a_limit_that_is_never_reached_changes_nothing():
    wide = [
        outcome(replace(SETTING, talker_max_num_seqs=32, codec_max_num_seqs=codec), load=rate(LOAD, 0.5))
        for codec in (32, 64)
    ]
    assert wide[0] == wide[1]
    model = Model(rate(LOAD, 0.5), PLANT, machine(), REQUESTS)
    kept = [model.score(replace(SETTING, talker_max_num_seqs=rows)) for rows in (64, 32)]
    alone = outcome(replace(SETTING, talker_max_num_seqs=32), load=rate(LOAD, 0.5))
    assert kept == [alone, alone]


def test_what_a_model_remembers_does_not_depend_on_the_order():
    """Results by limit are shared; each must be what a new model says."""
    model = Model(rate(LOAD, 2.0), PLANT, machine(), 200)
    for talker in (32, 1, 8):
        for codec in (8, 32, 1):
            setting = replace(SETTING, talker_max_num_seqs=talker, codec_max_num_seqs=codec)
            assert model.score(setting) == Model(rate(LOAD, 2.0), PLANT, machine(), 200).score(setting)


def test_small_first_chunks_are_heard_sooner_and_cost_engine_time():
    quick = [outcome(replace(SETTING, chunk_ramp=ramp)).quick["CustomVoice"] for ramp in RAMP_LADDER]
    assert quick == sorted(quick)
    costs = [
        outcome(replace(SETTING, chunk_ramp=ramp), load=rate(LOAD, 0.1)).busy
        for ramp in (RAMP_LADDER[0], RAMP_LADDER[4])
    ]
    assert costs[0] > costs[1]


def test_an_idle_pipeline_takes_prefill_steps_and_a_call():
    found = outcome(load=replace(LOAD, rates={"CustomVoice": 0.01}))
    # Two frames, decoded at once.
    assert found.quick["CustomVoice"] == pytest.approx(0.02 + 2 * 0.013 + 0.0068, rel=0.1)


def test_references_delay_first_audio_by_what_is_left_of_their_calls():
    """A codec decodes the reference once the first frame is there, and the talker makes the second one meanwhile: seven
    calls of up to twelve frames."""
    load = replace(LOAD, rates={"CustomVoice": 0.01, "Base": 0.01})
    quick = outcome(load=load, plant=replace(PLANT, reference={"Base": 80.0})).quick
    calls = 6 * 0.0108 + 0.0092
    assert quick["Base"] - quick["CustomVoice"] == pytest.approx(calls - 0.013, rel=0.05)
    hidden = outcome(load=load, plant=replace(PLANT, reference={"Base": 12.0})).quick
    assert hidden["Base"] == pytest.approx(hidden["CustomVoice"], rel=0.03)


def test_references_are_prepared_one_after_the_other_beside_the_steps():
    load = Load(rates={"CustomVoice": 2.0, "Base": 2.0}, frames=20.0)
    machines = [
        replace(machine(), prepares=(PreparePoint("Base", 10, 10 * seconds), PreparePoint("CustomVoice", 10, 0.0)))
        for seconds in (0.0, 0.1, 0.4)
    ]
    at_once, short, long = (outcome(load=load, measured=each) for each in machines)
    assert short.quick["Base"] - at_once.quick["Base"] == pytest.approx(0.1, rel=0.2)
    assert at_once.well - short.well < 0.1
    assert short.well - long.well > 0.3, "they are prepared for four fifths of the time, and wait for each other"


def test_long_requests_on_a_slow_machine_are_not_refused_while_it_is_idle():
    """It finishes one in a minute. That is no wait for a request that comes when it has nothing to do."""
    load = Load(rates={"CustomVoice": 0.01}, frames=500.0)
    setting = replace(SETTING, talker_max_num_seqs=1)
    slow = machine(step=0.06, row=0.0)
    assert outcome(setting, load=load, plant=replace(PLANT, patience=2.0), measured=slow).well > 0.5


def test_in_an_overload_streams_that_were_claimed_are_not_interrupted():
    """As many rows as may be resident are slower than playback, so a talker must claim fewer."""
    impatient = replace(PLANT, patience=0.5, limits={}, reference={})
    setting = replace(SETTING, talker_max_num_seqs=32)
    served = [
        factor * outcome(setting, load=rate(LOAD, factor), plant=impatient, measured=machine(row=0.005)).well
        for factor in (1.0, 3.0)
    ]
    assert served[0] > 0.5
    assert served[1] > 0.9 * served[0]
