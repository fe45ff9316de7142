"""The load model: fitting of step times, and predictions for settings."""

from datetime import timedelta

import pytest

from support.tuner_world import IDENTITY, START, auto
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.tuner.estimate import Curve, fit_curve, fit_load_model, predict, utilization
from syrinx_operator.tuner.evidence import CallStats, Evidence, ReplicaStats, Route, RouteStats, StepStats

USUAL = Setting(talker_max_num_seqs=8, codec_max_num_seqs=8, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
SECONDS = 100.0


def evidence(rate, *, frames=50, step=(0.010, 0.001), call=(0.004, 0.001), rows=(1, 2, 4), ttfa=0.15):
    """Returns the evidence of 100 seconds."""
    requests = round(rate * SECONDS)
    steps = {size: StepStats(100, 100 * (step[0] + step[1] * size)) for size in rows}
    calls = tuple(
        CallStats(1, size, "eager", requests, requests * (call[0] + call[1] * size))
        for size in (2, 2, 3, 4, 5, 7, 9, 12, 6)
    )
    talker = ReplicaStats(
        name="talker-0", stage=Stage.TALKER, ready=True, restarts=0, settings={}, frames=frames * requests, steps=steps
    )
    codec = ReplicaStats(
        name="codec-0", stage=Stage.CODEC, ready=True, restarts=0, settings={}, steps=steps, calls=calls
    )
    served = RouteStats(
        requests=requests,
        within_objective=requests,
        underruns=0,
        ttfa_histogram={ttfa: requests, float("inf"): requests},
    )
    return Evidence(
        since=START,
        until=START + timedelta(seconds=SECONDS),
        identity=IDENTITY,
        routes={Route("talker-0", "codec-0", "CustomVoice"): served},
        replicas=(talker, codec),
    )


def of(rows=8, codec=8, ramp=(2, 2, 3, 4, 5, 7, 9, 12)):
    return Setting(talker_max_num_seqs=rows, codec_max_num_seqs=codec, chunk_ramp=ramp)


def test_fits_a_line_to_step_times():
    found = fit_curve([(1, 50, 50 * 0.011), (2, 10, 10 * 0.012), (8, 5, 5 * 0.018)])
    assert found.fixed == pytest.approx(0.010)
    assert found.per_unit == pytest.approx(0.001)


def test_one_step_size_gives_a_small_default_slope():
    found = fit_curve([(1, 50, 0.5)])
    assert found.at(1) == pytest.approx(0.010)
    assert found.at(1) < found.at(8) < 8 * found.at(1)


def test_a_larger_step_is_never_faster():
    assert fit_curve([(1, 50, 1.0), (8, 50, 0.5)]).per_unit == 0.0


def test_no_data_gives_no_model():
    assert fit_curve([]) is None
    assert fit_load_model(auto(), evidence(0.0), USUAL) is None


def test_the_model_has_demand_and_utilization():
    known = fit_load_model(auto(), evidence(4.0), USUAL)
    assert known.rates == {"CustomVoice": 4.0}
    assert known.frames == 50
    assert known.talker == Curve(pytest.approx(0.010), pytest.approx(0.001))
    assert utilization(known, USUAL, Stage.TALKER) == pytest.approx(4.0 * 50 * 0.018 / 8)
    # Seven calls for a request: 7 x 4 ms and 1 ms for each of its 50 frames.
    assert utilization(known, USUAL, Stage.CODEC) == pytest.approx(4.0 * (9 * 0.004 + 50 * 0.001))


def test_predicts_a_gain_from_more_rows_for_an_overloaded_talker():
    policy, known = auto(), fit_load_model(auto(), evidence(4.0), of(rows=2))
    assert utilization(known, of(rows=2), Stage.TALKER) > 1
    assert predict(policy, known, of(rows=2)) < 0.1 < predict(policy, known, of(rows=8))


def test_ranks_settings_by_capacity_under_overload():
    policy, known = auto(), fit_load_model(auto(), evidence(12.0, step=(0.010, 0.004)), of(rows=1))
    promised = [predict(policy, known, of(rows=rows)) for rows in (1, 2, 4, 8)]
    assert promised == sorted(promised)
    assert promised[0] < promised[-1] < 0.06


def test_a_first_chunk_longer_than_the_objective_scores_low():
    policy, known = auto(), fit_load_model(auto(), evidence(1.0), USUAL)
    assert predict(policy, known, of(ramp=(16, 16, 25))) < 0.2 < predict(policy, known, USUAL)


def test_fewer_rows_reduce_waiting_where_batching_saves_nothing():
    policy = auto()
    seen = evidence(4.0)
    large = (CallStats(8, 12, "eager", 200, 200 * 8 * 12 * 0.001), CallStats(1, 12, "eager", 200, 200 * 12 * 0.001))
    codec = ReplicaStats(name="codec-0", stage=Stage.CODEC, ready=True, restarts=0, settings={}, calls=large)
    known = fit_load_model(policy, Evidence(**{**_fields(seen), "replicas": (seen.replicas[0], codec)}), USUAL)
    assert predict(policy, known, of(codec=1)) > predict(policy, known, USUAL)


def _fields(seen):
    return {name: getattr(seen, name) for name in seen.__struct_fields__}
