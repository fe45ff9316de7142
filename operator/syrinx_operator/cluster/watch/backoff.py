"""Delays between attempts while requests fail."""

from typing import Final

BASE_DELAY: Final = 0.5
"""Seconds after the first failure."""


def backoff(failures: int, jitter: float, max_delay: float) -> float:
    """Returns the delay in seconds after `failures` (1 or more) in a row; `jitter` in [0, 1] removes up to half."""
    delay = min(max_delay, BASE_DELAY * 2.0 ** min(failures - 1, 16))
    return delay * (1 - jitter / 2)
