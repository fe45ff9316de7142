"""How tests wait: until a condition holds, with one deadline for everything that happens in a real process."""

import asyncio
import time
from collections.abc import Callable

DEADLINE = 60.0
"""Seconds after which a wait fails its test, also on a busy machine."""


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits by the event loop's clock until `condition()` is true. Raises AssertionError at the deadline."""
    clock = asyncio.get_running_loop().time
    end, pause = clock() + DEADLINE, 0.001
    while not condition():
        assert clock() < end, f"waited {DEADLINE} s until {what}"
        await asyncio.sleep(pause)
        pause = min(1.1 * pause, 0.1)  # A minute of simulated time is not worth 60,000 checks.


def until_blocking(condition: Callable[[], object], what: str) -> None:
    """Waits without an event loop until `condition()` is true. Raises AssertionError at the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE} s until {what}"
        time.sleep(0.01)
