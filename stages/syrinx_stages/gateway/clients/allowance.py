"""What one client may use now, by the limits of its API keys. Times are in monotonic seconds."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from syrinx_stages.contract.api_keys import Limits
from syrinx_stages.gateway.errors import ApiError, rate_limited

LimitName = Literal["requests", "streams"]
_WEIGHT = 0.2
"""Weight of the last request in the mean duration."""
MAX_RETRY_SECONDS = 60.0


class LimitExceeded(Exception):
    """A request exceeds a limit of its client. `error` is the response."""

    def __init__(self, limit: LimitName, error: ApiError) -> None:
        super().__init__(limit)
        self.limit = limit
        self.error = error


class Allowance:
    """The requests of a client in progress, and a token bucket for its rate."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        """May be replaced at any time."""
        self._tokens = limits.max_tokens
        self._filled_at = now
        self._in_progress = 0
        self._mean_seconds = 1.0
        """Of a request."""

    def begin(self, now: float) -> None:
        """Counts a request that begins. Raises `LimitExceeded`."""
        limits = self.limits
        if limits.streams is not None and self._in_progress >= limits.streams:
            # If durations are random, the next of n requests ends after the n-th part of the mean.
            wait = min(self._mean_seconds / self._in_progress, MAX_RETRY_SECONDS)
            message = f"{self._in_progress} requests of this API key are in progress, and its limit is {limits.streams}"
            raise LimitExceeded("streams", rate_limited(message, wait))
        if (rate := limits.requests_per_second) is not None:
            self._tokens = min(limits.max_tokens, self._tokens + (now - self._filled_at) * rate)
            self._filled_at = now
            if self._tokens < 1:
                message = f"the limit of this API key is {rate:g} requests a second, {limits.max_tokens:g} at once"
                raise LimitExceeded("requests", rate_limited(message, (1 - self._tokens) / rate))
            self._tokens -= 1
        self._in_progress += 1

    def charge(self, requests: int) -> None:
        """Counts further requests of a batch that has begun. Later requests wait until the rate allows all of them."""
        if self.limits.requests_per_second is not None:
            self._tokens -= requests

    @contextlib.contextmanager
    def reserve(self, streams: int) -> Iterator[int]:
        """Reserves up to `streams` for a batch, the one that has begun included, and yields how many it may use."""
        limit = self.limits.streams
        free = streams if limit is None else 1 + limit - self._in_progress
        reserved = max(1, min(streams, free))
        self._in_progress += reserved - 1
        try:
            yield reserved
        finally:
            self._in_progress -= reserved - 1

    def end(self, seconds: float) -> None:
        """Counts a request that has ended, and took this long."""
        self._in_progress -= 1
        self._mean_seconds += _WEIGHT * (seconds - self._mean_seconds)
