"""A random environment for the tuner: the ratio of good requests is a given function of the setting.

Fast enough for thousands of days. `bench/simulator` models queues and engines.
"""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from syrinx_operator.resource.knobs import Identity, Setting, live_settings
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.decide import Decision, assignment, decide, window_start
from syrinx_operator.tuner.evidence import CallStats, Evidence, ReplicaStats, Route, RouteStats, StepStats
from syrinx_operator.tuner.policy import Objective, Policy, policy_of

START = datetime(2026, 1, 1, tzinfo=UTC)
IDENTITY = Identity(model="m1", image="syrinx 0.1.0", device="cpu")

Good = Callable[[Setting, str, float], float]
"""Ratio of good requests by setting, task type, and seconds since the start."""


def auto(**fields) -> Policy:
    """Returns an Auto policy with an objective for each task type."""
    policy = policy_of(default_pipeline().spec)
    objectives = dict.fromkeys(("CustomVoice", "Base"), Objective(0.2, 0.95))
    return msgspec.structs.replace(policy, **({"mode": "Auto", "objectives": objectives} | fields))


class World:
    """Requests and replicas as the tuner observes them. `run` advances time with the tuner."""

    def __init__(self, policy, good: Good, *, rate=4.0, mix=None, talkers=1, codecs=1, seed=0, state=None):
        self.policy = policy
        self.good = good
        self.rate = rate if callable(rate) else lambda _: rate
        self.mix = mix or {"CustomVoice": 1.0}
        self.names = {Stage.TALKER: [f"talker-{n}" for n in range(talkers)]}
        self.names[Stage.CODEC] = [f"codec-{n}" for n in range(codecs)]
        self.restarts = {name: 0 for names in self.names.values() for name in names}
        self.state = state or State()
        self.now = START
        self.random = random.Random(seed)
        self.dice = np.random.default_rng(seed)
        self.segments = []
        self.decisions: list[Decision] = []
        self.identity = IDENTITY
        self.problem = ""
        self.disruption = ""
        self.speed = {}
        """By replica: factor on its ratio of good requests."""

    def setting_of(self, stage, name) -> Setting:
        now = assignment(self.policy, self.state)
        return now.override(stage, name) or now.base

    def elapsed(self) -> float:
        return (self.now - START).total_seconds()

    def pass_time(self, seconds):
        """Generates requests."""
        served = {}
        talkers, codecs = self.names[Stage.TALKER], self.names[Stage.CODEC]
        for talker in talkers:
            for codec in codecs:
                for task_type, part in self.mix.items():
                    own = self.setting_of(Stage.TALKER, talker)
                    theirs = self.setting_of(Stage.CODEC, codec)
                    setting = msgspec.structs.replace(theirs, talker_max_num_seqs=own.talker_max_num_seqs)
                    asked = int(
                        self.dice.poisson(self.rate(self.elapsed()) * part * seconds / len(talkers) / len(codecs))
                    )
                    chance = self.good(setting, task_type, self.elapsed())
                    chance *= self.speed.get(talker, 1.0) * self.speed.get(codec, 1.0)
                    within = int(self.dice.binomial(asked, min(1.0, chance)))
                    served[Route(talker, codec, task_type)] = (asked, within)
        self.segments.append((self.now, served))
        self.segments = self.segments[-200:]
        self.now += timedelta(seconds=seconds)

    def evidence(self) -> Evidence:
        """Returns the evidence that the counter history would give."""
        begin = window_start(self.policy, self.state, self.now)
        counts = {}
        for at, served in reversed(self.segments):
            if at < begin - timedelta(seconds=0.2):
                break
            for route, (asked, within) in served.items():
                before = counts.get(route, (0, 0))
                counts[route] = (before[0] + asked, before[1] + within)
        known = not self.problem
        return Evidence(
            since=begin,
            until=self.now if known else begin,
            identity=self.identity,
            problem=self.problem,
            routes={route: _served(*pair) for route, pair in counts.items() if pair[0]} if known else {},
            queue_age=0.0,
            replicas=tuple(self._worker(stage, name) for stage, names in self.names.items() for name in names),
            disruption=self.disruption,
        )

    def _worker(self, stage, name) -> ReplicaStats:
        settings = live_settings(self.setting_of(stage, name), stage)
        # Engines have spare capacity, so the good ratio follows from the given function alone.
        steps = {1: StepStats(100, 0.05), 8: StepStats(100, 0.06)}
        calls = (CallStats(1, 4, "eager", 100, 0.05),) if stage is Stage.CODEC else ()
        return ReplicaStats(
            name=name,
            stage=stage,
            ready=True,
            restarts=self.restarts[name],
            settings=settings,
            errors=0,
            steps=steps,
            calls=calls,
        )

    def evaluate(self) -> Decision:
        """Evaluates once and applies the decision at once."""
        decision = decide(self.policy, self.state, self.evidence(), self.now)
        # The state must survive encoding.
        self.state = msgspec.json.decode(msgspec.json.encode(decision.state), type=State)
        assert self.state == decision.state
        self.decisions.append(decision)
        return decision

    def run(self, seconds, each=lambda world: None):
        """Advances time. `each` is called after every evaluation."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            decision = self.evaluate()
            each(self)
            self.pass_time(decision.requeue_after)
        return self

    def verdicts(self) -> list[str]:
        return [record.verdict for record in self.state.history]

    def event_reasons(self) -> list[str]:
        return [event.reason for decision in self.decisions for event in decision.events]


def _served(asked, within) -> RouteStats:
    ttfa = {0.1: within // 2, 0.2: within, 0.5: asked, math.inf: asked}
    return RouteStats(requests=asked, within_objective=within, underruns=0, ttfa_histogram=ttfa)
