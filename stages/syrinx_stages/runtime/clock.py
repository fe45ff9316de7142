"""The clock of the services: the event loop's, which a simulation replaces together with the loop."""

import asyncio
import time


def monotonic() -> float:
    """Returns the running event loop's time in seconds, which is that of its timers.

    Without a running loop, it is the machine's monotonic time, as asyncio's own loops use it.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
