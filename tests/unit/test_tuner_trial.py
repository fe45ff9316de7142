"""Arms, guardrails, trial design, and the wording of effects."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from syrinx_operator.resource.knobs import Identity, Knob, Setting, live_settings
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import ArmWork, Counts, PairedTest, Period, Stratum, Trial
from syrinx_operator.tuner.arms import (
    arm_counts,
    count_period,
    failure,
    recovered,
    recovery_threshold,
    suspected_harm,
    work_gain,
)
from syrinx_operator.tuner.evidence import Evidence, FailedRequests, ReplicaStats, Route, RouteStats, StepStats
from syrinx_operator.tuner.policy import Objective, policy_of
from syrinx_operator.tuner.stats import format_effect
from syrinx_operator.tuner.trial import MAX_PAIRS, confirmed, discard_period, extend, next_period, verdict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASELINE = Setting(talker_max_num_seqs=4, codec_max_num_seqs=2, chunk_ramp=(2, 4))
CANDIDATE = BASELINE.with_value(Knob.CODEC_ROWS, 8)
CODECS = ("codec-0", "codec-1", "codec-2")


def a_trial(design="Parallel", candidates=("codec-0",), baselines=("codec-1",), **fields):
    period = Period(
        index=fields.pop("index", 0),
        start_time=NOW,
        counting_since=NOW,
        candidate_replicas=candidates if design == "Parallel" else (),
        baseline_replicas=baselines if design == "Parallel" else (),
        all_replicas=design == "Switchback" and bool(candidates),
        replicas=CODECS,
        restarts=(0, 0, 0),
    )
    overall = Stratum(task_type="all")
    task_type = Stratum(task_type="CustomVoice", baseline_min_good=0.9, baseline_ttfa_p95=0.1)
    given = {
        "id": 1,
        "knob": Knob.CODEC_ROWS,
        "candidate": CANDIDATE,
        "baseline": BASELINE,
        "design": design,
        "rationale": "",
        "start_time": NOW,
        "period_seconds": 30.0,
        "period": period,
        "strata": (overall, task_type),
        **fields,
    }
    return Trial(**given)


def route(requests, good, slow=0):
    """Requests of which `good` took 0.1 s, and the others 0.5 s."""
    histogram = {0.1: good, 0.5: requests, float("inf"): requests}
    return RouteStats(requests=requests, within_objective=good, underruns=0, ttfa_histogram=histogram)


def evidence(routes, restarts=(0, 0, 0), errors=(0, 0, 0), frames=(100, 100, 100), **fields):
    replicas = tuple(
        ReplicaStats(
            name=name,
            stage=Stage.CODEC,
            ready=True,
            restarts=restarts[at],
            errors=errors[at],
            frames=frames[at],
            steps={1: StepStats(10, 2.0)},
        )
        for at, name in enumerate(CODECS)
    )
    return Evidence(
        since=NOW,
        until=NOW + timedelta(seconds=30),
        identity=Identity(model="m", image="i", device="d"),
        routes={Route("talker-0", codec, "CustomVoice"): stats for codec, stats in routes.items()},
        replicas=replicas,
        **fields,
    )


@pytest.fixture(scope="module")
def policy():
    from syrinx_operator.resource.spec import PipelineSpec

    return msgspec.structs.replace(policy_of(PipelineSpec()), objectives={"CustomVoice": Objective(0.2, 0.95)})


def test_parallel_arms_count_only_their_groups():
    seen = evidence({"codec-0": route(10, 9), "codec-1": route(20, 10), "codec-2": route(40, 40)})
    trial = a_trial()
    assert arm_counts(trial, seen, candidate=True) == {"CustomVoice": Counts(requests=10, good=9)}
    assert arm_counts(trial, seen, candidate=False) == {"CustomVoice": Counts(requests=20, good=10)}


def test_a_switchback_counts_failed_requests():
    failed = {"CustomVoice": FailedRequests(refused=2, errors=1)}
    seen = evidence({"codec-0": route(10, 10)}, failed=failed)
    trial = a_trial("Switchback")
    assert arm_counts(trial, seen, candidate=True)["CustomVoice"] == Counts(requests=13, good=10, errors=1)
    assert arm_counts(trial, seen, candidate=False) == {}


def test_a_pair_adds_one_difference_capped_by_the_number_of_good_requests():
    trial = a_trial()
    seen = evidence({"codec-0": route(10, 10), "codec-1": route(40, 36)})
    first = count_period(trial, seen, next_period(trial, seen.replicas, 1, NOW))
    assert first.strata[0].test.pairs == 0 and first.first_period
    swapped = msgspec.structs.replace(
        first, period=msgspec.structs.replace(trial.period, index=1, candidate_replicas=("codec-0",))
    )
    pair = count_period(swapped, seen, next_period(trial, seen.replicas, 2, NOW))
    assert pair.strata[0].test.pairs == 1
    assert pair.strata[0].test.mean == 0.0, "a better ratio with fewer good requests is no gain"
    assert pair.strata[0].candidate.requests == 20 and pair.work.candidate_frames == 200


@pytest.mark.parametrize(
    ("design", "work"), [("Parallel", (100, 30.0, 70, 30.0)), ("Switchback", (9170, 90.0, 0, 0.0))]
)
def test_work_counts_only_the_replicas_that_are_compared(design, work):
    """In the parallel trial codec-2 is in neither group."""
    seen = evidence({}, frames=(100, 70, 9000))
    found = count_period(a_trial(design), seen, Period(index=1, start_time=NOW)).first_period_work
    candidate = found.candidate_frames, found.candidate_replica_seconds
    assert (*candidate, found.baseline_frames, found.baseline_replica_seconds) == work


def test_rates_are_compared_relative_to_the_larger_arm():
    work = ArmWork(
        candidate_frames=280,
        candidate_busy_seconds=14.0,
        candidate_replica_seconds=10.0,
        baseline_frames=100,
        baseline_busy_seconds=10.0,
        baseline_replica_seconds=10.0,
    )
    assert work_gain("Throughput", work) == pytest.approx(1 - 1 / 2.8)
    assert work_gain("EngineTime", work) == pytest.approx(0.5)
    assert work_gain("Throughput", ArmWork()) is work_gain("EngineTime", ArmWork()) is None


@pytest.mark.parametrize(
    ("goal", "mean", "text"),
    [
        ("GoodRequests", 0.646, "+64.6 points"),
        ("Throughput", 0.646, "2.82 times the baseline"),
        ("Throughput", -0.5, "0.50 times the baseline"),
        ("EngineTime", 0.5, "0.50 times the baseline"),
        ("EngineTime", -0.5, "2.00 times the baseline"),
        ("Throughput", 1.0, "inf times the baseline"),
    ],
)
def test_effects_are_points_or_ratios(goal, mean, text):
    shown = format_effect(PairedTest(pairs=40, mean=mean, mean_square=mean**2), goal)
    assert shown.startswith(f"{text} (95 %: ")


def test_bounds_of_a_ratio_are_ordered():
    shown = format_effect(PairedTest(pairs=8, mean=0.2, mean_square=0.05), "EngineTime")
    low, high = (float(each) for each in shown.split("95 %: ")[1].rstrip(")").split(" to "))
    assert low < 0.8 < high


def test_a_restart_or_errors_under_the_candidate_roll_back():
    assert failure(a_trial(), evidence({}, restarts=(1, 0, 0))) == "codec-0 restarted under the candidate"
    assert failure(a_trial(), evidence({}, restarts=(0, 1, 0))) == ""
    assert failure(a_trial(), evidence({}, errors=(3, 1, 0))) == "3 requests failed under the candidate"
    assert failure(a_trial(), evidence({}, errors=(3, 2, 0))) == ""
    assert failure(a_trial(), evidence({}, errors=(3, 0, 0), problem="stale")) == ""


def test_errors_of_a_replica_in_neither_group_are_not_counted():
    assert failure(a_trial(), evidence({}, errors=(3, 1, 9))) == "3 requests failed under the candidate"
    assert failure(a_trial("Switchback"), evidence({}, errors=(1, 1, 1))) == "3 requests failed under the candidate"


def test_a_collapse_is_suspected_unless_both_arms_collapse(policy):
    collapsed = evidence({"codec-0": route(100, 20), "codec-1": route(100, 95)})
    assert "20% good requests, at least 90% under the baseline" in suspected_harm(policy, a_trial(), collapsed)
    both = evidence({"codec-0": route(100, 20), "codec-1": route(100, 25)})
    assert suspected_harm(policy, a_trial(), both) == ""
    few = evidence({"codec-0": route(19, 0), "codec-1": route(100, 95)})
    assert suspected_harm(policy, a_trial(), few) == ""


def test_a_slow_p95_is_suspected(policy):
    slow = evidence({"codec-0": route(100, 70), "codec-1": route(100, 95)})
    assert "TTFA p95 " in suspected_harm(policy, a_trial(), slow)


def test_recovery_is_half_a_collapse_below_the_worst_baseline():
    trial = a_trial("Switchback", candidates=())
    threshold = recovery_threshold(trial)
    assert threshold == pytest.approx(0.775)
    suspected = msgspec.structs.replace(trial, recovery_threshold=threshold)
    assert recovered(suspected, evidence({"codec-0": route(100, 80)}))
    assert not recovered(suspected, evidence({"codec-0": route(100, 70)}))
    assert not recovered(trial, evidence({"codec-0": route(100, 100)}))


def test_arms_swap_within_a_pair_and_are_drawn_again_for_the_next():
    trial, replicas = a_trial(), evidence({}).replicas
    first, second = (next_period(trial, replicas, index, NOW) for index in (0, 1))
    assert (first.candidate_replicas, first.baseline_replicas) == (second.baseline_replicas, second.candidate_replicas)
    discarded = discard_period(a_trial(index=1), replicas, NOW)
    assert (discarded.period.index, discarded.discarded_periods, discarded.first_period) == (2, 1, ())


def test_replicas_confirm_the_setting_of_their_arm():
    def running(settings):
        return ReplicaStats(
            name="codec-0", stage=Stage.CODEC, ready=True, restarts=0, settings=live_settings(settings, Stage.CODEC)
        )

    assert confirmed(a_trial(), [running(CANDIDATE)])
    assert not confirmed(a_trial(), [running(BASELINE)])
    assert not confirmed(a_trial(), [msgspec.structs.replace(running(CANDIDATE), settings=None)])


def test_a_trial_without_a_verdict_ends_or_is_extended():
    counts = Counts(requests=200, good=100)
    test = PairedTest(pairs=MAX_PAIRS, mean=0.02, mean_square=0.01)
    overall = Stratum(task_type="all", candidate=counts, baseline=counts, test=test)
    trial = a_trial(strata=(overall,))
    outcome = verdict(trial)
    assert outcome is not None and outcome.verdict == "Inconclusive"
    assert outcome.reason.startswith(f"no verdict after {MAX_PAIRS} pairs: +2.0 points")
    assert extend(trial) is None, "there is no evidence for a gain"
    promising = msgspec.structs.replace(test, better=msgspec.structs.replace(test.better, log_wealth=1.0))
    longer = extend(a_trial(strata=(msgspec.structs.replace(overall, test=promising),)))
    assert longer is not None and (longer.extensions, longer.period_seconds) == (1, 90.0)
