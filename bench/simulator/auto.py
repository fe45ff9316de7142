"""Runs the tuner on a simulated pipeline: the operator's loop in simulated time."""

from typing import NamedTuple

import msgspec

from simulator.layout import Array
from simulator.scenario import Scenario
from simulator.world import World, clock, good, run_fixed
from syrinx_operator.resource.knobs import ROWS_LADDER, Knob, Setting
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.decide import Event, assignment, decide, window_start
from syrinx_operator.tuner.policy import Policy, policy_of

_AFTER = 30.0
"""Seconds after a trial in which it may still affect requests."""


class Notice(NamedTuple):
    """An event and its time."""

    at: float
    event: Event


class Tuned(NamedTuple):
    """Result of a simulated run with the tuner."""

    world: World
    state: State
    events: tuple[Notice, ...]

    @property
    def chosen(self) -> Setting:
        """The setting in force at the end."""
        return self.state.chosen or self.world.scenario.initial

    def finished(self) -> list[Notice]:
        """Returns the events of trials that ended with a verdict."""
        return [each for each in self.events if each.event.reason in ("Promoted", "RolledBack", "Inconclusive")]


def policy(scenario: Scenario) -> Policy:
    """Returns an Auto policy within the replicas' capacity."""
    usual = policy_of(default_pipeline().spec)
    limits = {Knob.TALKER_ROWS: scenario.talker_resident, Knob.CODEC_ROWS: scenario.codec_resident}
    rows = {
        knob: tuple(sorted({scenario.initial.value(knob), *(rows for rows in ROWS_LADDER if rows <= limit)}))
        for knob, limit in limits.items()
    }
    return msgspec.structs.replace(
        usual, mode="Auto", interval=30.0, requested=scenario.initial, objectives=dict(scenario.objectives), rows=rows
    )


def tune(scenario: Scenario, rules: Policy, state: State | None = None) -> Tuned:
    """Runs the tuner on a simulated pipeline for the length of the scenario."""
    world, state, events = World(scenario), state or State(), list[Notice]()
    while world.now < scenario.seconds:
        now = clock(world.now)
        decision = decide(rules, state, world.evidence(window_start(rules, state, now), now), now)
        events += [Notice(world.now, event) for event in decision.events]
        state = decision.state
        world.apply(assignment(rules, state))
        world.run(min(scenario.seconds, world.now + decision.requeue_after))
    return Tuned(world, state, tuple(events))


def harm(tuned: Tuned) -> float:
    """Returns the ratio of all requests that trials made bad.

    The counterfactual is a run of the same requests under the trial's baseline. Near capacity a queue is chaotic, so
    two equal settings differ in individual requests. Only the net difference over a trial counts, and at least 0.
    """
    scenario, outcomes = tuned.world.scenario, tuned.world.outcomes()
    well = good(outcomes, scenario)
    untouched: dict[Setting, Array] = {}
    lost = 0
    for at, event in tuned.events:
        trial = event.data.get("trial")
        if trial is None or event.reason == "TrialExtended":
            continue
        baseline = trial.baseline
        if baseline not in untouched:
            untouched[baseline] = good(run_fixed(scenario, baseline), scenario)
        begin = (trial.start_time - clock(0.0)).total_seconds()
        during = (outcomes.accepted >= begin) & (outcomes.accepted < at + _AFTER)
        lost += max(0, int(untouched[baseline][: len(well)][during].sum()) - int(well[during].sum()))
    return lost / len(well) if len(well) else 0.0
