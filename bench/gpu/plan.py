"""Which loads are tried, for how long, at which settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

Ramp = tuple[int, ...]

LOOPS = ("open", "closed", "live")


class Load(Struct, frozen=True):
    """One point."""

    loop: Literal["open", "closed"]
    amount: float
    """Requests a second, or clients at once."""
    seconds: float


class LivePlan(Struct, frozen=True):
    """The search for the number of live streams."""

    start: int = 128
    most: int = 1536
    gather: float = 4.0
    """Seconds in which listeners come; what they hear of it does not count. About an utterance's length."""
    hold: float = 10.0


class Plan(Struct, frozen=True, kw_only=True):
    """A run."""

    warm_up: Sequence[tuple[int, float]] = ((1, 1.0), (8, 2.0), (64, 3.0))
    """Clients at once and seconds, one after the other; not counted."""
    loads: Sequence[Load]
    live: LivePlan | None = LivePlan()
    early_ramp: Ramp = (2, 2, 4, 8, 12)
    """Of points with few streams: it is heard soonest."""
    busy_ramp: Ramp = (2, 4, 8, 12)
    """Of points with many: fewer, larger calls."""
    busy_from_rate: float = 20.0
    busy_from_clients: int = 32

    def ramp(self, load: Load) -> Ramp:
        """The chunk ramp of a point."""
        busy = self.busy_from_rate if load.loop == "open" else self.busy_from_clients
        return self.busy_ramp if load.amount >= busy else self.early_ramp


RATES = {1: 40, 2: 25, 4: 15, 8: 12, 10: 12, 20: 10, 40: 10, 80: 10}
"""Seconds by requests a second: forty requests at least, so that one in twenty is more than an accident."""
CLIENTS = {1: 12, 4: 10, 8: 8, 16: 8, 32: 8, 64: 10, 128: 8}
"""Seconds by clients at once."""

USUAL_SECONDS = 10.0
"""Of a load that the plan has no seconds for."""

FULL = Plan(
    loads=[
        *(Load("open", rate, seconds) for rate, seconds in RATES.items()),
        *(Load("closed", clients, seconds) for clients, seconds in CLIENTS.items()),
    ],
)
QUICK = Plan(
    loads=[
        *(Load("open", rate, seconds) for rate, seconds in {1: 15, 20: 6, 80: 6}.items()),
        *(Load("closed", clients, 5) for clients in (1, 4, 64)),
    ],
    warm_up=((1, 1.0), (64, 2.0)),
    live=LivePlan(start=256, gather=3.0, hold=5.0),
)
CPU = Plan(
    loads=[Load("open", 1, 6), Load("open", 2, 5), Load("closed", 1, 4), Load("closed", 4, 5)],
    warm_up=((1, 1.0),),
    live=LivePlan(start=2, most=8, gather=2.0, hold=3.0),
)
"""For a processor and the bundled voice: it shows that everything works, no more."""


def only(plan: Plan, loops: Sequence[str], rates: Sequence[float], clients: Sequence[int]) -> Plan:
    """The plan without other loops; `rates` and `clients`, where any are given, take the place of its own."""
    asked = {"open": {load.amount: load.seconds for load in plan.loads if load.loop == "open"}}
    asked["closed"] = {load.amount: load.seconds for load in plan.loads if load.loop == "closed"}
    wanted: dict[Literal["open", "closed"], Sequence[float]] = {
        "open": rates or tuple(asked["open"]),
        "closed": clients or tuple(asked["closed"]),
    }
    loads = [
        Load(loop, amount, asked[loop].get(amount, USUAL_SECONDS))
        for loop, amounts in wanted.items()
        if loop in loops
        for amount in amounts
    ]
    return structs.replace(plan, loads=loads, live=plan.live if "live" in loops else None)
