"""Charges each change of settings with the requests that it made bad.

A twin is a copy of the whole simulation from before a change that keeps the setting then in force, the incumbent: a
child process, which has the same requests and the same queues. Near capacity a queue is chaotic, so two equal settings
differ in individual requests: only the net difference over a change counts, and at least 0.
"""

import asyncio
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from simulator.listeners import Outcome
from simulator.world import Diverted, World
from syrinx_operator.tuner.decide import Assignment

CHARGED_SECONDS = 600.0
"""A change is compared with its incumbent until the next change, and for this time at most."""
_AFTER = 30.0
"""Seconds after a trial in which it may still affect requests."""
_BEYOND = 30.0
"""Seconds after which the outcome of a request is known."""


async def _live(incumbent: Assignment, until: float, file: Path, world: World) -> None:
    """Keeps the incumbent, writes the outcomes of the requests, and ends this process, the twin."""
    begin = world.now
    while world.now < until:
        world.apply(incumbent)
        await asyncio.sleep(min(60.0, until - world.now))
    await asyncio.sleep(_BEYOND)
    outcomes = [each for each in world.outcomes if begin <= each.at < until]
    file.write_bytes(msgspec.msgpack.encode(outcomes))  # noqa: ASYNC240
    os._exit(0)


class _Twin(NamedTuple):
    process: int
    file: Path
    begin: float
    end: float
    """Of what is compared."""


class Twins:
    """Applies assignments to a simulation, beside its twins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._incumbent = world.scenario.initial
        self._twins: list[_Twin] = []
        self._folder = tempfile.TemporaryDirectory(prefix="twins-")
        self._in_trial_until = 0.0

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment. A changed base setting, and the begin of a trial, start a twin."""
        now = self._world.now
        is_trial = assignment.candidate is not None or bool(assignment.label)
        if assignment.base != self._incumbent:
            self._open(now + CHARGED_SECONDS)
            self._incumbent = assignment.base
        elif is_trial and now > self._in_trial_until:
            self._open(now + CHARGED_SECONDS)
        if is_trial:
            self._in_trial_until = now + _AFTER
        self._world.apply(assignment)

    def hurt(self) -> float:
        """Returns the ratio of all requests that changes made bad. Waits for the twins."""
        limit, lost = self._world.scenario.objective.seconds, 0
        for twin in self._twins:
            os.waitpid(twin.process, 0)
            kept = msgspec.msgpack.decode(twin.file.read_bytes(), type=list[Outcome])
            lost += max(0, _well(kept, twin, limit) - _well(self._world.outcomes, twin, limit))
        self._folder.cleanup()
        return lost / max(len(self._world.outcomes), 1)

    def _open(self, end: float) -> None:
        now, end = self._world.now, min(end, self._world.scenario.seconds)
        if self._twins and self._twins[-1].end > now:
            self._twins[-1] = self._twins[-1]._replace(end=now)
        file = Path(self._folder.name) / f"{len(self._twins)}"
        if (process := os.fork()) == 0:
            # asyncio notices the new process, and asks which loop runs in it.
            asyncio._set_running_loop(self._world.loop)
            raise Diverted(partial(_live, Assignment(base=self._incumbent), end, file))
        self._twins.append(_Twin(process, file, now, end))


def _well(outcomes: list[Outcome], twin: _Twin, limit: float) -> int:
    return sum(outcome.is_well(limit) for outcome in outcomes if twin.begin <= outcome.at < twin.end)
