"""Rolling updates: by example, and against a simulated StatefulSet controller."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrinx_operator.cluster.plan.workloads import partition
from syrinx_operator.cluster.state import Component, Replica
from syrinx_stages.contract.settings import ReportedSettings


def pod(ordinal, template="new", *, ready=True, generation=1, terminating=False):
    reported = None if generation is None else ReportedSettings(generation, {}, {})
    return Replica(
        name=f"demo-talker-{ordinal}",
        component=Component.TALKER,
        template=template,
        ready=ready,
        reported=reported,
        terminating=terminating,
    )


def rolls(replicas, *pods, keep_last_old=False, settings_generation=1):
    return partition(replicas, "new", pods, settings_generation=settings_generation, keep_last_old=keep_last_old)


def test_the_first_pods_have_the_new_template():
    assert rolls(3) == 0


def test_a_rollout_starts_at_the_highest_ordinal():
    assert rolls(3, pod(0, "old"), pod(1, "old"), pod(2, "old")) == 2


@pytest.mark.parametrize(
    "highest",
    [pod(2, ready=False), pod(2, generation=None), pod(2, generation=0), pod(2, "old", terminating=True), None],
    ids=["not ready", "not asked yet", "older settings", "terminating", "not created yet"],
)
def test_the_next_replica_waits_until_the_last_one_is_settled(highest):
    pods = [pod(0, "old"), pod(1, "old"), *([highest] if highest else [])]
    assert rolls(3, *pods) == 2


def test_the_next_replica_follows_once_the_last_one_is_settled():
    assert rolls(3, pod(0, "old"), pod(1, "old"), pod(2)) == 1


def test_a_new_replica_that_fails_later_blocks_the_rollout():
    assert rolls(3, pod(0, "old"), pod(1, ready=False), pod(2)) == 1


def test_a_failing_replica_of_an_earlier_template_does_not_block_the_rollout():
    assert rolls(3, pod(0, "older"), pod(1, "older"), pod(2, "old", ready=False)) == 2
    assert rolls(3, pod(0, "older"), pod(1, "old", ready=False), pod(2)) == 1


def test_the_last_old_replica_is_kept_if_required():
    assert rolls(2, pod(0, "old"), pod(1), keep_last_old=True) == 1
    assert rolls(2, pod(0, "old"), pod(1), keep_last_old=False) == 0


def test_an_old_one_that_ends_is_not_there_any_more():
    assert rolls(2, pod(0, "old", terminating=True), pod(1, "old"), keep_last_old=True) == 2


def test_the_only_replica_cannot_be_spared():
    assert rolls(1, pod(0, "old"), keep_last_old=True) == 0


def test_replicas_that_go_and_pods_of_others_do_not_count():
    assert rolls(2, pod(0, "old"), pod(1), pod(2, "old", ready=False), pod("x", ready=False)) == 0


# Against a simulated controller -------------------------------------------------------------------------------


@dataclass
class Pod:
    template: int
    ready: bool = False
    confirmed: int | None = None
    terminating: bool = False


@dataclass
class World:
    """A StatefulSet (Parallel, RollingUpdate with a partition) as Kubernetes' controller runs it, and its operator.

    Templates are numbers; pods of those in `bad` never become ready.
    """

    replicas: int
    wanted: int = 0
    newest: int = 0
    applied: int = 0
    current: int = 0
    partition: int = 0
    generation: int = 1
    pods: dict[int, Pod] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    served: set[int] = field(default_factory=lambda: {0})
    """Templates that a ready gateway has replicas of."""
    seen: int = 0
    """Replica count at the last reconcile; an autoscaler may have changed it since."""
    taken: int = 0
    """Replicas that the roll-out of the template applied last took down."""
    pending: set[int] = field(default_factory=set)
    """Of these, those that have not settled since."""

    def operator(self) -> None:
        pods = [
            pod(n, str(p.template), ready=p.ready, generation=p.confirmed, terminating=p.terminating)
            for n, p in self.pods.items()
        ]
        if self.applied != self.wanted:
            self.applied, self.taken, self.pending = self.wanted, 0, set()
        self.seen = self.replicas
        self.partition = partition(
            self.replicas,
            str(self.applied),
            pods,
            settings_generation=self.generation,
            keep_last_old=self.applied not in self.served,
        )

    def controller(self) -> None:
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                self.pods[ordinal] = Pod(self.applied if ordinal >= self.partition else self.current)
        for ordinal, found in self.pods.items():
            found.terminating |= ordinal >= self.replicas
        live = [self.pods[n] for n in range(self.replicas)]
        if all(p.template == self.applied and p.ready for p in live):
            self.current = self.applied
        for ordinal in reversed(range(self.partition, self.replicas)):
            found = self.pods[ordinal]
            if found.template != self.applied and not found.terminating:
                self.take(ordinal)
                return
            if not found.ready or found.terminating:
                return

    def take(self, ordinal: int) -> None:
        """The roll-out takes a replica down: here is what must never be."""
        if self.seen == self.replicas:
            assert not [n for n in self.pending if n < self.replicas and not self.stays_old(n)]
        if self.seen == self.replicas > 1 and self.applied not in self.served:
            assert any(self.stays_old(n) for n in range(self.replicas) if n != ordinal)
        self.taken += 1
        self.pending.add(ordinal)
        self.pods[ordinal].terminating = True
        self.pods[ordinal].ready = False

    def stays_old(self, ordinal: int) -> bool:
        found = self.pods.get(ordinal)
        if found is None or found.terminating:
            return ordinal < self.partition
        return found.template != self.applied

    # What happens in the cluster ---------------------------------------------------------------------------

    def end(self, ordinal: int) -> None:
        if ordinal in self.pods and self.pods[ordinal].terminating:
            del self.pods[ordinal]

    def start(self, ordinal: int) -> None:
        found = self.pods.get(ordinal)
        if found and not found.terminating and found.template not in self.bad:
            found.ready = True

    def confirm(self, ordinal: int) -> None:
        found = self.pods.get(ordinal)
        if found and found.ready:
            found.confirmed = self.generation
            if found.template == self.applied:
                self.pending.discard(ordinal)

    def crash(self, ordinal: int) -> None:
        if ordinal in self.pods:
            self.pods[ordinal].ready, self.pods[ordinal].confirmed = False, None

    def evict(self, ordinal: int) -> None:
        if ordinal in self.pods:
            self.pods[ordinal].terminating, self.pods[ordinal].ready = True, False

    def gateway(self) -> None:
        if any(p.template == self.applied and p.ready for p in self.pods.values()):
            self.served.add(self.applied)

    def edit(self, *, good: bool) -> None:
        self.newest += 1
        self.wanted = self.newest
        if not good:
            self.bad.add(self.wanted)

    def revert(self) -> None:
        self.wanted = max(self.wanted - 1, 0)

    def scale(self, replicas: int) -> None:
        self.replicas = replicas

    def tune(self) -> None:
        self.generation += 1

    def settle(self) -> None:
        """Runs without further failures until nothing changes."""
        for _ in range(12 * (self.replicas + 2)):
            self.operator()
            self.controller()
            for ordinal in list(self.pods):
                self.end(ordinal)
                self.start(ordinal)
                self.confirm(ordinal)
            self.gateway()

    @property
    def up(self) -> int:
        return sum(p.ready for p in self.pods.values())


HEAVY = {"operator": 4, "controller": 8, "end": 4, "start": 4, "confirm": 3, "gateway": 1}
LIGHT = {"edit": 0.6, "scale": 0.4, "tune": 0.3, "revert": 0.2, "crash": 0.3, "evict": 0.3}


def run(world, seed):
    """Runs 150 random events, mostly those of a rollout; `take` checks invariants."""
    chance = random.Random(seed)
    weights = HEAVY | LIGHT
    for event in chance.choices(list(weights), list(weights.values()), k=150):
        if event == "edit":
            world.edit(good=chance.random() < 0.7)
        elif event == "scale":
            world.scale(chance.randint(1, 5))
        elif event in ("crash", "evict"):
            getattr(world, event)(chance.randrange(5))
        elif event in ("end", "start", "confirm"):
            for ordinal in range(5):
                if chance.random() < 0.7:
                    getattr(world, event)(ordinal)
        else:
            getattr(world, event)()


SEEDS = st.integers(0, 2**32)


def running(replicas):
    world = World(replicas)
    world.settle()
    assert world.up == replicas
    return world


@settings(max_examples=400, deadline=None)
@given(replicas=st.integers(1, 5), seed=SEEDS)
def test_a_good_template_reaches_all_replicas_from_any_state(replicas, seed):
    world = running(replicas)
    run(world, seed)
    world.edit(good=True)
    world.settle()
    assert {p.template for p in world.pods.values()} == {world.wanted}
    assert world.up == len(world.pods) == world.replicas
    assert world.partition == 0


@settings(max_examples=150, deadline=None)
@given(replicas=st.integers(1, 5), seed=SEEDS)
def test_a_bad_template_stops_at_one_replica_and_the_next_edit_recovers_it(replicas, seed):
    world = running(replicas)
    run(world, seed)
    world.edit(good=True)
    world.settle()
    before = world.replicas
    world.edit(good=False)
    world.settle()
    assert world.up == before - 1
    assert world.taken == 1
    world.edit(good=True)
    world.settle()
    assert world.up == before


@settings(max_examples=150, deadline=None)
@given(replicas=st.integers(2, 5), ticks=st.integers(1, 40))
def test_a_rollout_without_failures_takes_down_one_replica_at_a_time(replicas, ticks):
    world = running(replicas)
    world.edit(good=True)
    for tick in range(ticks):
        world.operator()
        world.controller()
        assert world.up >= replicas - 1
        for ordinal in list(world.pods):
            (world.end, world.start, world.confirm)[tick % 3](ordinal)
        if tick % 7 == 0:
            world.gateway()


def test_the_last_old_replica_stays_until_the_gateway_is_ready():
    world = running(3)
    world.edit(good=True)
    for _ in range(30):
        world.operator()
        world.controller()
        for ordinal in list(world.pods):
            world.end(ordinal)
            world.start(ordinal)
            world.confirm(ordinal)
    assert [world.pods[n].template for n in range(3)] == [0, 1, 1]
    world.settle()
    assert [world.pods[n].template for n in range(3)] == [1, 1, 1]
