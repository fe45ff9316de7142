"""From observations to a decision and its audit log entry."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from support.stage_metrics import Gateway
from support.stage_metrics import Worker as Pod
from syrinx_operator.resource.knobs import TUNED_STAGES, Identity, live_settings
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.tuning import SloSpec, TtfaObjective, TuningSpec
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner import runner
from syrinx_operator.tuner.counters import Observation
from syrinx_operator.tuner.decide import assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Tuner
from syrinx_operator.tuner.snapshot import parse_metrics

SLO = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=100),))
IDENTITY = Identity(model="m", image="i", device="d")


class Pipeline:
    """A gateway, a talker and a codec with bad latencies, evaluated every 30 s."""

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
                for stage in TUNED_STAGES
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


def test_snapshots_lead_to_a_decision_and_an_audit_line():
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


def test_an_audit_entry_is_one_line():
    pipeline = Pipeline("Recommend")
    pipeline.looks(10)
    assert pipeline.lines and all("\n" not in line for line in pipeline.lines)


def test_audit_lines_go_to_their_own_logger(caplog):
    caplog.set_level(logging.INFO, "syrinx.tuning")
    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner()
    pipeline.looks(10)
    assert [json.loads(record.message)["reason"] for record in caplog.records] == ["Recommended"]


def test_an_unwritable_audit_log_does_not_stop_decisions(caplog):
    def full(line):
        raise OSError("no space left")

    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner(full)
    assert pipeline.looks(10).events
    assert "no space left" in caplog.text


def test_an_exception_ends_the_trial_and_is_reported_once(monkeypatch):
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


def test_repeated_snapshots_count_once():
    pipeline = Pipeline()
    pipeline.look()
    pipeline.serve()
    seen = pipeline.seen()
    since, until = pipeline.now - timedelta(seconds=60), pipeline.now
    for _ in range(2):
        found = pipeline.tuner.evidence("voices/demo", pipeline.policy, seen, since, until)
    assert found == pipeline.tuner.evidence("voices/demo", pipeline.policy, None, since, until)
    assert sum(served.requests for served in found.routes.values()) == 40


def test_pipelines_are_separate_and_can_be_forgotten():
    pipeline = Pipeline()
    pipeline.look()
    window = pipeline.now - timedelta(seconds=60), pipeline.now
    assert pipeline.tuner.devices("voices/demo") == {"demo-talker-0": "cpu", "demo-codec-0": "cpu"}
    assert pipeline.tuner.devices("voices/other") == {}
    pipeline.tuner.forget("voices/demo")
    found = pipeline.tuner.evidence("voices/demo", pipeline.policy, None, *window)
    assert (found.problem, found.replicas) == ("no gateway metrics yet", ())


@pytest.mark.parametrize("mode", ["Recommend", "Auto"])
def test_a_failure_gives_no_data(mode):
    pipeline = Pipeline(mode)
    seen = msgspec.structs.replace(pipeline.seen("no route"), snapshots=())
    decision = pipeline.tuner.step("voices/demo", pipeline.policy, pipeline.state, seen, pipeline.now)
    assert (decision.state.phase, decision.state.message) == ("NoData", "no route")
    assert assignment(pipeline.policy, decision.state).base == pipeline.policy.requested
