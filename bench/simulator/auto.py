"""Runs the tuner on simulated services, as the operator and `syrinx up` run it."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import msgspec

from simulator.scenario import Scenario
from simulator.twins import Twins
from simulator.world import World
from syrinx_operator.resource.knobs import ROWS_LADDER, Knob, Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.decide import assignment
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.stages import Stage
from syrinx_stages.scheduling.traits import CPU, GPU


class Notice(NamedTuple):
    """An event and its time."""

    at: float
    event: Event


class Tuned(NamedTuple):
    """Result of a simulated run with the tuner."""

    world: World
    state: State
    events: tuple[Notice, ...]
    hurt: float
    """Ratio of all requests that changes and trials made bad."""

    @property
    def chosen(self) -> Setting:
        """The setting in force at the end."""
        return self.state.chosen or self.world.scenario.initial

    def finished(self) -> list[Notice]:
        """Returns the events of trials that ended with a verdict."""
        return [each for each in self.events if each.event.reason in ("Promoted", "RolledBack", "Inconclusive")]


class AtOnce(Executor):
    """Computes in no simulated time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Returns a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def policy(scenario: Scenario) -> Policy:
    """Returns an Auto policy within the replicas' capacity."""
    usual = policy_of(resolve(default_pipeline()))
    rows = {
        knob: tuple(
            sorted({scenario.initial.value(knob), *(rows for rows in ROWS_LADDER if rows <= scenario.resident)})
        )
        for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS)
    }
    return msgspec.structs.replace(
        usual,
        mode="Auto",
        interval=30.0,
        requested=scenario.initial,
        objectives={scenario.task_type: scenario.objective},
        rows=rows,
        residents=dict.fromkeys((Stage.TALKER, Stage.CODEC), scenario.resident),
        max_queue_seconds=scenario.max_queue_seconds,
        traits=GPU if scenario.costs.is_gpu else CPU,
    )


def tune(scenario: Scenario, rules: Policy, state: State | None = None) -> Tuned:
    """Runs the tuner on the services of a scenario."""
    events: list[Notice] = []
    tuner = Tuner(audit=lambda _: None, pool=AtOnce)
    known, world = state or State(), World(scenario)
    twins = Twins(world)

    def direct(world: World) -> float:
        nonlocal known
        decision = tuner.step("simulated", rules, known, world.observe(), world.clock())
        known = decision.state
        events.extend(Notice(world.now, event) for event in decision.events)
        twins.apply(assignment(rules, known))
        return max(decision.requeue_after, 1.0)

    world.run(direct)
    return Tuned(world, known, tuple(events), twins.hurt())
