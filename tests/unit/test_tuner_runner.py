"""From observations to a decision and its audit log entry."""

from __future__ import annotations

import json
import logging
import math
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from support.resolved import resolved
from support.stage_metrics import Gateway
from support.stage_metrics import Worker as Pod
from support.tuning import in_trial
from syrinx_operator.observed.counters import Observation
from syrinx_operator.observed.snapshot import parse_metrics
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaObjective
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner import runner
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.decide import Decision, assignment
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Planner, Tuner

POLICY = policy_of(resolved(slo=SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=100),))))
AUTO = replace(POLICY, mode="Auto")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRIED = in_trial(NOW)
DECISION = Decision(state=TRIED, events=(Event(reason="TrialStarted", message="why"),), requeue_after=30.0)


class Pipeline:
    """A gateway, a talker and a codec, and a tuner that decides for them every 30 s."""

    def __init__(self, policy=AUTO):
        self.policy = policy
        self.pods = (Gateway(), Pod("demo-talker-0", "talker"), Pod("demo-codec-0", "codec"))
        self.lines = []
        self.tuner = Tuner(self.lines.append)
        self.state = State()
        self.now = NOW

    def step(self, problem=""):
        self.now += timedelta(seconds=30)
        pods = () if problem else self.pods
        seen = Observation(
            snapshots=tuple(
                parse_metrics(pod.replica.name, pod.replica.component.value, self.now, pod.text) for pod in pods
            ),
            replicas=(),
            identity=Identity(model="m", image="i", device="d"),
            problem=problem,
        )
        decision = self.tuner.step("voices/demo", self.policy, self.state, seen, self.now)
        self.state = decision.state
        return decision


@pytest.fixture
def decides(monkeypatch):
    """Replaces `decide` by a function."""
    return lambda function: monkeypatch.setattr(runner, "decide", function)


def test_snapshots_lead_to_a_decision_and_an_audit_line(decides):
    pipeline, seen = Pipeline(), []

    def decide(policy, state, look, ask, ask_capacity, now):
        seen.append(look(NOW, now))
        return DECISION if len(seen) == 2 else Decision(state=state, requeue_after=30.0)

    decides(decide)
    pipeline.step()
    pipeline.pods[0].serve(0.06, 0.9)
    assert pipeline.step() == DECISION
    assert seen[1].streams["CustomVoice"].requests == 2
    (line,) = map(json.loads, pipeline.lines)
    assert datetime.fromisoformat(line["time"]) == pipeline.now
    assert (line["pipeline"], line["kind"], line["reason"], line["message"], line["decision"]) == (
        *("voices/demo", "Normal", "TrialStarted", "why", TRIED.trial.id),
    )
    assert line["before"] == {"base": json.loads(msgspec.json.encode(AUTO.requested)), "candidate": None}
    assert line["after"]["candidate"] == json.loads(msgspec.json.encode(TRIED.trial.candidate))


def test_what_is_for_the_audit_log_is_told_nobody_else(decides):
    pair = Event(kind="Audit", reason="Compared", message="a pair")
    decides(lambda *_: replace(DECISION, events=(pair, *DECISION.events)))
    pipeline = Pipeline()
    assert pipeline.step() == DECISION
    assert [json.loads(line)["reason"] for line in pipeline.lines] == ["Compared", "TrialStarted"]


def test_audit_lines_go_to_their_own_logger(caplog, decides):
    caplog.set_level(logging.INFO, "syrinx.tuning")
    decides(lambda *_: DECISION)
    pipeline = Pipeline()
    pipeline.tuner = Tuner()
    pipeline.step()
    assert [json.loads(record.message)["reason"] for record in caplog.records] == ["TrialStarted"]


def test_an_unwritable_audit_log_does_not_stop_decisions(caplog, decides):
    def full(line):
        raise OSError("no space left")

    decides(lambda *_: DECISION)
    pipeline = Pipeline()
    pipeline.tuner = Tuner(full)
    assert pipeline.step() == DECISION
    assert "no space left" in caplog.text


def test_an_exception_ends_the_trial_and_is_reported_once(decides):
    pipeline = Pipeline()
    pipeline.state = TRIED

    def fails(*_):
        raise ZeroDivisionError("odd")

    decides(fails)
    decision = pipeline.step()
    assert decision.state.trial is None
    assert [event.reason for event in decision.events] == ["TuningFailed"]
    assert "ZeroDivisionError: odd" in decision.state.message
    assert not pipeline.step().events
    assert assignment(pipeline.policy, pipeline.state).base == pipeline.policy.requested


def test_pipelines_are_separate_and_can_be_forgotten():
    pipeline = Pipeline()
    pipeline.step()
    window = pipeline.now - timedelta(seconds=60), pipeline.now
    assert pipeline.tuner.devices("voices/demo") == {"demo-talker-0": "cpu", "demo-codec-0": "cpu"}
    assert pipeline.tuner.devices("voices/other") == {}
    pipeline.tuner.forget("voices/demo")
    found = pipeline.tuner.evidence("voices/demo", pipeline.policy, *window)
    assert (found.problem, found.replicas) == ("no gateway metrics yet", ())


@pytest.mark.parametrize("mode", ["Recommend", "Auto"])
def test_a_failure_gives_no_data(mode):
    pipeline = Pipeline(replace(POLICY, mode=mode))
    decision = pipeline.step("no route")
    assert (decision.state.phase, decision.state.message) == ("NoData", "no route")
    assert assignment(pipeline.policy, decision.state).base == pipeline.policy.requested


class Pool(Executor):
    """A process for one question, whose answer the test gives."""

    def __init__(self, futures):
        self.futures = futures

    def submit(self, answer, *question):
        self.futures.append(Future())
        return self.futures[-1]


def test_the_planner_answers_one_pipeline_at_a_time():
    asked = []
    planner = Planner(math.sqrt, lambda: Pool(asked))
    assert planner.ask("one", 4.0) is planner.ask("one", 9.0) is None, "it computes elsewhere"
    asked[0].set_result(2.0)
    assert planner.ask("one", 9.0) == 2.0, "the answer to the question that was asked first"
    assert planner.ask("one", 16.0) is planner.ask("other", 25.0) is None
    asked[1].set_result(4.0)
    assert planner.ask("other", 25.0) is None, "the other's turn comes when the first is answered"
    asked[2].set_result(5.0)
    assert planner.ask("other", 25.0) == 5.0
    assert planner.ask("one", 36.0) == 4.0, "whose answer is kept"
    assert len(asked) == 3


def test_what_the_model_raises_is_raised_once():
    asked = []
    planner = Planner(math.sqrt, lambda: Pool(asked))
    assert planner.ask("one", -1.0) is None
    asked[0].set_exception(ValueError("math domain error"))
    with pytest.raises(ValueError, match="math domain error"):
        planner.ask("one", -1.0)
    assert planner.ask("one", 4.0) is None, "the next question is asked"
