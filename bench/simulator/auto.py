"""The tuner at work in a simulated pipeline: the same loop as the operator's, in simulated time."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from simulator.scenario import Scenario
from simulator.world import Array, World, clock, good
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.decide import Event, assignment, decide, window_start
from syrinx_operator.tuner.policy import Policy, policy_of

_AFTER = 30.0
"""Seconds after a trial in which requests may still suffer from it."""


class Notice(NamedTuple):
    """A decision."""

    at: float
    event: Event


class Tuned(NamedTuple):
    """A run with the tuner at work."""

    world: World
    state: State
    events: tuple[Notice, ...]

    @property
    def chosen(self) -> Setting:
        """What is in force in the end."""
        return self.state.chosen or self.world.scenario.initial

    def finished(self) -> list[Notice]:
        """Trials that ended, with their verdicts."""
        return [each for each in self.events if each.event.reason in ("Promoted", "RolledBack", "Inconclusive")]


def policy(scenario: Scenario, interval: float = 30.0) -> Policy:
    """Auto within what the replicas can hold."""
    usual = policy_of(default_pipeline().spec)
    most = {Knob.TALKER_ROWS: scenario.talker_resident, Knob.CODEC_ROWS: scenario.codec_resident}
    rows = {knob: tuple(sorted({*_rungs(bound), scenario.initial.value(knob)})) for knob, bound in most.items()}
    return msgspec.structs.replace(
        usual,
        mode="Auto",
        interval=interval,
        requested=scenario.initial,
        objectives=dict(scenario.objectives),
        rows=rows,
    )


def tune(scenario: Scenario, rules: Policy, state: State | None = None) -> Tuned:
    """Lets the tuner look after a pipeline for as long as the scenario lasts."""
    world, state, told = World(scenario), state or State(), list[Notice]()
    while world.now < scenario.seconds:
        now = clock(world.now)
        decision = decide(rules, state, world.evidence(window_start(rules, state, now), now), now)
        told += [Notice(world.now, event) for event in decision.events]
        state = decision.state
        world.apply(assignment(rules, state))
        world.run(min(scenario.seconds, world.now + decision.requeue_after))
    return Tuned(world, state, tuple(told))


def harm(tuned: Tuned) -> float:
    """Share of all requests that trials spoiled: how many fewer were served well during each than without it.

    What would have been is another run of the same requests under the trial's baseline. Near its capacity a queue is
    chaotic, so that of two equal settings each serves some requests well that the other does not: what counts is the
    difference over a trial, never below 0.
    """
    scenario, outcomes = tuned.world.scenario, tuned.world.outcomes()
    well = good(outcomes, scenario)
    untouched: dict[Setting, Array] = {}
    lost = 0
    for begin, end, baseline in _trials(tuned):
        if baseline not in untouched:
            untouched[baseline] = _served_well(scenario, baseline)
        during = (outcomes.accepted >= begin) & (outcomes.accepted < end + _AFTER)
        lost += max(0, int(untouched[baseline][: len(well)][during].sum()) - int(well[during].sum()))
    return lost / len(well) if len(well) else 0.0


def _trials(tuned: Tuned) -> list[tuple[float, float, Setting]]:
    """Beginning, end and baseline of each trial that ended."""
    return [
        ((trial.start_time - clock(0.0)).total_seconds(), each.at, trial.baseline)
        for each in tuned.events
        if (trial := each.event.data.get("trial")) is not None and each.event.reason != "TrialExtended"
    ]


def _served_well(scenario: Scenario, setting: Setting) -> Array:
    world = World(msgspec.structs.replace(scenario, initial=setting, scrape_seconds=scenario.seconds))
    world.run(scenario.seconds)
    return good(world.outcomes(), scenario)


def _rungs(most: int) -> tuple[int, ...]:
    return tuple(rung for rung in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rung <= most)
