"""Breadth-first search over all states of the model, with invariants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, combinations, pairwise
from typing import NamedTuple

from .former import on_former
from .model import FAILED, IDLE, READING, SPLICED, Bounds, Faults, State, Step, on_primary
from .store import FINISHED, Protocol


def combined(count: int) -> list[Bounds]:
    """Returns the models with one fault of each of `count` kinds, for every choice of kinds."""
    chosen = combinations(Faults._fields, count)
    return [Bounds(faults=Faults(**{kind: int(kind in kinds) for kind in Faults._fields})) for kinds in chosen]


Invariant = Callable[[State, Bounds], bool]


def _one_chain(state: State, bounds: Bounds) -> bool:
    """Each entry in Redis continues the one before it, and nothing follows an end."""
    entries = state.primary.entries if state.primary is not None else ()
    return all(not before.end and after.preceding == before.chain for before, after in pairwise(entries))


def _epochs(state: State, bounds: Bounds) -> bool:
    entries = state.primary.entries if state.primary is not None else ()
    return all(a.epoch <= b.epoch for a, b in pairwise(entries))


def _no_duel(state: State, bounds: Bounds) -> bool:
    """Each claim but the first has a fault as its cause."""
    spent = sum(bounds.faults) - sum(state.faults)
    return state.nonces <= 1 + 2 * spent


def _one_chain_read(state: State, bounds: Bounds) -> bool:
    """The reader fails or joins two chains only if a fail-over lost frames whose owner is gone."""
    spent = bounds.faults.promotions > state.faults.promotions
    gone = bounds.faults.crashes > state.faults.crashes or bounds.faults.pauses > state.faults.pauses
    return state.reader not in (FAILED, SPLICED) or (spent and gone)


INVARIANTS: dict[str, Invariant] = {
    "entries in Redis are contiguous, of one chain and have one end": _one_chain,
    "epochs never decrease along a stream": _epochs,
    "claims are issued because of faults only": _no_duel,
    "what is read is of one chain, unless a fail-over lost frames and their owner is gone": _one_chain_read,
}
PROGRESS = "once faults are over, the request can end and nothing stays owned"


class Result(NamedTuple):
    """What a search found."""

    states: int
    depth: int
    violated: str | None = None
    trace: Sequence[tuple[Step, State]] = ()
    """The shortest way to the violation."""


def search(protocol: Protocol, bounds: Bounds) -> Result:
    """Visits every reachable state. Returns the first violation in breadth-first order, so the shortest one."""
    start = State(faults=bounds.faults)
    number = {start: 0}
    states, parents, depths = [start], [(0, Step("submit"))], [0]
    back: dict[int, list[int]] = defaultdict(list)
    index = 0
    while index < len(states):
        steps = (on_primary(states[index], protocol, bounds), on_former(states[index], protocol, bounds))
        for step, state in chain.from_iterable(steps):
            known = number.get(state)
            if known is None:
                known = number[state] = len(states)
                states.append(state)
                parents.append((index, step))
                depths.append(depths[index] + 1)
                for name, holds in INVARIANTS.items():
                    if not holds(state, bounds):
                        return Result(len(states), depths[-1], name, _trace(known, states, parents))
            if not step.fault:
                back[known].append(index)
        index += 1
    stuck = _stuck(states, back)
    if stuck is not None:
        return Result(len(states), depths[-1], PROGRESS, _trace(stuck, states, parents))
    return Result(len(states), depths[-1])


def _stuck(states: Sequence[State], back: dict[int, list[int]]) -> int | None:
    """Returns the first state from which no final state can be reached without another fault."""
    todo = [number for number, state in enumerate(states) if _final(state)]
    reached = bytearray(len(states))
    for number in todo:
        reached[number] = 1
    while todo:
        for before in back[todo.pop()]:
            if not reached[before]:
                reached[before] = 1
                todo.append(before)
    stuck = reached.find(0)
    return None if stuck < 0 else stuck


def _final(state: State) -> bool:
    over = state.primary is None or state.primary.claim == FINISHED
    return over and state.reader != READING and all(owner.phase == IDLE for owner in state.owners)


def _trace(at: int, states: Sequence[State], parents: Sequence[tuple[int, Step]]) -> list[tuple[Step, State]]:
    trace = []
    while at:
        trace.append((parents[at][1], states[at]))
        at = parents[at][0]
    return trace[::-1]
