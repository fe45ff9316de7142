"""From observations to a decision and its audit log entry."""

from __future__ import annotations

import json
import logging
import math
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec
import pytest

from support.stage_metrics import Gateway
from support.stage_metrics import Worker as Pod
from syrinx_operator.resource.knobs import TUNED_STAGES, Identity, live_settings
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec
from syrinx_operator.resource.tuning import CaptureBounds, RowBounds, SloSpec, TtfaObjective, TuningBounds, TuningSpec
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner import runner
from syrinx_operator.tuner.counters import Observation
from syrinx_operator.tuner.decide import assignment
from syrinx_operator.tuner.evidence import ReplicaStats
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Planner, Tuner
from syrinx_operator.tuner.snapshot import parse_metrics

SLO = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=100),))
IDENTITY = Identity(model="m", image="i", device="d")
BOUNDS = TuningBounds(
    talker_max_num_seqs=RowBounds(min=8, max=8),
    codec_max_num_seqs=RowBounds(min=1, max=8),
    chunk_ramps=(),
    capture_pairs=CaptureBounds(max=0),
)
"""Few settings, which the model plays in a second."""


class Model(Executor):
    """Answers each question at once, and the same question once."""

    known: ClassVar[list[tuple[object, object, object]]] = []

    def submit(self, answer, question, *more):
        for asked in self.known:
            if asked[:2] == (answer, (question, *more)):
                break
        else:
            asked = answer, (question, *more), answer(question, *more)
            self.known.append(asked)
        future = Future()
        future.set_result(asked[2])
        return future


class Pipeline:
    """A gateway, a talker and a codec. A few requests are late. It is evaluated every 30 s."""

    def __init__(self, mode="Auto"):
        spec = PipelineSpec(slo=SLO, tuning=TuningSpec(mode=mode, bounds=BOUNDS), codec=CodecSpec(max_num_seqs=1))
        self.policy = policy_of(spec)
        self.pods = (Gateway(), Pod("demo-talker-0", "talker"), Pod("demo-codec-0", "codec"))
        self.lines = []
        self.tuner = Tuner(self.lines.append, Model)
        self.state = State()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def serve(self):
        gateway, talker, codec = self.pods
        gateway.serve(*[0.06] * 110, *[0.9] * 10)
        gateway.settle(accepted=120, well=110, late=10)
        talker.steps(4, *[0.01] * 750)
        talker.prefills(*[0.01] * 120)
        codec.calls(1, 8, "eager", *[0.06] * 400)

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

    def step(self):
        decision = self.tuner.step("voices/demo", self.policy, self.state, self.seen(), self.now)
        self.state = decision.state
        self.now += timedelta(seconds=30)
        return decision

    def decides(self):
        """Returns the first decision with an event."""
        for _ in range(10):
            self.serve()
            decision = self.step()
            if decision.requeue_after == 1.0 and not decision.events:  # The answer is there a second later.
                self.now -= timedelta(seconds=30)
                decision = self.step()
            if decision.events:
                return decision
        raise AssertionError(f"nothing was decided: {self.state.message}")


def test_snapshots_lead_to_a_decision_and_an_audit_line():
    pipeline = Pipeline()
    decision = pipeline.decides()
    (event,) = decision.events
    (line,) = map(json.loads, pipeline.lines)
    assert event.reason == line["reason"] == "TrialStarted"
    assert (line["pipeline"], line["kind"], line["message"]) == ("voices/demo", "Normal", event.message)
    assert line["decision"] == decision.state.trial.id
    assert line["before"] == {"base": json.loads(msgspec.json.encode(pipeline.policy.requested)), "candidate": None}
    assert line["after"]["candidate"] == json.loads(msgspec.json.encode(decision.state.trial.candidate))
    assert datetime.fromisoformat(line["time"]) == pipeline.now - timedelta(seconds=30)


def test_audit_lines_go_to_their_own_logger(caplog):
    caplog.set_level(logging.INFO, "syrinx.tuning")
    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner(pool=Model)
    pipeline.decides()
    assert [json.loads(record.message)["reason"] for record in caplog.records] == ["Recommended"]


def test_an_unwritable_audit_log_does_not_stop_decisions(caplog):
    def full(line):
        raise OSError("no space left")

    pipeline = Pipeline("Recommend")
    pipeline.tuner = Tuner(full, Model)
    assert pipeline.decides().events
    assert "no space left" in caplog.text


def test_an_exception_ends_the_trial_and_is_reported_once(monkeypatch):
    pipeline = Pipeline()
    pipeline.decides()
    tried = pipeline.state

    def fails(*_):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(runner, "decide", fails)
    decision = pipeline.step()
    assert tried.trial is not None and decision.state.trial is None
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
    pipeline = Pipeline(mode)
    seen = msgspec.structs.replace(pipeline.seen("no route"), snapshots=())
    decision = pipeline.tuner.step("voices/demo", pipeline.policy, pipeline.state, seen, pipeline.now)
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
