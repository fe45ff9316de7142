"""The HTTP requests in progress, and the deadlines that a drain sets for them."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from syrinx_stages.gateway.speech.trace import SpeechSpan

UPLOAD_SECONDS = 5.0
"""How long an unfinished upload may continue during a drain."""
UNWIND_SECONDS = 1.0
"""How long a request whose deadline has passed may take to release what it holds."""


class ActiveRequest:
    """One HTTP request."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.id = uuid.uuid4().hex
        self.limit = limit
        """Expires at the deadline that a drain sets."""
        self.received = False
        """Its body is complete."""
        self.span: SpeechSpan | None = None
        """None if it is not traced."""


class ActiveRequests:
    """The HTTP requests in progress. Without a drain they have no deadline."""

    def __init__(self) -> None:
        self._requests: set[ActiveRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.drain_started = asyncio.Event()
        self._deadline: float | None = None
        """In the event loop's seconds; None before a drain."""

    @property
    def draining(self) -> bool:
        """Whether a drain has started."""
        return self.drain_started.is_set()

    @property
    def expired(self) -> bool:
        """Whether the deadline of a drain has passed."""
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    @contextlib.asynccontextmanager
    async def track(self) -> AsyncIterator[ActiveRequest]:
        """Yields a new request that is active within the block. Raises `TimeoutError` at the deadline of a drain."""
        async with asyncio.timeout(None) as limit:
            request = ActiveRequest(limit)
            self._requests.add(request)
            self._idle.clear()
            self._set_deadline(request)
            try:
                yield request
            finally:
                self._requests.discard(request)
                if not self._requests:
                    self._idle.set()

    def set_received(self, request: ActiveRequest) -> None:
        """Records that the request's body is complete, so that a drain lets the request finish."""
        request.received = True
        self._set_deadline(request)

    async def drain(self, seconds: float) -> None:
        """Waits until no request is active. Those that are after `seconds` are canceled."""
        self._deadline = asyncio.get_running_loop().time() + seconds
        self.drain_started.set()
        for request in self._requests:
            self._set_deadline(request)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds + UNWIND_SECONDS)

    def _set_deadline(self, request: ActiveRequest) -> None:
        if self._deadline is None:
            return
        upload = asyncio.get_running_loop().time() + UPLOAD_SECONDS
        request.limit.reschedule(self._deadline if request.received else min(self._deadline, upload))
