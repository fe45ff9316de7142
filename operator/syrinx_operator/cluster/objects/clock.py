"""The operator's clocks: the time of day, and the event loop's, which a simulation replaces together with the loop."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
"""Returns the time of day with its time zone."""


def utc_now() -> datetime:
    """Returns this machine's time of day."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Returns the running event loop's time in seconds, which is that of its timers."""
    return asyncio.get_running_loop().time()
