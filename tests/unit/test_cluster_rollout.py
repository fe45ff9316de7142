"""Rolling updates: by example, and against a simulated StatefulSet controller."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_operator.cluster.objects.state import Observed, Replica
from syrinx_operator.cluster.plan.records import Release
from syrinx_operator.cluster.plan.rollout import Rollout, may_gateways_follow, rollout
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage


def pod(ordinal, template="new", *, ready=True, generation=1, **fields):
    reported = None if generation is None else ReportedSettings(generation, {}, {})
    name, component = f"demo-talker-{ordinal}", Stage.TALKER
    return Replica(name=name, component=component, template=template, ready=ready, reported=reported, **fields)


def plan(replicas, *pods, needed="", settings_generation=1, **options):
    """`needed` is the template of the pods that gateways need."""
    names = frozenset(pod.name for pod in pods if pod.template == needed)
    return rollout(replicas, "new", pods, settings_generation=settings_generation, needed=names, **options)


def rolls(replicas, *pods, **options):
    """The partition."""
    found = plan(replicas, *pods, **options)
    assert (found.replicas, found.delete) == (replicas, ())
    return found.partition


@pytest.mark.parametrize(
    "highest",
    [pod(2, ready=False), pod(2, generation=None), pod(2, generation=0), pod(2, "old", terminating=True), None],
    ids=["not ready", "not asked yet", "older settings", "terminating", "not created yet"],
)
def test_the_next_replica_waits_until_the_last_one_is_settled(highest):
    pods = [pod(0, "old"), pod(1, "old"), *([highest] if highest else [])]
    assert rolls(3, *pods) == 2


def test_a_new_replica_that_fails_later_blocks_the_rollout():
    assert rolls(3, pod(0, "old"), pod(1, ready=False), pod(2)) == 1


def test_a_failing_replica_of_an_earlier_template_does_not_block_the_rollout():
    assert rolls(3, pod(0, "older"), pod(1, "older"), pod(2, "old", ready=False)) == 2
    assert rolls(3, pod(0, "older"), pod(1, "old", ready=False), pod(2)) == 1


def test_half_of_the_replicas_that_gateways_need_are_kept():
    assert rolls(2, pod(0, "old"), pod(1), needed="old") == 1
    assert rolls(2, pod(0, "old"), pod(1)) == 0
    assert rolls(3, pod(0, "old"), pod(1, "old"), pod(2), needed="old") == 1
    assert rolls(3, pod(0, "old"), pod(1), pod(2), needed="old") == 1
    assert rolls(4, pod(0, "old"), pod(1, "old"), pod(2), pod(3), needed="old") == 2
    assert rolls(4, pod(0, "older"), pod(1, "older"), pod(2, "old"), pod(3), needed="old") == 3
    assert rolls(4, pod(0, "older"), pod(1, "older"), pod(2), pod(3), needed="old") == 1


def test_an_old_one_that_ends_is_not_there_any_more():
    assert rolls(2, pod(0, "old", terminating=True), pod(1, "old"), needed="old") == 2


def test_replicas_that_go_and_pods_of_others_do_not_count():
    assert rolls(2, pod(0, "old"), pod(1), pod(2, "old", ready=False), pod("x", ready=False)) == 0


# One replica ---------------------------------------------------------------------------------------------------


def surge(*pods, **options):
    found = plan(1, *pods, surge=True, **options)
    assert found.delete == ()
    return found.replicas, found.partition


def test_a_single_replica_is_replaced_once_a_second_one_has_settled():
    old = pod(0, "old", created="1")
    assert surge() == (1, 0)
    assert surge(old) == (2, 1)
    assert surge(old, pod(1, ready=False, created="2")) == (2, 1)
    assert surge(old, pod(1, generation=None, created="2")) == (2, 1)
    assert surge(old, pod(1, created="2"), needed="old") == (2, 1)
    assert surge(old, pod(1, created="2")) == (2, 0)
    assert surge(pod(0, "old", terminating=True, created="1"), pod(1, created="2")) == (2, 0)
    assert surge(pod(1, created="2")) == (2, 0)
    assert surge(pod(0, ready=False, created="3"), pod(1, created="2")) == (2, 0)
    assert surge(pod(0, created="3"), pod(1, created="2")) == (1, 0)
    assert surge(pod(0, created="3"), pod(1, created="2", terminating=True)) == (1, 0)


def test_an_edit_in_a_surge_adds_a_pod_for_the_one_that_the_gateway_needs():
    first, second = pod(0, "older", created="1"), pod(1, "old", created="2")
    assert surge(first, second, needed="old") == (3, 2)
    assert surge(first, second, pod(2, created="3"), needed="old") == (3, 2), "until a new gateway is ready"
    assert surge(first, second, pod(2, created="3")) == (3, 1)


def test_an_edit_supersedes_a_second_pod_that_fails():
    failing = pod(1, "bad", ready=False, problem="ImagePullBackOff: no such image", created="2")
    assert surge(pod(0, "old", created="1"), failing) == (2, 1)
    assert plan(1, pod(0, created="1"), failing, surge=True) == Rollout(1, 0), "an edit back to the first template"


def test_a_replica_that_has_never_been_ready_is_replaced_without_a_second_one():
    assert surge(pod(0, "old", ready=False, created="1")) == (1, 0)
    second = pod(1, ready=False, problem="Unschedulable: Insufficient nvidia.com/gpu", created="2")
    assert surge(pod(0, "old", ready=False, created="1"), second) == (1, 0), "it holds the device that the second needs"


def test_the_second_pod_is_kept_while_it_loads_although_the_first_one_ends():
    assert surge(pod(0, "old", terminating=True, created="1"), pod(1, ready=False, created="2")) == (2, 0)
    assert surge(pod(0, "old", ready=False, created="1"), pod(1, ready=False, created="2")) == (2, 1)


def test_the_last_old_replica_is_kept_also_above_the_desired_ones():
    assert surge(pod(0, created="3"), pod(1, "old", created="2"), needed="old") == (2, 2)
    assert surge(pod(0, created="3"), pod(1, "old", created="2")) == (1, 0)


def test_without_surge_the_only_replica_is_replaced_at_once():
    assert plan(1, pod(0, "old")) == Rollout(1, 0)
    assert plan(1, pod(0, "old"), surge=True, fixed=True) == Rollout(1, 0), "an autoscaler owns the count"


def test_several_replicas_need_no_additional_pod_unless_only_one_serves():
    assert rolls(2, pod(0, "old"), pod(1, "old"), surge=True) == 1
    assert plan(2, pod(0, "old", ready=False), pod(1, "old"), surge=True) == Rollout(3, 2)


# Gateways ------------------------------------------------------------------------------------------------------


def follow(gateways, talkers, codecs=("new",)):
    """Returns whether gateways may get the generation `new`; of all ready pods, the generations are given."""
    stages = {Stage.GATEWAY: gateways, Stage.TALKER: talkers, Stage.CODEC: codecs}
    pods = [
        Replica(name=f"{stage}-{n}", component=stage, template="", ready=True, model_generation=generation)
        for stage, generations in stages.items()
        for n, generation in enumerate(generations)
    ]
    release = Release(image="", redis_image="", generation="new", generation_inputs={})
    return may_gateways_follow(release, Observed(objects={}, replicas=tuple(pods)))


def test_gateways_follow_once_half_of_the_replicas_are_new():
    assert not follow(["old"], ["old", "old", "old", "new"])
    assert not follow(["old"], ["old", "old"], ["old"])
    assert not follow(["old"], ["new", "new"], ["old", "old", "new"])
    assert follow(["old"], ["old", "old", "new", "new"])
    assert follow(["old"], ["old"], ["old"]), "new ones wait by themselves"
    assert follow([], []) and follow(["new"], ["old", "old"])
    assert follow(["older", "old"], ["older", "older", "old", "new"]), "an edit during a roll-out"


# Lost nodes ----------------------------------------------------------------------------------------------------


def lost(ordinal, template="old"):
    return pod(ordinal, template, ready=False, terminating=True, stuck=True, created="1")


def test_a_rollout_passes_over_a_stuck_pod_once_another_one_stands_in():
    """The StatefulSet controller waits for the stuck pod, so the operator deletes the next one."""
    first, second = pod(0, "old", created="1"), pod(1, "old", created="1")
    assert plan(3, first, second, lost(2)) == Rollout(4, 2)
    assert plan(3, first, second, lost(2), pod(3, ready=False, created="2")) == Rollout(4, 2)
    assert plan(3, first, second, lost(2), pod(3, created="2")) == Rollout(4, 1, (second,))
    replaced = pod(1, "old", terminating=True, created="1")
    assert plan(3, first, replaced, lost(2), pod(3, created="2")) == Rollout(4, 1)
    assert plan(3, first, pod(1, created="3"), lost(2), pod(3, created="2")) == Rollout(4, 0, (first,))


def test_the_controller_replaces_the_pods_above_a_stuck_one_by_itself():
    assert plan(3, lost(0), pod(1, "old", created="1"), pod(2, created="2"), pod(3, created="2")) == Rollout(4, 1)


def test_a_stuck_pod_is_waited_for_if_nothing_can_stand_in():
    assert plan(2, pod(0, "old"), lost(1), fixed=True) == Rollout(2, 1)


# Against a simulated controller -------------------------------------------------------------------------------


@dataclass
class Pod:
    template: int
    created: int
    ready: bool = False
    started: bool = False
    confirmed: int | None = None
    terminating: bool = False
    stuck: bool = False

    def stop(self) -> None:
        self.terminating, self.ready, self.started = True, False, False


@dataclass
class World:
    """A StatefulSet (Parallel, RollingUpdate with a partition) as Kubernetes' controller runs it, and its operator.

    Templates are numbers; pods of those in `bad` never become ready.
    """

    desired: int
    surge: bool = True
    replicas: int = 0
    wanted: int = 0
    newest: int = 0
    applied: int = 0
    current: int = 0
    partition: int = 0
    generation: int = 1
    pods: dict[int, Pod] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    gateway: int = 0
    """The template of the replicas that the gateway needs."""
    time: int = 0
    taken: int = 0
    """Replicas that the roll-out of the template applied last took down."""
    pending: set[int] = field(default_factory=set)
    """Of these, those that have not settled since."""

    def operator(self) -> None:
        pods = [
            pod(
                n,
                str(p.template),
                ready=p.ready,
                started=p.started,
                generation=p.confirmed,
                terminating=p.terminating,
                stuck=p.stuck,
                created=f"{p.created:09}",
                model_generation=str(p.template),
                problem="" if p.terminating or p.template not in self.bad else "CrashLoopBackOff",
            )
            for n, p in self.pods.items()
        ]
        if self.applied != self.wanted:
            self.applied, self.taken, self.pending = self.wanted, 0, set()
        found = rollout(
            self.desired,
            str(self.applied),
            pods,
            settings_generation=self.generation,
            needed=frozenset(
                f"demo-talker-{n}" for n, p in self.pods.items() if p.template == self.gateway != self.applied
            ),
            surge=self.surge,
        )
        self.replicas, self.partition = found.replicas, found.partition
        for each in found.delete:
            self.take(int(each.name.rpartition("-")[2]))

    def controller(self) -> None:
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                self.time += 1
                self.pods[ordinal] = Pod(self.applied if ordinal >= self.partition else self.current, self.time)
        for ordinal, found in self.pods.items():
            if ordinal >= self.replicas and not found.terminating:
                found.stop()
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
        assert not [n for n in self.pending if n < self.replicas and not self.stays_old(n)]
        if self.replicas > 1 and self.applied != self.gateway:
            assert any(self.stays_old(n) for n in range(self.replicas) if n != ordinal)
        self.taken += 1
        self.pending.add(ordinal)
        self.pods[ordinal].stop()

    def stays_old(self, ordinal: int) -> bool:
        found = self.pods.get(ordinal)
        if found is None or found.terminating:
            return ordinal < self.partition or (found is not None and found.stuck)
        return found.template != self.applied

    # What happens in the cluster ---------------------------------------------------------------------------

    def end(self, ordinal: int) -> None:
        if ordinal in self.pods and self.pods[ordinal].terminating and not self.pods[ordinal].stuck:
            del self.pods[ordinal]

    def start(self, ordinal: int) -> None:
        found = self.pods.get(ordinal)
        if found and not found.terminating and found.template not in self.bad:
            found.ready = found.started = True

    def confirm(self, ordinal: int) -> None:
        found = self.pods.get(ordinal)
        if found and found.ready:
            found.confirmed = self.generation
            if found.template == self.applied:
                self.pending.discard(ordinal)

    def crash(self, ordinal: int) -> None:
        if found := self.pods.get(ordinal):
            found.ready, found.started, found.confirmed = False, False, None

    def flap(self, ordinal: int) -> None:
        """A pod is not ready for a moment, as all of them while Redis is full."""
        if ordinal in self.pods:
            self.pods[ordinal].ready = False

    def evict(self, ordinal: int) -> None:
        if ordinal in self.pods:
            self.pods[ordinal].stop()

    def lose(self, ordinal: int) -> None:
        """The node of a pod is lost, and the cluster has asked the pod to end."""
        if ordinal in self.pods:
            self.pods[ordinal].stop()
            self.pods[ordinal].stuck = True

    def mend(self) -> None:
        """The nodes are back, or removed from the cluster."""
        for found in self.pods.values():
            found.stuck = False

    def follow(self) -> None:
        """The gateway is replaced, once it can serve and as many replicas of the former one have been."""
        if any(p.template == self.applied and p.ready for p in self.pods.values()):
            self.gateway = self.applied

    def edit(self, *, good: bool) -> None:
        self.newest += 1
        self.wanted = self.newest
        if not good:
            self.bad.add(self.wanted)

    def revert(self) -> None:
        self.wanted = max(self.wanted - 1, 0)

    def scale(self, replicas: int) -> None:
        self.desired = replicas

    def tune(self) -> None:
        self.generation += 1

    def settle(self) -> None:
        """Runs without further failures until nothing changes."""
        for _ in range(12 * (self.desired + 3)):
            self.operator()
            self.controller()
            for ordinal in list(self.pods):
                self.end(ordinal)
                self.start(ordinal)
                self.confirm(ordinal)
            self.follow()

    @property
    def up(self) -> int:
        return sum(p.ready for p in self.pods.values())


STEPS = {"operator": 6, "controller": 8, "end": 4, "start": 4, "confirm": 3, "follow": 1}
EDITS = {"edit": 0.6, "tune": 0.3, "revert": 0.3}
FAULTS = {"scale": 0.4, "crash": 0.3, "flap": 0.3, "evict": 0.3, "lose": 0.2, "mend": 0.4}


def run(world, seed, weights=STEPS | EDITS | FAULTS, *, check=lambda: None):
    """Runs 150 random events, mostly those of a rollout; `take` checks invariants, and `check` after each event."""
    chance = random.Random(seed)
    for event in chance.choices(list(weights), list(weights.values()), k=150):
        if event == "edit":
            world.edit(good=chance.random() < 0.7)
        elif event == "scale":
            world.scale(chance.randint(1, 5))
        elif event in ("crash", "flap", "evict", "lose"):
            getattr(world, event)(chance.randrange(5))
        elif event in ("end", "start", "confirm"):
            for ordinal in range(9):
                if chance.random() < 0.7:
                    getattr(world, event)(ordinal)
        else:
            getattr(world, event)()
        check()


SEEDS = st.integers(0, 2**32)


def running(replicas, **options):
    world = World(replicas, **options)
    world.settle()
    assert world.up == replicas
    return world


@given(replicas=st.integers(1, 5), surge=st.booleans(), seed=SEEDS)
def test_a_good_template_reaches_all_replicas_from_any_state(replicas, surge, seed):
    world = running(replicas, surge=surge)
    run(world, seed)
    world.edit(good=True)
    world.settle()
    live = [p for p in world.pods.values() if not p.terminating]
    assert {p.template for p in live} == {world.wanted}, "whatever is lost"
    assert world.up == len(live) == world.desired
    assert world.partition == 0
    world.mend()
    world.settle()
    assert {p.template for p in world.pods.values()} == {world.wanted}
    assert world.up == len(world.pods) == world.replicas == world.desired


@given(replicas=st.integers(1, 5), surge=st.booleans(), seed=SEEDS)
def test_a_bad_template_stops_at_one_replica_and_the_next_edit_recovers_it(replicas, surge, seed):
    world = running(replicas, surge=surge)
    run(world, seed)
    world.mend()
    world.edit(good=True)
    world.settle()
    before = world.desired
    is_surging = surge and before == 1
    world.edit(good=False)
    world.settle()
    assert world.up == max(before - 1, is_surging)
    assert world.taken == (0 if is_surging else 1)
    world.edit(good=True)
    world.settle()
    assert world.up == len(world.pods) == before


@given(seed=SEEDS)
def test_edits_never_leave_a_single_replica_without_a_pod_that_serves(seed):
    world = running(1)

    def check():
        assert world.up >= 1
        assert world.replicas <= 4

    run(world, seed, STEPS | EDITS, check=check)


@given(replicas=st.integers(1, 5), seed=SEEDS)
def test_edits_never_leave_the_gateway_without_a_replica_of_its_own(replicas, seed):
    world = running(replicas)

    def check():
        assert any(p.ready and p.template == world.gateway for p in world.pods.values())

    run(world, seed, STEPS | EDITS, check=check)


@given(replicas=st.integers(2, 5), seed=SEEDS)
def test_edits_and_a_lost_node_never_leave_fewer_than_one_replica(replicas, seed):
    world = running(replicas)
    world.lose(random.Random(seed).randrange(replicas))
    world.settle()
    assert world.up == replicas

    def check():
        assert world.up >= 1

    run(world, seed, STEPS | EDITS | {"mend": 0.1}, check=check)
