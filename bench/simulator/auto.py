"""Runs the tuner on a simulated pipeline: the operator's loop in simulated time."""

from typing import NamedTuple

import msgspec

from simulator.scenario import Scenario
from simulator.twins import Twins
from simulator.world import World, clock
from syrinx_operator.resource.knobs import ROWS_LADDER, Knob, Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.capacity import capacity
from syrinx_operator.tuner.decide import assignment, decide
from syrinx_operator.tuner.plan import plan
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_stages.contract.stages import Stage


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


def policy(scenario: Scenario) -> Policy:
    """Returns an Auto policy within the replicas' capacity."""
    usual = policy_of(resolve(default_pipeline()))
    limits = {Knob.TALKER_ROWS: scenario.talker_resident, Knob.CODEC_ROWS: scenario.codec_resident}
    rows = {
        knob: tuple(sorted({scenario.initial.value(knob), *(rows for rows in ROWS_LADDER if rows <= limit)}))
        for knob, limit in limits.items()
    }
    return msgspec.structs.replace(
        usual,
        mode="Auto",
        interval=30.0,
        requested=scenario.initial,
        objectives=dict(scenario.objectives),
        rows=rows,
        residents={Stage.TALKER: scenario.talker_resident, Stage.CODEC: scenario.codec_resident},
        max_queue_seconds=scenario.max_queue_seconds,
    )


def tune(scenario: Scenario, rules: Policy, state: State | None = None) -> Tuned:
    """Runs the tuner on a simulated pipeline for the length of the scenario."""
    world, state, events = World(scenario), state or State(), list[Notice]()
    twins = Twins(world)
    while world.now < scenario.seconds:
        now = clock(world.now)
        decision = decide(rules, state, world.evidence, plan, capacity, now)
        events += [Notice(world.now, event) for event in decision.events]
        state = decision.state
        twins.apply(assignment(rules, state))
        world.run(min(scenario.seconds, world.now + decision.requeue_after))
    return Tuned(world, state, tuple(events), twins.hurt())
