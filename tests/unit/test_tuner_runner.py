"""From what a shell saw to a decision and its line in the audit log."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from support.stage_metrics import Gateway
from support.stage_metrics import Worker as Pod
from syrinx_operator.resource.knobs import Identity, Stage, live_settings
from syrinx_operator.resource.spec import PipelineSpec, SloSpec, TtfaObjective, TuningSpec
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner import runner
from syrinx_operator.tuner.decide import assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Observation, Tuner
from syrinx_operator.tuner.snapshot import parse_metrics

SLO = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=100),))
IDENTITY = Identity(model="m", image="i", device="d")


class Pipeline:
    """A gateway, a talker and a codec that make listeners wait, looked at every half minute."""

    def __init__(self, mode="Auto"):
        self.policy = policy_of(PipelineSpec(slo=SLO, tuning=TuningSpec(mode=mode)))
        self.pods = (Gateway(), Pod("demo-talker-0", "talker"), Pod("demo-codec-0", "codec"))
        self.lines = []
        self.tuner = Tuner(self.lines.append)
        self.state = State()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def serve(self):
        gateway, talker, codec = self.pods
        gateway.serve(*[0.9] * 40)
        talker.steps(8, *[0.03] * 100)
        codec.steps(8, *[0.05] * 100)
        codec.calls(8, 8, "eager", *[0.05] * 100)

    def seen(self, problem=""):
        setting = assignment(self.policy, self.state).base
        return Observation(
            snapshots=tuple(
                parse_metrics(pod.replica.name, pod.replica.component.value, self.now, pod.text) for pod in self.pods
            ),
            replicas=tuple(
                ReplicaStats(
                    name=f"demo-{stage}-0", stage=stage, ready=True, restarts=0, settings=live_settings(setting, stage)
                )
                for stage in Stage
            ),
            identity=IDENTITY,
            problem=problem,
        )

    def look(self):
        decision = self.tuner.step("voices/demo", self.policy, self.state, self.seen(), self.now)
        self.state = decision.state
        self.now += timedelta(seconds=30)
        return decision

    def looks(self, times):
        for _ in range(times):
            self.serve()
            decision = self.look()
            if decision.events:
                return decision
        raise AssertionError(f"nothing was decided in {times} looks: {self.state.message}")


def test_what_snapshots_tell_is_decided_on_and_written_down():
    pipeline = Pipeline()
    decision = pipeline.looks(10)
    (event,) = decision.events
    (line,) = map(json.loads, pipeline.lines)
    assert event.reason == line["reason"] == "TrialStarted"
    assert (line["pipeline"], line["kind"], line["message"]) == ("voices/demo", "Normal", event.message)
    assert line["decision"] == decision.state.trial.id
    assert line["before"] == {"base": json.loads(msgspec.json.encode(pipeline.policy.requested)), "candidate": None}
    assert line["after"]["candidate"] == json.loads(msgspec.json.encode(decision.state.trial.candidate))
    assert datetime.fromisoformat(line["time"]) == pipeline.now - timedelta(seconds=30)


def test_a_line_is_one_line():
    pipeline = Pipeline("Recommend")
    pipeline.looks(10)
    assert pipeline.lines and all("\n" not in line for line in pipeline.lines)


def test_lines_go_to_a_logger_of_their_own(caplog):
    caplog.set_level(logging.INFO, "syrinx.tuning")
    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner()
    pipeline.looks(10)
    assert [json.loads(record.message)["reason"] for record in caplog.records] == ["Recommended"]


def test_a_log_that_cannot_be_written_stops_no_decision(caplog):
    def full(line):
        raise OSError("no space left")

    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner(full)
    assert pipeline.looks(10).events
    assert "no space left" in caplog.text


def test_what_cannot_be_judged_ends_what_is_tried_and_is_told_once(monkeypatch):
    pipeline = Pipeline()
    pipeline.looks(10)
    tried = pipeline.state

    def fails(*_):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(runner, "decide", fails)
    decision = pipeline.look()
    assert tried.trial is not None and decision.state.trial is None
    assert [event.reason for event in decision.events] == ["TuningFailed"]
    assert "ZeroDivisionError: odd" in decision.state.message
    assert not pipeline.look().events
    assert assignment(pipeline.policy, pipeline.state).base == pipeline.policy.requested


def test_the_same_snapshots_twice_count_once():
    pipeline = Pipeline()
    pipeline.look()
    pipeline.serve()
    seen = pipeline.seen()
    since, until = pipeline.now - timedelta(seconds=60), pipeline.now
    for _ in range(2):
        found = pipeline.tuner.evidence("voices/demo", pipeline.policy, seen, since, until)
    assert found == pipeline.tuner.evidence("voices/demo", pipeline.policy, None, since, until)
    assert sum(served.requests for served in found.routes.values()) == 40


def test_pipelines_are_told_apart_and_forgotten():
    pipeline = Pipeline()
    pipeline.look()
    window = pipeline.now - timedelta(seconds=60), pipeline.now
    assert pipeline.tuner.devices("voices/demo") == {"demo-talker-0": "cpu", "demo-codec-0": "cpu"}
    assert pipeline.tuner.devices("voices/other") == {}
    pipeline.tuner.forget("voices/demo")
    found = pipeline.tuner.evidence("voices/demo", pipeline.policy, None, *window)
    assert (found.problem, found.replicas) == ("no gateway metrics yet", ())


@pytest.mark.parametrize("mode", ["Recommend", "Auto"])
def test_no_data_is_held(mode):
    pipeline = Pipeline(mode)
    seen = msgspec.structs.replace(pipeline.seen("no route"), snapshots=())
    decision = pipeline.tuner.step("voices/demo", pipeline.policy, pipeline.state, seen, pipeline.now)
    assert (decision.state.phase, decision.state.message) == ("NoData", "no route")
    assert assignment(pipeline.policy, decision.state).base == pipeline.policy.requested
