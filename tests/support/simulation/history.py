"""The history of a run, as Redis has seen it: every entry written to a request's streams, and what happened between."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from support.memory_redis.values import EntryId
from support.simulation.loop import SimulatedLoop
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import (
    Audio,
    Codes,
    End,
    Entry,
    Segment,
    StreamCreated,
    decode_entry,
    decode_request,
)
from syrinx_stages.contract.stages import WORKERS

StreamName = tuple[str, StreamKind]
Owners = Mapping[str, Mapping[bytes, bytes]]
"""The owner tokens of each request in Redis, by group."""


class Written(NamedTuple):
    """An entry that was written to a stream."""

    at: float
    position: Position
    entry: Entry


@dataclass(frozen=True)
class Loss:
    """What a Redis that came back behind, or empty, has lost of a request."""

    request_id: str
    since: float
    """When the copy was made that Redis continues with."""
    at: float
    entirely: bool
    """Redis has lost the request itself."""
    claims: Set[str]
    """The groups whose newest claim of the request is lost."""
    lost: Mapping[StreamKind, Sequence[Written]]
    kept: Mapping[StreamKind, Sequence[Written]]

    def written(self, kind: StreamKind) -> Sequence[Written]:
        """Returns all entries of a stream before the loss."""
        return [*self.kept.get(kind, ()), *self.lost.get(kind, ())]


@dataclass(frozen=True)
class _Mark:
    at: float
    requests: Set[str]
    owners: Owners
    lengths: Mapping[StreamName, int]


@dataclass
class History:
    """Everything that was written, without what a Redis that came back behind has lost."""

    loop: SimulatedLoop
    events: list[tuple[float, str]] = field(default_factory=list)
    streams: dict[StreamName, list[Written]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    """The seed of each request: its client's number."""
    resumed: dict[str, Segment | None] = field(default_factory=dict)
    """The segment with which each request begins that was queued again."""
    on_event: Callable[[str], None] = lambda event: None
    """Called with the client's number and `queued`, `codes`, `audio`, `codes end` or `audio end`."""
    losses: list[Loss] = field(default_factory=list)
    _marks: dict[int, _Mark] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Records an event."""
        self.events.append((self.loop.time(), text))

    def on_append(self, key: bytes, at: EntryId, fields: tuple[bytes, ...]) -> None:
        """Records an entry that was added to a stream in Redis."""
        *_, request_id, kind = key.decode().rsplit(":", 2)
        if kind == "requests":
            request = decode_request(fields[1])
            self.seeds[request.id], self.resumed[request.id] = request.seed, request.resumes
            self.note(f"request {request.seed} is queued as {request.id[:8]}")
            self.on_event(f"{request.seed} queued")
        elif request_id.isalnum() and kind in (StreamKind.CODES, StreamKind.AUDIO) and not request_id.isdigit():
            entry = decode_entry(fields[1])
            if isinstance(entry, StreamCreated):
                return
            self.streams.setdefault((request_id, StreamKind(kind)), []).append(
                Written(self.loop.time(), Position(*at), entry)
            )
            self.note(f"{request_id[:8]} {kind} {at[0]}-{at[1]}: {describe(entry)}")
            self.on_event(f"{self.seeds[request_id]} {kind}{' end' if isinstance(entry, End) else ''}")

    def mark(self, number: int, owners: Owners) -> None:
        """Remembers what a copy of Redis has, which may become the primary later."""
        lengths = {name: len(entries) for name, entries in self.streams.items()}
        self._marks[number] = _Mark(self.loop.time(), frozenset(self.seeds), owners, lengths)

    def roll_back(self, number: int, owners: Owners) -> None:
        """The copy has become the primary: what was written since then is lost. `owners`: of the former primary."""
        self._lose(self._marks[number], owners)

    def lose_everything(self, owners: Owners) -> None:
        """Redis has restarted empty."""
        self._lose(_Mark(0.0, frozenset(), {}, {}), owners)

    def _lose(self, mark: _Mark, owners: Owners) -> None:
        for request_id in self.seeds:
            lost, kept = {}, {}
            for kind in (StreamKind.CODES, StreamKind.AUDIO):
                entries, length = self.streams.get((request_id, kind), []), mark.lengths.get((request_id, kind), 0)
                kept[kind], lost[kind] = entries[:length], entries[length:]
                del entries[length:]
            entirely = request_id not in mark.requests
            newest, known = owners.get(request_id, {}), mark.owners.get(request_id, {})
            claims = frozenset(group for group in WORKERS if newest.get(group.encode()) != known.get(group.encode()))
            if entirely or any(lost.values()):
                self.losses.append(Loss(request_id, mark.at, self.loop.time(), entirely, claims, lost, kept))

    def losses_of(self, request_id: str) -> Iterator[Loss]:
        """Yields what Redis has lost of a request."""
        return (loss for loss in self.losses if loss.request_id == request_id)


def describe(entry: Entry) -> str:
    """Returns an entry for the printed history."""
    if isinstance(entry, Codes):
        return f"codes {entry.talker}"
    if isinstance(entry, Audio):
        return f"{len(entry.pcm)} bytes {entry.codec}"
    return f"end: {entry.reason} {entry.message}" if isinstance(entry, End) else type(entry).__name__
