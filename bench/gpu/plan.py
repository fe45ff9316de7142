"""The loads of a service benchmark, its requests, and the search for the maximum number of listeners. Pure."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from statistics import NormalDist

from msgspec import Struct, structs

from gpu.references import TRANSCRIPT
from syrinx_operator.commands.bench.load import Script, corpus
from syrinx_operator.commands.bench.stats import Point
from syrinx_stages.contract.family import FAMILY

LOOPS = ("open", "closed", "live", "burst")
MAX_TTFA_SECONDS = 0.5
"""Limit of the TTFA p95 at a number of listeners that counts as served."""
SEARCH_PRECISION = 16
"""The search for the maximum ends when it is known within one part in this many."""
NEAR_LEVELS = 4
"""Levels that a repeated search tries at most, around the maximum of the first one: a minute."""
BURST_SECONDS = 4.0
"""Time for a burst to end before the next one."""
DEFAULT_SECONDS = 10.0
"""For loads that are not in the plan."""
MEAN_SECONDS = 38.0 / 9.1
"""Mean utterance of Seed-TTS EN: 38.0 audio seconds per second at 9.1 requests/s (sglang-omni #1635), 4.18 s."""
LOG_STD = 0.4
"""Standard deviation of the length's logarithm. Our assumption: only the mean is published."""
MIN_SECONDS, MAX_SECONDS = 1.0, 15.0


class Plan(Struct, frozen=True, kw_only=True):
    """The plan of a run."""

    warm_up: Sequence[tuple[int, float]] = ((1, 1.0), (8, 2.0), (64, 3.0))
    """(concurrent clients, seconds) of closed loops that are not measured."""
    open: Mapping[float, float]
    """Seconds by requests per second."""
    closed: Mapping[float, float]
    """Seconds by concurrent clients."""
    bursts: Sequence[tuple[int, int]] = ((128, 5),)
    """(requests at once, number of such bursts)."""
    live: tuple[int, int] | None = (128, 2048)
    """The number of listeners that the search starts with, and the limit for each GPU."""
    repeat: int = 1
    """Number of searches; each after the first starts at the maximum of the one before."""
    ramp_up: float = 4.0
    """Seconds in which listeners start, about an utterance's length; utterances requested then do not count."""
    hold: float = 10.0
    """Seconds after `ramp_up`."""

    def select(
        self,
        loops: Sequence[str],
        rates: Sequence[float],
        clients: Sequence[float],
        listeners: int,
        gpus: int = 1,
        repeat: int = 1,
    ) -> Plan:
        """Returns the plan restricted to `loops`; other arguments, unless they are empty or 0, replace its loads."""
        live = self.live and (listeners or self.live[0], self.live[1] * gpus)
        return structs.replace(
            self,
            open={rate: self.open.get(rate, DEFAULT_SECONDS) for rate in rates or self.open if "open" in loops},
            closed={n: self.closed.get(n, DEFAULT_SECONDS) for n in clients or self.closed if "closed" in loops},
            bursts=self.bursts if "burst" in loops else (),
            live=live if "live" in loops else None,
            repeat=repeat,
        )


FULL = Plan(
    # At least forty requests each, so that the p95 is not a single outlier.
    open={1: 40, 2: 25, 4: 15, 8: 12, 10: 12, 20: 10, 40: 10, 80: 10},
    closed={1: 12, 4: 10, 8: 8, 16: 8, 32: 8, 64: 10, 128: 8},
)
QUICK = Plan(
    warm_up=((1, 1.0), (64, 2.0)),
    open={1: 15, 20: 6, 80: 6},
    closed={1: 5, 4: 5, 64: 5},
    bursts=((128, 2),),
    live=(256, 2048),
    ramp_up=3.0,
    hold=5.0,
)
BASE_RATES = (10.0,)
"""Requests per second of cloned voices, unless others are given."""
CPU = Plan(
    warm_up=((1, 1.0),), open={1: 6, 2: 5}, closed={1: 4, 4: 5}, bursts=((4, 1),), live=(2, 8), ramp_up=2.0, hold=3.0
)
"""A smoke test for the bundled voice on a CPU."""


def length_seconds(quantile: float) -> float:
    """Returns a quantile (0 to 1, exclusive) of the utterance length: log-normal, clipped."""
    mean = math.log(MEAN_SECONDS) - LOG_STD**2 / 2
    return min(max(math.exp(mean + LOG_STD * NormalDist().inv_cdf(quantile)), MIN_SECONDS), MAX_SECONDS)


def make_script(
    voices: Sequence[str],
    fixed_lengths: bool,
    seed: int = 0,
    references: Sequence[str] = (),
    checks: bool | None = None,
) -> Script:
    """Returns the requests. With `fixed_lengths` they set the utterance length, because the model never ends one.

    They clone the voices of `references`, if there are any, in turn. `checks`: of segments; None: unless the lengths
    are fixed, because what random weights generate is no speech.
    """
    texts = corpus()
    # One text token per frame, as in the published measurements.
    fields: list[dict[str, object]] = [{"non_streaming_mode": False} for _ in texts]
    if fixed_lengths:
        for rank, field in enumerate(fields):  # Long texts get long utterances.
            field["max_new_tokens"] = round(length_seconds((rank + 0.5) / len(texts)) / FAMILY.frame_seconds)
    for field in fields if checks is not None or fixed_lengths else ():
        field["runaway_guard"] = bool(checks)
    for index, field in enumerate(fields if references else ()):
        field["ref_audio"] = references[index % len(references)]
        field["ref_text"] = TRANSCRIPT
    return Script(texts, voices, seed, fields)


def is_gap_free(point: Point) -> bool:
    """Returns True if all utterances were completed without a gap and with a TTFA within the limit."""
    is_fast = point.ttfa is not None and point.ttfa.p95 <= MAX_TTFA_SECONDS
    return point.underrun_share == 0.0 and not point.errors and is_fast


def search_near(start: int, limit: int) -> Generator[int, bool, int]:
    """Searches the maximum level that passes near a known one: up by the search's precision, down in growing steps.

    Yields at most `NEAR_LEVELS` levels to try, receives whether each passes, and returns the highest that did (0 if
    none).
    """
    step = max(1, start // SEARCH_PRECISION)
    if (yield start):
        best = start
        for level in range(start + step, limit + 1, step)[: NEAR_LEVELS - 1]:
            if not (yield level):
                break
            best = level
        return best
    for power in range(1, NEAR_LEVELS):
        lower = max(0, start - ((1 << power) - 1) * step)
        if lower and (yield lower):
            return lower
    return 0


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
