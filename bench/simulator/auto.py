"""Runs the tuner on simulated services, as the operator and `syrinx up` run it."""

from typing import NamedTuple

import msgspec

from simulator.scenario import Scenario
from simulator.twins import Twins
from simulator.world import World
from support.inline import Inline
from syrinx_operator.resource.knobs import ROWS_LADDER, Knob
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.state.tuning_status import State
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
    tuner = Tuner(audit=lambda _: None, pool=Inline)
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
