"""Charges each change of settings with the requests that it made bad.

A twin is a copy of the simulated pipeline from before a change that keeps the setting then in force, the incumbent. It
has the same requests and the same queues. Near capacity a queue is chaotic, so two equal settings differ in individual
requests: only the net difference over a change counts, and at least 0.
"""

from typing import NamedTuple

from simulator.world import World, good
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.tuner.decide import Assignment

CHARGED_SECONDS = 3600.0
"""A change is compared with its incumbent until the next change, and for this time at most."""
_AFTER = 30.0
"""Seconds after a trial in which it may still affect requests."""
_BEYOND = 60.0
"""Seconds after which the outcome of a request is known."""


class _Charge(NamedTuple):
    begin: float
    end: float
    well: int
    """Requests that the twin served well."""


class Twins:
    """Applies assignments to a pipeline, beside its twins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._incumbent = world.scenario.initial
        self._twin: World | None = None
        self._kept = self._incumbent
        """The setting of the twin."""
        self._begin = self._end = 0.0
        self._charges: list[_Charge] = []

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment. A changed base setting or a trial starts a twin, unless it has one."""
        now = self._world.now
        if assignment.base != self._incumbent:
            self._close()
            self._open(self._incumbent, now + CHARGED_SECONDS)
            self._incumbent = assignment.base
        elif assignment.candidate is not None or assignment.label:
            if self._twin is None or self._kept != self._incumbent or now >= self._end:
                self._close()
                self._open(self._incumbent, now)
            self._end = now + _AFTER
        elif now >= self._end:
            self._close()
        self._world.apply(assignment)

    def hurt(self) -> float:
        """Returns the ratio of all requests so far that changes made bad."""
        self._close()
        outcomes = self._world.outcomes()
        well = good(outcomes, self._world.scenario)
        lost = sum(
            max(0, each.well - int(well[(outcomes.accepted >= each.begin) & (outcomes.accepted < each.end)].sum()))
            for each in self._charges
        )
        return lost / len(well) if len(well) else 0.0

    def _open(self, incumbent: Setting, end: float) -> None:
        self._twin = self._world.copy()
        self._twin.apply(Assignment(base=incumbent))
        self._kept, self._begin, self._end = incumbent, self._world.now, end

    def _close(self) -> None:
        if self._twin is None:
            return
        end = min(self._end, self._world.now)
        self._twin.run(min(end + _BEYOND, self._world.scenario.seconds))
        outcomes = self._twin.outcomes()
        during = (outcomes.accepted >= self._begin) & (outcomes.accepted < end)
        well = int(good(outcomes, self._world.scenario)[during].sum())
        self._charges.append(_Charge(self._begin, end, well))
        self._twin = None
