"""The code entries that a process's talker passes to its codec in memory, while they are being written to Redis.

An audio entry is written only after the codes that it was decoded from, so a replica that takes the request over finds
every frame that the client may have received.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from syrinx_stages.connector.base import Append, Gone, StreamEntry, Superseded
from syrinx_stages.connector.memory_streams import MemoryStream, StreamListener
from syrinx_stages.contract.keys import Position, StreamKind


class _Codes(MemoryStream):
    """The code entries of one request, and which of them Redis does not have yet."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.unwritten: deque[Position] = deque()
        self.refusal: Gone | Superseded | None = None


class CodesBuffer:
    """The codes of the requests that a process serves. Implements `memory.StreamSource` for the codec's reader."""

    def __init__(self) -> None:
        self.listeners: set[StreamListener] = set()
        self._codes: dict[str, _Codes] = {}
        self._changed = asyncio.Event()

    def open(self, request_id: str) -> None:
        """Creates the buffer of a request; discards an earlier one."""
        self.close(request_id)
        self._codes[request_id] = _Codes()

    def close(self, request_id: str) -> None:
        """Deletes the buffer of a request. Audio that depends on its unwritten codes is not written."""
        codes = self._codes.pop(request_id, None)
        if codes is not None:
            codes.refusal = codes.refusal or _not_served(request_id)
            self._changed.set()

    def cancel(self, request_id: str) -> None:
        """Notifies the codec that this process no longer serves a request."""
        for listener in self.listeners:
            listener.cancel(request_id)

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """Returns a request's codes while its buffer exists."""
        return self._codes.get(request_id) if kind is StreamKind.CODES else None

    def restore(self, entries: Sequence[StreamEntry]) -> None:
        """Adds the entries that Redis has of a request that was taken over."""
        for item in entries:
            codes = self._codes.get(item.request_id)
            if codes is not None and codes.write(item.position, item.entry):
                self._notify(item.request_id)

    def add(self, appends: Sequence[Append]) -> None:
        """Adds entries that the talker is about to write to Redis."""
        for append in appends:
            codes = self._codes.get(append.request_id)
            if codes is not None and codes.write(append.position, append.entry):
                codes.unwritten.append(append.position)
                self._notify(append.request_id)

    def set_outcome(self, append: Append, refusal: Gone | Superseded | None) -> None:
        """Records that Redis has accepted or refused an entry."""
        codes = self._codes.get(append.request_id)
        if codes is None:
            return
        codes.refusal = codes.refusal or refusal
        while codes.unwritten and codes.unwritten[0] <= append.position:
            codes.unwritten.popleft()
        self._changed.set()

    async def wait_written(self, append: Append) -> Gone | Superseded | None:
        """Waits until the codes of an audio entry are written. Returns an error if they never will be."""
        codes = self._codes.get(append.request_id)
        if codes is None:
            return _not_served(append.request_id)
        while codes.refusal is None and codes.unwritten and codes.unwritten[0] <= append.position:
            self._changed.clear()
            await self._changed.wait()
        return codes.refusal

    def _notify(self, request_id: str) -> None:
        for listener in self.listeners:
            listener.notify(request_id, StreamKind.CODES)


def _not_served(request_id: str) -> Gone:
    return Gone(f"request {request_id} is no longer served by this process")
