"""What a stage has written to the streams of its requests, so that it can write again what a fail-over has lost."""

from collections import deque
from collections.abc import Sequence, Set

from syrinx_stages.connector.base import Append, Claim, Fence, StreamEntry
from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End

KEEP_SECONDS = 30.0
"""How long entries are kept after they were written: longer than a fail-over takes and a replica lags behind."""
MAX_BYTES = 128 * 1024 * 1024
"""Size of what is kept, at most. What the journal lacks is generated again."""


class _Stream:
    """The entries of one stream under one fence, each after the one before it."""

    def __init__(self, fence: Fence, written: Position) -> None:
        self.fence = fence
        self.entries: deque[Append] = deque()
        """Never empty: the journal adds the first one at once, and keeps the last one."""
        self.written = written
        """Position up to which Redis has accepted the entries at least once."""


class Journal:
    """The entries that a stage writes to its streams of one kind, for `KEEP_SECONDS`."""

    def __init__(self, kind: StreamKind) -> None:
        self._kind = kind
        self._streams: dict[str, _Stream] = {}
        self._ended: set[str] = set()
        self._expiring: deque[tuple[float, Append]] = deque()
        """Accepted entries, oldest first, and the time of each acceptance (monotonic seconds)."""
        self._bytes = 0
        """Size of `_expiring`."""

    def last_position(self, claim: Claim) -> Position:
        """Returns the position of the last entry added under a claim, else where the stream stood at the claim."""
        stream = self._streams.get(claim.request.id)
        if stream is None or stream.fence != claim.fence:
            return claim.fence.start(self._kind)
        return stream.entries[-1].position

    def add(self, append: Append) -> None:
        """Adds an entry that is about to be written, after `last_position` of its claim."""
        stream = self._streams.get(append.request_id)
        if stream is None or stream.fence != append.fence:
            self._drop(append.request_id)
            stream = self._streams[append.request_id] = _Stream(append.fence, append.after)
        stream.entries.append(append)
        if append.finishes is not None:
            self._ended.add(append.finishes)

    def restore(self, claim: Claim, entries: Sequence[StreamEntry]) -> None:
        """Adds what earlier owners of a claimed request have written, as if this claim's owner had."""
        after = STREAM_CREATED
        for item in entries:
            if isinstance(item.entry, Codes) and item.entry.segment is not None and item.entry.segment.frames:
                # Those before it may have been deleted.
                after = Position(item.entry.segment.frames)
            if item.position > STREAM_CREATED:
                self.add(Append(item.request_id, item.kind, item.position, item.entry, claim.fence, after))
                after = item.position
        if (stream := self._streams.get(claim.request.id)) is not None:
            stream.written = after

    def accept(self, append: Append, now: float) -> bool:
        """Records that Redis has an entry. Returns False if it was recorded before. `now` is in monotonic seconds."""
        stream = self._stream(append)
        if stream is None:
            return True
        if append.position <= stream.written:
            return False
        stream.written = append.position
        self._expiring.append((now, append))
        self._bytes += _size(append)
        self._expire(now)
        return True

    def missing(self, append: Append, at: Position) -> Sequence[Append] | None:
        """Returns the entries after `at` up to `append`; None if the journal does not reach back to `at`."""
        stream = self._stream(append)
        if stream is None or all(entry.after != at for entry in stream.entries):
            return None
        return [entry for entry in stream.entries if at < entry.position <= append.position]

    def last_written(self) -> Sequence[Append]:
        """Returns the last accepted entry of each stream. Writing it again shows whether Redis still has it."""
        streams = self._streams.values()
        return [entry for stream in streams for entry in stream.entries if entry.position == stream.written]

    def ended(self) -> Set[str]:
        """Returns the entry IDs of the claims whose end is kept. The set is live, not a copy."""
        return self._ended

    def forget(self, request_id: str) -> None:
        """Drops a stream that is written no further; one with an end is kept for `KEEP_SECONDS` after it."""
        stream = self._streams.get(request_id)
        if stream is not None and not isinstance(stream.entries[-1].entry, End):
            self._drop(request_id)

    def discard(self, append: Append) -> None:
        """Drops the stream of an entry that Redis has refused for good."""
        if self._stream(append) is not None:
            self._drop(append.request_id)

    def _stream(self, append: Append) -> _Stream | None:
        stream = self._streams.get(append.request_id)
        return stream if stream is not None and stream.fence == append.fence else None

    def _drop(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._ended.discard(stream.entries[-1].finishes or "")

    def _expire(self, now: float) -> None:
        while self._expiring:
            accepted_at, append = self._expiring[0]
            if now - accepted_at < KEEP_SECONDS and self._bytes <= MAX_BYTES:
                return
            self._expiring.popleft()
            self._bytes -= _size(append)
            stream = self._stream(append)
            if stream is None:
                continue
            if isinstance(append.entry, End):
                self._drop(append.request_id)
            # The last accepted entry stays: it shows whether Redis has lost the end of an idle stream.
            while len(stream.entries) > 1 and stream.entries[0].position <= append.position < stream.written:
                stream.entries.popleft()


def _size(append: Append) -> int:
    match append.entry:
        case Audio(pcm):
            return len(pcm)
        case Codes(codes):
            return len(codes)
    return 0
