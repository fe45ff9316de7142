"""How many replicas the tuner decides for a load. What a replica can serve is scripted, as is what the model says."""

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from support.tuner_world import BASE, BETTER, World, auto, machine, plant
from syrinx_operator.observed.evidence import WINDOW_SECONDS
from syrinx_operator.resource.state.tuning_status import (
    Capacity,
    Curve,
    Replicas,
    Worth,
)
from syrinx_operator.tuner import replicas
from syrinx_operator.tuner.model.capacity import capacity
from syrinx_operator.tuner.model.plan import Question
from syrinx_operator.tuner.model.whatif import Load
from syrinx_operator.tuner.policy import Scale
from syrinx_stages.contract.stages import WORKERS, Stage

MINUTE, HOUR = 60.0, 3600.0
TALKER, CODEC = WORKERS


def scale(mode="Auto", minimum=1, maximum=10) -> Scale:
    return Scale(mode=mode, minimum=minimum, maximum=maximum)


class Service(World):
    """A pipeline whose replicas take a minute to start. A talker serves 2 requests a second, a codec 4: then as
    many are bad as the objective allows."""

    ABLE: Mapping[Stage, float] = {TALKER: 2.0, CODEC: 4.0}

    def __init__(self, *, error=1.0, scales=None, **fields) -> None:
        """The model thinks that a replica serves `error` times what it does."""
        self.error = error
        self.capacities: list[tuple[Question, float]] = []
        self.start_seconds, self.since = 60.0, {}
        scales = dict.fromkeys(WORKERS, scale()) if scales is None else scales
        super().__init__(lambda *_: self.badness(), policy=auto(scales=scales), proposal=BASE, gain=0.0, **fields)

    def ready(self, stage: Stage) -> int:
        return sum(self.is_ready(name) for name in self.restarts if name.startswith(stage))

    def is_ready(self, name: str) -> bool:
        return self.now >= self.since.get(name, 0.0)

    def badness(self) -> float:
        """Queues begin before a stage is overloaded."""
        use = max(self.rate / max(self.ready(stage) * able, 0.1) for stage, able in self.ABLE.items())
        return min(1.0, 0.05 * math.exp(min(10 * (use - 1), 0.0)) + max(0.0, 1 - 1 / use))

    def ask_capacity(self, question: Question, target: float) -> Capacity:
        self.capacities.append((question, target))
        shares = {name: 1.0 for name in question.load.rates}
        return Capacity(
            setting=BASE,
            shares=shares,
            frames=question.load.frames,
            curves={stage: Curve(self.error * able) for stage, able in self.ABLE.items()},
        )

    def evaluate(self):
        decision = super().evaluate()
        for stage, count in self.counts.items():
            names = [f"{stage}-{index}" for index in range(count)]
            for name in [each for each in self.restarts if each.startswith(stage) and each not in names]:
                del self.restarts[name]
            for name in [each for each in names if each not in self.restarts]:
                self.restarts[name], self.since[name] = 0, self.now + self.start_seconds
        return decision

    def _replica(self, name, requests):
        found = super()._replica(name, requests)
        return replace(found, ready=self.is_ready(name), frames=found.frames // self.numbers[found.stage])

    def evidence(self, since, until):
        self.numbers = Counter(name.partition("-")[0] for name in self.restarts)
        starting = [name for name in self.restarts if not self.is_ready(name)]
        found = super().evidence(since, until)
        return replace(found, disruption=f"{starting[0]} is not ready" if starting else found.disruption)

    @property
    def memory(self) -> Replicas:
        assert self.state.replicas is not None
        return self.state.replicas

    @property
    def counts(self) -> dict[Stage, int]:
        found = self.state.replicas
        return {stage: part.count for stage, part in found.stages.items()} if found else {}

    @property
    def messages(self) -> list[str]:
        return [event.message for decision in self.decisions for event in decision.events]


# Capacity -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", [Curve(3.0, 1.0), Curve(2.0), Curve(0.7, 0.2), Curve(3.0, 6.0)])
def test_the_needed_number_is_the_least_that_serves(curve):
    for rate in (0.1, 1.9, 2.0, 2.1, 17.0, 60.0):
        count = curve.needed(rate)
        assert curve.served(count) == pytest.approx(rate)
        assert curve.served(0.99 * count) < rate


def test_nothing_is_needed_of_a_stage_that_cannot_serve():
    assert Curve().needed(5.0) == Curve(2.0).needed(0.0) == 0


@pytest.mark.night
def test_the_model_knows_what_needs_more_replicas(monkeypatch):
    monkeypatch.setattr("syrinx_operator.tuner.model.capacity._REQUESTS", 400)

    def curves(target=0.95, slowdown=1.0, resident=64, burst=1.0):
        asked = Question(
            load=Load(rates={"CustomVoice": 2.0}, frames=50.0, burst=burst),
            plant=plant(64, codec_resident=resident, limits={"CustomVoice": 0.5}, slowdown=slowdown),
            measured=machine(step=0.03, row=0.002, call=0.02, frame=0.001, prefill=0.03),
            current=BASE,
            rows={},
            ramps=(),
        )
        return capacity(asked, target).curves

    usual, strict, slow = curves(), curves(target=0.998), curves(slowdown=2.0)
    narrow, bursty = curves(resident=4), curves(burst=4.0, target=0.99)
    assert 0 < strict[TALKER].served(1) < usual[TALKER].served(1)
    assert 0 < slow[TALKER].served(4) < 0.7 * usual[TALKER].served(4)
    assert usual[TALKER].served(4) > 4 * usual[TALKER].served(1)
    assert 0 < narrow[CODEC].served(4) < usual[CODEC].served(4), "a codec holds few streams"
    # One replica serves no burst well, however rarely one comes.
    assert bursty[TALKER].served(1) == 0 < bursty[TALKER].served(8)


# Scaling up ---------------------------------------------------------------------------------------------------------


def test_a_sudden_crowd_is_answered_at_once():
    world = Service(rate=3.0, replicas=2).serve(HOUR)
    world.rate = 14.0
    before = world.now
    world.until(lambda w: w.counts[TALKER] > 2, MINUTE)
    assert world.now - before <= 2 * replicas.LOOK_SECONDS
    (up,) = [message for message in world.messages if message.startswith("talker: 2 ->")]
    assert "requests/s are expected within" in up and "2 serve" in up
    world.until(lambda w: w.counts[TALKER] >= 5, MINUTE)
    world.serve(10 * MINUTE)
    assert world.badness() < 0.08


def test_replicas_are_added_before_a_growing_load_needs_them():
    world = Service(rate=3.0, replicas=2).serve(HOUR)
    bad = []

    def grow(world):
        world.rate = min(20.0, 3.0 + (world.now - HOUR) / 200)
        bad.append(world.badness())

    world.serve(HOUR, grow)
    assert world.counts[TALKER] >= 8
    assert sum(each > 0.15 for each in bad) < 0.1 * len(bad)


def test_the_start_of_a_replica_is_measured():
    world = Service(rate=3.0, replicas=2)
    world.start_seconds = 300.0
    world.serve(HOUR)
    before = world.memory.start_seconds
    world.rate = 9.0
    world.serve(HOUR)
    assert before < world.memory.start_seconds < 300.0


def test_the_maximum_limits():
    world = Service(rate=14.0, replicas=2, scales=dict.fromkeys(WORKERS, scale(maximum=3))).serve(HOUR)
    assert world.counts == {TALKER: 3, CODEC: 3}
    assert world.memory.stages[TALKER].wanted >= 7, "which the condition says"


def test_a_model_that_promises_too_much_is_corrected():
    world = Service(error=3.0, rate=9.0, replicas=2).serve(HOUR)
    assert world.badness() < 0.08
    assert world.counts[TALKER] <= 7 and world.counts[CODEC] <= 4, "the least is 5 and 3"
    for part in world.memory.stages.values():
        assert part.worth.usual == pytest.approx(1 / 3, rel=0.4)


# Scaling down -------------------------------------------------------------------------------------------------------


def test_replicas_are_removed_when_five_minutes_did_not_need_them():
    world = Service(rate=13.0, replicas=8).serve(HOUR)
    most = world.counts[TALKER]
    assert most >= 7
    world.rate, before = 3.0, world.now
    world.until(lambda w: w.counts[TALKER] < most, HOUR)
    assert world.now - before >= WINDOW_SECONDS - MINUTE
    world.serve(HOUR)
    assert world.counts == {TALKER: 2, CODEC: 1}
    assert "ScaledDown" in world.events


def test_nothing_is_removed_during_a_disruption():
    world = Service(rate=3.0, replicas=4)
    world.until(lambda w: w.state.replicas, MINUTE)
    world.disruption = "a canary is in progress"
    world.serve(HOUR)
    assert world.counts == {TALKER: 4, CODEC: 4}
    world.rate = 14.0
    world.serve(5 * MINUTE)
    assert world.counts[TALKER] >= 7, "but added"


# Beside trials ------------------------------------------------------------------------------------------------------


def in_trial(world) -> Service:
    """Starts a trial, by an answer of the model to the present question."""
    world.rate *= 1.3
    world.policy = replace(world.policy, objectives=dict(world.policy.objectives))
    world.proposal, world.gain = BETTER, 0.04
    world.until(lambda w: w.state.trial, HOUR)
    return world


class Troubled(Service):
    """A twentieth of the requests is bad, however many replicas there are."""

    def badness(self) -> float:
        return max(0.04, super().badness())


def test_more_replicas_end_a_trial_which_is_not_charged_to_the_candidate():
    world = in_trial(Troubled(rate=3.0, replicas=4))
    candidate = world.state.trial.candidate
    world.rate, before = 19.0, len(world.events)
    world.until(lambda w: "ScaledUp" in w.events[before:], 5 * MINUTE)
    assert world.state.trial is None
    assert world.state.history[-1].verdict == "Superseded"
    assert not any(each.setting == candidate for each in world.state.tried)


def test_no_replica_is_removed_during_a_trial():
    world = in_trial(Troubled(rate=3.0, replicas=4))
    last, lower = [(True, world.counts)], []

    def watch(world):
        before, is_busy = last.pop(), bool(world.state.trial or world.state.soak)
        if before[0] and is_busy:
            lower.append(any(world.counts[stage] < before[1][stage] for stage in WORKERS))
        last.append((is_busy, world.counts))

    world.rate = 1.5
    world.serve(30 * MINUTE, watch)
    assert lower and not any(lower)


# Modes --------------------------------------------------------------------------------------------------------------


def test_recommend_only_says_it():
    world = Service(rate=9.0, replicas=2, scales=dict.fromkeys(WORKERS, scale("Recommend"))).serve(HOUR)
    assert world.counts == {TALKER: 2, CODEC: 2}
    assert world.memory.stages[TALKER].recommended >= 5
    assert set(world.events) == {"ScalingRecommended"}
    assert "recommended" in replicas.summary(world.memory)


def test_a_stage_that_others_scale_is_followed():
    world = Service(rate=3.0, replicas=3, scales={TALKER: scale()}).serve(HOUR)
    assert world.counts == {TALKER: 2, CODEC: 3}
    world.restarts["codec-3"] = 0
    world.evaluate()
    assert world.counts[CODEC] == 4


def test_colocated_stages_have_the_larger_number():
    world = Service(rate=7.5, replicas=1)
    world.policy = replace(world.policy, colocated=True)
    world.serve(HOUR)
    assert world.counts[TALKER] == world.counts[CODEC] >= 4


def test_the_capacity_is_asked_for_anew_when_the_setting_or_the_mix_changes():
    world = Service(rate=3.0, replicas=2).serve(HOUR)
    ((question, target),) = world.capacities
    assert question.load.rate == pytest.approx(3.0, rel=0.3) and target == 0.95
    world.policy = replace(world.policy, requested=replace(BASE, talker_max_num_seqs=4))
    world.serve(10 * MINUTE)
    assert len(world.capacities) > 1


def test_what_replicas_can_do_is_forgotten_with_the_image():
    world = Service(error=3.0, rate=9.0, replicas=2).serve(HOUR)
    world.identity = replace(world.identity, image="another")
    world.evaluate()
    assert world.memory.capacity is None
    assert {part.worth for part in world.memory.stages.values()} == {Worth()}
    assert world.counts[TALKER] >= 5, "but the replicas stay"
