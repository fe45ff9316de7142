"""The code entries that a process's talker passes to its codec in memory, while they are being written to Redis.

An audio entry is written only after the codes that it was decoded from, so a replica that takes the request over finds
every frame that the client may have received.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from syrinx_stages.connector.base import Append, Behind, Cancelled, Event, Fence, Gone, Refusal, StreamEntry
from syrinx_stages.contract.keys import Position, StreamKind


class _Codes:
    """The code entries of one request."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.entries: list[StreamEntry] = []
        self.unwritten: deque[Append] = deque()
        """The entries that Redis does not have yet."""
        self.refusal: Refusal | None = None
        self.after: Position | None = None
        """Position up to which the codec has read; None while it is not subscribed."""

    def add(self, entry: StreamEntry) -> bool:
        """Returns False if the buffer is already at or past the entry's position."""
        if self.entries and entry.position <= self.entries[-1].position:
            return False
        self.entries.append(entry)
        return True

    def read(self) -> Sequence[StreamEntry]:
        """Returns the entries that the codec has not read."""
        if self.after is None:
            return ()
        new = self.entries[bisect_right(self.entries, self.after, key=lambda entry: entry.position) :]
        if new:
            self.after = new[-1].position
        return new


class CodesBuffer:
    """The codes of the requests that a process serves. Implements `base.Reader` for the codec."""

    def __init__(self) -> None:
        self._codes: dict[str, _Codes] = {}
        self._cancelled: list[str] = []
        self._readable = asyncio.Event()
        self._outcome_known = asyncio.Event()
        self._closed = False

    def create(self, request_id: str, fence: Fence) -> None:
        """Creates the buffer of a claimed request; discards that of an earlier claim."""
        self.discard(request_id)
        self._codes[request_id] = _Codes(fence)

    def discard(self, request_id: str) -> None:
        """Deletes the buffer of a request. Audio that depends on its unwritten codes is not written."""
        codes = self._codes.pop(request_id, None)
        if codes is not None:
            codes.refusal = codes.refusal or _not_served(request_id)
            self._outcome_known.set()

    # The talker's side ------------------------------------------------------------------------------------------

    def cancel(self, request_id: str) -> None:
        """Notifies the codec that this process no longer serves a request."""
        self._cancelled.append(request_id)
        self._readable.set()

    def restore(self, entries: Sequence[StreamEntry]) -> None:
        """Adds the entries that Redis has of a request that was taken over."""
        for entry in entries:
            if (codes := self._codes.get(entry.request_id)) is not None:
                codes.add(entry)
                self._readable.set()

    def add(self, appends: Sequence[Append]) -> None:
        """Adds entries that the talker is about to write to Redis."""
        for append in appends:
            codes = self._codes.get(append.request_id)
            if codes is not None and codes.add(append):
                codes.unwritten.append(append)
                self._readable.set()

    def set_outcome(self, append: Append, refusal: Refusal | None) -> None:
        """Records that Redis has accepted or refused an entry. A stream that is behind is written again."""
        codes = self._codes.get(append.request_id)
        if codes is None or codes.fence != append.fence or isinstance(refusal, Behind):
            return
        codes.refusal = codes.refusal or refusal
        while codes.unwritten and codes.unwritten[0].position <= append.position:
            codes.unwritten.popleft()
        self._outcome_known.set()

    # The codec's side -------------------------------------------------------------------------------------------

    async def wait_written(self, append: Append) -> Refusal | None:
        """Waits until the codes of an audio entry are written. Returns an error if they never will be."""
        codes = self._codes.get(append.request_id)
        if codes is None:
            return _not_served(append.request_id)
        while codes.refusal is None and codes.unwritten and codes.unwritten[0].after < append.position:
            self._outcome_known.clear()
            await self._outcome_known.wait()
        return codes.refusal

    def subscribe(self, request_id: str, kind: StreamKind, after: Position) -> None:
        if (codes := self._codes.get(request_id)) is not None:
            codes.after = after
            self._readable.set()

    def unsubscribe(self, request_id: str, kind: StreamKind) -> None:
        if (codes := self._codes.get(request_id)) is not None:
            codes.after = None

    async def read(self) -> Sequence[Event]:
        while not self._closed:
            events: list[Event] = [Cancelled(request_id) for request_id in self._cancelled]
            self._cancelled.clear()
            for codes in self._codes.values():
                events += codes.read()
            if events:
                return events
            self._readable.clear()
            await self._readable.wait()
        return ()

    async def close(self) -> None:
        self._closed = True
        self._readable.set()


def _not_served(request_id: str) -> Gone:
    return Gone(f"request {request_id} is no longer served by this process")
