"""The history of a run, as Redis has seen it: every entry written to a request's streams, and what happened between."""

from dataclasses import dataclass, field

from support.memory_redis.values import EntryId
from support.simulation.loop import SimulatedLoop
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, Entry, decode_entry, decode_request

StreamName = tuple[str, StreamKind]


@dataclass(frozen=True)
class Written:
    """An entry that was written to a stream."""

    at: float
    position: Position
    entry: Entry


@dataclass
class History:
    """Everything that was written, without what a Redis that came back behind has lost."""

    loop: SimulatedLoop
    events: list[tuple[float, str]] = field(default_factory=list)
    streams: dict[StreamName, list[Written]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    """The seed of each request: its client's number."""
    _marks: dict[int, dict[StreamName, int]] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Records an event."""
        self.events.append((self.loop.time(), text))

    def on_append(self, key: bytes, at: EntryId, fields: tuple[bytes, ...]) -> None:
        """Records an entry that was added to a stream in Redis."""
        *_, request_id, kind = key.decode().rsplit(":", 2)
        if kind == "requests":
            request = decode_request(fields[1])
            self.seeds[request.id] = request.seed
            self.note(f"request {request.seed} is queued as {request.id[:8]}")
        elif request_id.isalnum() and kind in (StreamKind.CODES, StreamKind.AUDIO) and not request_id.isdigit():
            entry = decode_entry(fields[1])
            self.streams.setdefault((request_id, StreamKind(kind)), []).append(
                Written(self.loop.time(), Position(*at), entry)
            )
            self.note(f"{request_id[:8]} {kind} {at[0]}-{at[1]}: {describe(entry)}")

    def mark(self, number: int) -> None:
        """Remembers what a copy of Redis has, which may become the primary later."""
        self._marks[number] = {name: len(entries) for name, entries in self.streams.items()}

    def roll_back(self, number: int) -> None:
        """The copy has become the primary: what was written since then is lost."""
        marks = self._marks[number]
        for name, entries in self.streams.items():
            del entries[marks.get(name, 0) :]

    def lose_everything(self) -> None:
        """Redis has restarted empty."""
        self.streams.clear()


def describe(entry: Entry) -> str:
    """Returns an entry for the printed history."""
    if isinstance(entry, Codes):
        return f"codes {entry.talker}"
    if isinstance(entry, Audio):
        return f"{len(entry.pcm)} bytes {entry.codec}"
    return f"end: {entry.reason} {entry.message}" if isinstance(entry, End) else type(entry).__name__
