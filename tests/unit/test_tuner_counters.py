"""Evidence of time windows from snapshots of counters."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from support.resolved import resolved
from support.stage_metrics import Gateway
from support.stage_metrics import Worker as Pod
from syrinx_operator.observed import counters as records
from syrinx_operator.observed.counters import CounterHistory, Observation
from syrinx_operator.observed.evidence import CallStats, CaptureCost, Outcomes, ReplicaStats, StepStats, quantile
from syrinx_operator.observed.snapshot import parse_metrics
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaObjective
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.tuner.policy import policy_of
from syrinx_stages.contract import metrics as contract
from syrinx_stages.contract.stages import Stage
from syrinx_stages.gateway.speech.outcomes import StreamOutcome

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "CustomVoice"
IDENTITY = Identity(model="m", image="i", device="d")
POLICY = policy_of(resolved(slo=SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300),))))


def at(seconds):
    return START + timedelta(seconds=seconds)


class Past:
    """A counter history and the pods whose metrics it reads."""

    def __init__(self, *pods):
        self.pods = pods
        self.record = CounterHistory()

    def read(self, seconds, *pods):
        """Adds snapshots of all pods, or of some."""
        for pod in pods or self.pods:
            replica = pod.replica
            self.record.add(parse_metrics(replica.name, replica.component.value, at(seconds), pod.text))

    def observe(self, seconds, *pods):
        """Adds what is read of all pods, or of some, at once."""
        read = (
            parse_metrics(p.replica.name, p.replica.component.value, at(seconds), p.text) for p in pods or self.pods
        )
        self.record.observe(Observation(identity=IDENTITY, snapshots=tuple(read)))

    def evidence(self, since, until, **seen):
        self.record.observe(Observation(identity=IDENTITY, **seen))
        return self.record.evidence(POLICY.objectives, POLICY.interval, at(since), at(until))

    def counted(self, since, until, **seen):
        return sum(served.requests for served in self.evidence(since, until, **seen).streams.values())


def worker(pod):
    stage = Stage(pod.replica.component.value)
    return ReplicaStats(name=pod.replica.name, stage=stage, ready=True, restarts=0)


# Listeners ---------------------------------------------------------------------------------------------------


def test_stream_stats_are_grouped_by_task_type():
    gateway = Gateway()
    past = Past(gateway)
    gateway.live(3)
    past.read(0)
    gateway.serve(0.06, 0.3, underruns=1)
    gateway.serve(0.31)
    gateway.serve(20.0, task_type="Base")
    past.read(30)
    found = past.evidence(0, 30)
    served = found.streams
    assert found.live_streams == 3 + 4, "those at the start, and those accepted since"
    assert {*served} == {TASK, "Base"}
    mine = served[TASK]
    assert (mine.requests, mine.within_objective, mine.underruns) == (3, 2, 1)
    assert {*mine.ttfa_histogram} == {*contract.TTFA_BUCKETS, math.inf}
    assert [mine.ttfa_histogram[edge] for edge in (0.05, 0.075, 0.2, 0.3, 0.5, math.inf)] == [0, 1, 1, 2, 3, 3]


def test_completed_requests_and_those_that_a_canary_lost_are_counted():
    gateway = Gateway()
    past = Past(gateway)
    past.read(0)
    for outcome, count in (("stop", 3), ("length", 1), ("cancelled", 5), ("error", 7)):
        gateway.metrics[contract.REQUESTS].labels("CustomVoice", outcome).inc(count)
    for outcome, count in (("answered", 9), ("fallback", 2), ("failed", 1)):
        gateway.metrics[contract.CANARY_FORWARDS].labels(outcome).inc(count)
    past.read(30)
    found = past.evidence(0, 30)
    assert (found.completed, found.lost_forwards) == (4, 3)


def test_stream_outcomes_are_grouped_by_task_type_and_arm():
    first, second = Gateway("a"), Gateway("b")
    past = Past(first, second)
    first.settle(accepted=9, well=9)
    past.read(0)
    first.settle(accepted=4, well=1, late=1, interrupted=1)
    second.settle(accepted=3, refused=2, failed=1)
    second.settle(arm="t1", accepted=2, incomplete=1, void=1)
    second.settle(task_type="Base", well=1, unheard_of=1)
    past.read(30)
    assert past.evidence(0, 30).outcomes == {
        ("CustomVoice", ""): Outcomes(accepted=7, well=1, late=1, interrupted=1, failed=1, refused=2),
        ("CustomVoice", "t1"): Outcomes(accepted=2, incomplete=1, void=1),
        ("Base", ""): Outcomes(well=1),
    }


def test_bursts_show_in_the_requests_of_all_gateways_together():
    one, two = Gateway(), Gateway("demo-gateway-5f-1")
    past = Past(one, two)
    for step in range(41):
        past.observe(10 * step)
        for gateway in (one, two):
            gateway.settle(accepted=10 * (step % 2 == 0))
    assert past.evidence(100, 400).burst == pytest.approx(5.6, abs=0.2), "(variance / mean + 1) / 2"


def test_a_change_of_the_load_is_known_once_all_gateways_were_read():
    one, two = Gateway(), Gateway("demo-gateway-5f-1")
    past = Past(one, two)
    for step in range(40):
        past.observe(10 * step)
        one.settle(accepted=7 + step * 7 % 11)
        two.settle(accepted=7 + step * 5 % 13)
        assert past.evidence(0, 10 * step).change is None
    two.settle(accepted=300)
    past.observe(400, two)
    assert past.evidence(0, 400).change is None
    past.observe(401, one)
    change = past.evidence(0, 401).change
    assert change is not None
    assert change.at == at(390)


def test_the_outcomes_are_those_that_gateways_count():
    assert {"accepted", *StreamOutcome} == {*Outcomes.__struct_fields__}


@pytest.mark.parametrize(
    ("buckets", "p95"),
    [
        ({}, None),
        ({0.1: 0, math.inf: 0}, None),
        ({0.1: 100, math.inf: 100}, 0.095),
        ({0.1: 90, 0.2: 100, math.inf: 100}, 0.15),
        ({0.1: 0, 0.2: 0, 0.5: 10, math.inf: 10}, 0.485),
        ({0.1: 5, 0.2: 5, math.inf: 100}, 0.2),
    ],
)
def test_a_quantile_is_interpolated_and_capped(buckets, p95):
    assert quantile(buckets, 0.95) == (None if p95 is None else pytest.approx(p95))


# Talkers and codecs ------------------------------------------------------------------------------------------


def test_talker_steps_are_grouped_by_rows():
    gateway, talker = Gateway(), Pod("demo-talker-0", "talker")
    past = Past(gateway, talker)
    talker.steps(4, 9.0)
    past.read(0)
    talker.steps(3, 0.02, 0.04)
    talker.steps(300, 0.5)
    talker.prefills(0.5)
    talker.prepares("Base", 0.25)
    past.read(30)
    (found,) = past.evidence(0, 30, replicas=(worker(talker),)).replicas
    assert (found.frames, found.prefills, found.prepares) == (306, StepStats(1, 0.5), {"Base": StepStats(1, 0.25)})
    assert found.steps == {4: StepStats(2, pytest.approx(0.06)), 1024: StepStats(1, pytest.approx(0.5))}


def test_codec_calls_are_grouped_by_requested_shape():
    gateway, codec = Gateway(), Pod("demo-codec-0", "codec")
    past = Past(gateway, codec)
    past.read(0)
    codec.calls(2, 8, "hit", 0.01, 0.02)
    codec.calls(2, 8, "eager", 0.05)
    past.read(30)
    (found,) = past.evidence(0, 30, replicas=(worker(codec),)).replicas
    assert found.calls == (CallStats(2, 8, "eager", 1, 0.05), CallStats(2, 8, "hit", 2, pytest.approx(0.03)))


def test_capture_costs_are_the_last_exported_ones():
    gateway, codec = Gateway(), Pod("demo-codec-0", "codec")
    past = Past(gateway, codec)
    codec.captured(2, 8, 1.5, 4096)
    past.read(0)
    (found,) = past.evidence(0, 30, replicas=(worker(codec),)).replicas
    assert found.captures == (CaptureCost(2, 8, 1.5, 4096),)
    codec.captured(2, 8, 0.5, 4096)
    codec.captured(1, 1, 0.25, 1024)
    past.read(30)
    (found,) = past.evidence(0, 30, replicas=(worker(codec),)).replicas
    assert found.captures == (CaptureCost(1, 1, 0.25, 1024), CaptureCost(2, 8, 0.5, 4096))


# Windows -----------------------------------------------------------------------------------------------------


def test_a_window_spans_its_first_to_its_last_snapshot():
    gateway = Gateway()
    past = Past(gateway)
    for seconds in (0, 30, 60, 90):
        past.read(seconds)
        gateway.serve(0.1)
    past.read(90)
    past.read(75)
    windows = ((0, 90), (0, 30), (1, 90), (30, 90), (30, 60), (30, 89), (61, 90))
    assert [past.counted(*window) for window in windows] == [3, 1, 2, 2, 1, 1, 0], (
        "a snapshot that is not newer is none"
    )
    found = past.evidence(1, 89)
    assert (found.since, found.until, found.seconds) == (at(30), at(60), 30)


def test_the_evidence_ends_with_the_oldest_gateway_snapshot():
    quick, slow = Gateway("a"), Gateway("b")
    past = Past(quick, slow)
    past.read(0)
    past.read(30)
    quick.serve(0.1)
    past.read(60, quick)
    assert past.evidence(0, 60).until == at(30)
    assert past.counted(0, 60) == 0
    past.read(121, quick)
    assert past.evidence(0, 121).until == at(121)
    assert past.counted(0, 121) == 1


def test_a_restarted_replica_counts_from_zero():
    gateway, talker = Gateway(), Pod("demo-talker-0", "talker")
    past = Past(gateway, talker)
    gateway.serve(*[0.1] * 10, underruns=3)
    talker.steps(8, 0.1, 0.1)
    past.read(0)
    gateway.serve(0.1)
    past.read(30)
    for pod in past.pods:
        pod.restart()
    gateway.serve(0.1, 0.1, underruns=1)
    talker.steps(8, 0.1)
    past.read(60)
    found = past.evidence(0, 60, replicas=(worker(talker),))
    assert (found.streams[TASK].requests, found.streams[TASK].underruns) == (3, 1)
    assert (found.replicas[0].frames, found.replicas[0].steps[8].count) == (8, 1)


# No data -----------------------------------------------------------------------------------------------------


def test_without_a_gateway_only_replicas_are_known():
    talker = Pod("demo-talker-0", "talker")
    past = Past(talker)
    past.read(0)
    past.read(30)
    found = past.evidence(0, 30, replicas=(worker(talker),))
    assert found.problem == "no gateway metrics yet"
    assert (found.streams, found.seconds, found.replicas[0].frames) == ({}, 0, 0)


def test_stale_counters_report_a_problem():
    gateway = Gateway()
    past = Past(gateway)
    past.read(0)
    gateway.serve(0.1)
    past.read(30)
    assert past.evidence(0, 120, problem="no route").problem == ""
    assert past.evidence(0, 121).problem == "the newest gateway metrics are older than 90 s"
    assert past.evidence(0, 121, problem="no route").problem == "no route"
    assert past.evidence(0, 121).streams == {}


# Bounds ------------------------------------------------------------------------------------------------------


def test_the_total_history_is_bounded(monkeypatch):
    monkeypatch.setattr(records, "MAX_VALUES", 12)
    past = Past(first := Gateway("a"), second := Gateway("b"))
    for step in range(30):
        past.read(step)
        first.serve(0.1)
        second.serve(0.1)
    assert [past.counted(since, 29) for since in (0, 27, 28)] == [4, 4, 2]


def test_removed_replicas_expire():
    past = Past(stays := Gateway("a"), Gateway("b"))
    past.read(0)
    past.read(10)
    for hour in range(1, 5):
        past.read(3600 * hour, stays)
    assert {name for _, name in past.record._replicas} == {"a"}
