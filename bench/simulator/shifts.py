"""How soon the tuner notices that the load has changed, and how often it thinks so by chance: from the counters of the
services."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from simulator.auto import policy
from simulator.costs import GPU
from simulator.rows import measured
from simulator.scenario import Phase, Scenario
from simulator.world import Ended, World
from support.inline import Inline
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.knobs import RAMP_LADDER, Knob, Setting
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.runner import Tuner

_BEFORE, _AFTER = 900.0, 300.0
"""Seconds of a load before it changes, and after that."""
HOURS = 6
"""Of one stationary load."""
_RATES, _OTHER_RATES = (2.5, 5.0), (0.5, 8.0)
"""Range of requests per second: of a load that changes, and of a stationary one."""
_LENGTH = 1.2
"""Seconds of a request's audio: short ones, so that many take little time to simulate."""

Change = Callable[[Phase], Phase]
CHANGES: Mapping[str, Change] = {
    "rate x2": lambda phase: phase._replace(rate=2 * phase.rate),
    "rate x1/2": lambda phase: phase._replace(rate=phase.rate / 2),
    "rate x8": lambda phase: phase._replace(rate=8 * phase.rate),
    "rate x1/8": lambda phase: phase._replace(rate=phase.rate / 8),
    "lengths x3": lambda phase: phase._replace(audio_seconds=3 * phase.audio_seconds),
    "bursts of 6": lambda phase: phase._replace(burst=6.0),
    "3.3 to 0.4 requests/s": lambda phase: phase._replace(rate=0.4),
}


class Shift(Struct, frozen=True, kw_only=True):
    """How soon a change was noticed."""

    noticed_seconds: float
    """Of the run that took longest; `_AFTER` if it was not noticed."""
    median_seconds: float
    runs: int


def noticed(pool: Executor, seeds: Iterable[int]) -> dict[str, Shift]:
    """Returns how soon each change is noticed, with each seed."""
    keys = itertools.product(range(len(CHANGES)), seeds)
    found: dict[str, list[float]] = {name: [] for name in CHANGES}
    for (number, _), seconds in measured(pool, notice, keys, float):
        found[[*CHANGES][number]].append(seconds)
    return {
        name: Shift(noticed_seconds=max(each), median_seconds=median(each), runs=len(each))
        for name, each in found.items()
    }


def mistakes(pool: Executor, seeds: Iterable[int]) -> int:
    """Returns how often stationary loads seemed to have changed, `HOURS` for each seed."""
    return sum(count for _, count in measured(pool, mistaken, [(seed,) for seed in seeds], int))


def notice(number: int, seed: int) -> float:
    """Returns the seconds until a change was noticed."""
    name = [*CHANGES][number]
    randoms = random.Random(f"shift {name} {seed}")
    rate = 3.3 if name.startswith("3.3") else randoms.uniform(*_RATES)
    before = Phase(_BEFORE, rate, _LENGTH)
    after = CHANGES[name](before)._replace(until=_BEFORE + _AFTER)
    times = _noticed(_scenario(f"{name} {seed}", seed, (before, after)), _BEFORE)
    return min((time - _BEFORE for time in times if time > _BEFORE), default=_AFTER)


def mistaken(seed: int) -> int:
    """Returns how often a stationary load seemed to have changed."""
    randoms = random.Random(f"stationary {seed}")
    rate = math.exp(randoms.uniform(*map(math.log, _OTHER_RATES)))
    phase = Phase(3600.0 * HOURS, rate, _LENGTH, randoms.choice((1.0, 2.0, 3.0, 6.0)))
    return len(_noticed(_scenario(f"stationary {seed}", seed, (phase,)), math.inf))


def _scenario(name: str, seed: int, phases: tuple[Phase, ...]) -> Scenario:
    """Returns a machine that serves all of it well: nothing but the load changes."""
    return Scenario(
        name=name,
        seed=seed,
        phases=phases,
        objective=Objective(2.0, 0.5),
        initial=Setting(talker_max_num_seqs=64, codec_max_num_seqs=64, chunk_ramp=RAMP_LADDER[0]),
        costs=GPU,
        resident=64,
    )


def _noticed(scenario: Scenario, until: float) -> Sequence[float]:
    """Returns the times at which a change was noticed, up to the first one after a time."""
    tuner, rules, state = Tuner(audit=lambda _: None, pool=Inline), _rules(scenario), State()
    found: list[float] = []

    def direct(world: World) -> float:
        nonlocal state
        decision = tuner.step("shifts", rules, state, world.observe(), world.clock())
        state = decision.state
        found.extend(world.now for event in decision.events if event.reason == "LoadChanged")
        if found and found[-1] > until:
            raise Ended
        return max(decision.requeue_after, 1.0)

    World(scenario).run(direct)
    return found


def _rules(scenario: Scenario) -> Policy:
    """Returns a policy with nothing to try."""
    initial = scenario.initial
    rows = {knob: (initial.value(knob),) for knob in (Knob.TALKER_ROWS, Knob.CODEC_ROWS)}
    return replace(policy(scenario), rows=rows, ramps=(initial.chunk_ramp,))


def table(found: Mapping[str, Shift], command: str, hours: int, false_per_48h: float) -> list[str]:
    """Returns the lines of a section in Markdown."""
    rows = (
        f"| {name} | {each.median_seconds:.0f} | {each.noticed_seconds:.0f} | {each.runs} |"
        for name, each in found.items()
    )
    return [
        "## Changes of the load",
        "",
        f"Measured by `{command}`: seconds until the tuner says `LoadChanged`. It reads the counters every 10 s. "
        f"Before a change, {_RATES[0]:g} to {_RATES[1]:g} single requests come a second for {_BEFORE / 60:g} minutes. "
        f"In {hours} hours of other, stationary loads with bursts of up to 6 requests, changes were seen "
        f"{false_per_48h:g} times in 48 hours.",
        "",
        "| change | median | longest | runs |",
        "|---|---|---|---|",
        *rows,
        "",
    ]
