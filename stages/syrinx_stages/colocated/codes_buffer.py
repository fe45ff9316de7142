"""Code entries from a process's talker to its codec: in memory and at once, while they are written to Redis behind.

What is made of them may not get ahead of them: an audio entry is written once the codes up to it are, so that whoever
takes the request over finds every frame that a listener may have heard.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from syrinx_stages.connector.base import Append, Gone, StreamEntry, Superseded
from syrinx_stages.connector.memory_streams import MemoryStream, Reads
from syrinx_stages.contract.keys import Position, StreamKind


class _Codes(MemoryStream):
    """One request's code entries, and which of them Redis does not have yet."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.unwritten: deque[Position] = deque()
        self.refusal: Gone | Superseded | None = None


class CodesBuffer:
    """The codes of the requests that a process serves; a `memory.Source` for its codec's reader."""

    def __init__(self) -> None:
        self.readers: set[Reads] = set()
        self._codes: dict[str, _Codes] = {}
        self._settled = asyncio.Event()

    def open(self, request_id: str) -> None:
        """Begins with a request; from its first frame if it was open before."""
        self.close(request_id)
        self._codes[request_id] = _Codes()

    def close(self, request_id: str) -> None:
        """Ends with a request: what is still to be made of its codes is not written."""
        codes = self._codes.pop(request_id, None)
        if codes is not None:
            codes.refusal = codes.refusal or _let_go(request_id)
            self._settled.set()

    def cancel(self, request_id: str) -> None:
        """Tells the codec that a request is not served here any more."""
        for reader in self.readers:
            reader.cancel(request_id)

    def stream(self, request_id: str, kind: StreamKind) -> MemoryStream | None:
        """A request's codes, while it is open."""
        return self._codes.get(request_id) if kind is StreamKind.CODES else None

    def restore(self, entries: Sequence[StreamEntry]) -> None:
        """What Redis has of a request that was taken over."""
        for item in entries:
            codes = self._codes.get(item.request_id)
            if codes is not None and codes.write(item.position, item.entry):
                self._notice(item.request_id)

    def deliver_locally(self, appends: Sequence[Append]) -> None:
        """What the talker has made; Redis does not have it yet."""
        for append in appends:
            codes = self._codes.get(append.request_id)
            if codes is not None and codes.write(append.position, append.entry):
                codes.unwritten.append(append.position)
                self._notice(append.request_id)

    def settle(self, append: Append, refusal: Gone | Superseded | None) -> None:
        """Redis has taken or refused what was handed over."""
        codes = self._codes.get(append.request_id)
        if codes is None:
            return
        codes.refusal = codes.refusal or refusal
        while codes.unwritten and codes.unwritten[0] <= append.position:
            codes.unwritten.popleft()
        self._settled.set()

    async def settled(self, append: Append) -> Gone | Superseded | None:
        """Waits until the codes that an audio entry is made of are written; says so if they never will be."""
        codes = self._codes.get(append.request_id)
        if codes is None:
            return _let_go(append.request_id)
        while codes.refusal is None and codes.unwritten and codes.unwritten[0] <= append.position:
            self._settled.clear()
            await self._settled.wait()
        return codes.refusal

    def _notice(self, request_id: str) -> None:
        for reader in self.readers:
            reader.notice(request_id, StreamKind.CODES)


def _let_go(request_id: str) -> Gone:
    return Gone(f"request {request_id} is served by this process no longer")
