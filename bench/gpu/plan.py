"""The loads of a service benchmark, and the search for the maximum number of listeners. Pure."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal

from msgspec import Struct, structs

from syrinx_operator.commands.bench.stats import Point

Ramp = tuple[int, ...]

LOOPS = ("open", "closed", "live")
MAX_TTFA_SECONDS = 0.5
"""Limit of the TTFA p95 at a number of listeners that counts as served."""
SEARCH_PRECISION = 16
"""The search for the maximum ends when it is known within one part in this many."""


class Load(Struct, frozen=True):
    """A load point."""

    loop: Literal["open", "closed"]
    amount: float
    """Requests per second (open), or concurrent clients (closed)."""
    seconds: float


class LivePlan(Struct, frozen=True):
    """The search for the maximum number of live listeners."""

    start: int = 128
    limit: int = 1536
    ramp_up: float = 4.0
    """Seconds in which listeners start, about an utterance's length; utterances requested then do not count."""
    hold: float = 10.0
    """Seconds after `ramp_up`."""


class Plan(Struct, frozen=True, kw_only=True):
    """The plan of a run."""

    warm_up: Sequence[tuple[int, float]] = ((1, 1.0), (8, 2.0), (64, 3.0))
    """(concurrent clients, seconds) of closed loops that are not measured."""
    loads: Sequence[Load]
    live: LivePlan | None = LivePlan()
    early_ramp: Ramp = (2, 2, 4, 8, 12)
    """Chunk ramp of points with few streams, for the lowest latency."""
    busy_ramp: Ramp = (2, 4, 8, 12)
    """Chunk ramp of points with many streams: fewer, larger calls."""
    busy_from_rate: float = 20.0
    busy_from_clients: int = 32

    def ramp(self, load: Load) -> Ramp:
        """Returns the chunk ramp of a point."""
        busy = self.busy_from_rate if load.loop == "open" else self.busy_from_clients
        return self.busy_ramp if load.amount >= busy else self.early_ramp


SECONDS_BY_RATE = {1: 40, 2: 25, 4: 15, 8: 12, 10: 12, 20: 10, 40: 10, 80: 10}
"""At least forty requests each, so that the p95 is not a single outlier."""
SECONDS_BY_CLIENTS = {1: 12, 4: 10, 8: 8, 16: 8, 32: 8, 64: 10, 128: 8}
DEFAULT_SECONDS = 10.0
"""For loads that are not in the plan."""

FULL = Plan(
    loads=[
        *(Load("open", rate, seconds) for rate, seconds in SECONDS_BY_RATE.items()),
        *(Load("closed", clients, seconds) for clients, seconds in SECONDS_BY_CLIENTS.items()),
    ],
)
QUICK = Plan(
    loads=[
        *(Load("open", rate, seconds) for rate, seconds in {1: 15, 20: 6, 80: 6}.items()),
        *(Load("closed", clients, 5) for clients in (1, 4, 64)),
    ],
    warm_up=((1, 1.0), (64, 2.0)),
    live=LivePlan(start=256, ramp_up=3.0, hold=5.0),
)
CPU = Plan(
    loads=[Load("open", 1, 6), Load("open", 2, 5), Load("closed", 1, 4), Load("closed", 4, 5)],
    warm_up=((1, 1.0),),
    live=LivePlan(start=2, limit=8, ramp_up=2.0, hold=3.0),
)
"""A smoke test for the bundled voice on a CPU."""


def select(plan: Plan, loops: Sequence[str], rates: Sequence[float], clients: Sequence[int]) -> Plan:
    """Returns the plan restricted to `loops`; nonempty `rates` and `clients` replace the plan's own."""
    seconds = {loop: {load.amount: load.seconds for load in plan.loads if load.loop == loop} for loop in LOOPS}
    amounts: dict[Literal["open", "closed"], Sequence[float]] = {
        "open": rates or tuple(seconds["open"]),
        "closed": clients or tuple(seconds["closed"]),
    }
    loads = [
        Load(loop, amount, seconds[loop].get(amount, DEFAULT_SECONDS))
        for loop in amounts
        if loop in loops
        for amount in amounts[loop]
    ]
    return structs.replace(plan, loads=loads, live=plan.live if "live" in loops else None)


def is_gap_free(point: Point) -> bool:
    """Returns True if all utterances were completed without a gap and with a TTFA within the limit."""
    return point.underrun_share == 0.0 and _is_fast(point)


def is_nearly_gap_free(point: Point, share: float = 0.01) -> bool:
    """Like `is_gap_free`, but allows gaps in less than this share of the utterances."""
    return point.underrun_share is not None and point.underrun_share < share and _is_fast(point)


def _is_fast(point: Point) -> bool:
    return not point.errors and point.ttfa is not None and point.ttfa.p95 <= MAX_TTFA_SECONDS


def search_max(start: int, limit: int) -> Generator[int, bool, int]:
    """Searches the maximum level that passes, by doubling and then bisecting.

    Yields levels to try, receives whether each passes, and returns the highest that did (0 if none).
    """
    low, high, level = 0, limit + 1, start
    while level < high:
        if (yield level):
            low, level = level, min(2 * level, limit) if level < limit else high
        else:
            high = level
    while high - low > max(1, high // SEARCH_PRECISION):
        level = (low + high) // 2
        if (yield level):
            low = level
        else:
            high = level
    return low
