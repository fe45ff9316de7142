"""A stream and its consumer groups, as in Redis 6.2. Times are Unix milliseconds."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from support.memory_redis.values import EntryId, ErrorReply

NODE_ENTRIES = 100
"""Approximate trimming removes whole nodes of this many entries."""

Fields = tuple[bytes, ...]


@dataclass(slots=True)
class Pending:
    """A delivered entry that was not acknowledged."""

    consumer: bytes
    delivered: int
    count: int


@dataclass(slots=True)
class Group:
    """A consumer group."""

    last_delivered: EntryId
    pending: dict[EntryId, Pending] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)
    """When each consumer was last seen."""

    def see(self, consumer: bytes, now: int) -> None:
        """Creates a consumer, or updates when it was last seen."""
        self.consumers[consumer] = now

    def pending_range(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Returns the pending IDs from `first` to `last`, in order."""
        return sorted(at for at in self.pending if first <= at <= last)


class Stream:
    """Entries in the order of their IDs."""

    __slots__ = ("groups", "ids", "last_id", "rows")

    def __init__(self) -> None:
        self.ids: list[EntryId] = []
        self.rows: dict[EntryId, Fields] = {}
        self.last_id: EntryId = (0, 0)
        self.groups: dict[bytes, Group] = {}

    def next_id(self, now: int) -> EntryId:
        """Returns the ID that `*` stands for."""
        ms, sequence = self.last_id
        return (now, 0) if now > ms else (ms, sequence + 1)

    def add(self, at: EntryId, fields: Fields) -> None:
        """Appends an entry. Raises `ErrorReply` for an ID that is not greater than the last one."""
        if at <= self.last_id:
            raise ErrorReply("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        self.ids.append(at)
        self.rows[at] = fields
        self.last_id = at

    def range(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Returns the IDs from `first` to `last`, both included."""
        return self.ids[bisect_left(self.ids, first) : bisect_right(self.ids, last)]

    def delete(self, at: EntryId) -> bool:
        """Deletes an entry. Returns whether it existed."""
        if self.rows.pop(at, None) is None:
            return False
        del self.ids[bisect_left(self.ids, at)]
        return True

    def trim(self, excess: int, approximate: bool) -> int:
        """Deletes up to `excess` of the oldest entries: whole nodes only if `approximate`. Returns their number."""
        if approximate and excess < len(self.ids):
            excess -= excess % NODE_ENTRIES
        excess = max(excess, 0)
        for at in self.ids[:excess]:
            del self.rows[at]
        del self.ids[:excess]
        return excess

    def group(self, key: bytes, name: bytes) -> Group:
        """Returns a group. Raises `ErrorReply` if it does not exist."""
        if name not in self.groups:
            raise no_group(key, name)
        return self.groups[name]


def no_group(key: bytes, name: bytes) -> ErrorReply:
    """Returns the error for a group that does not exist."""
    return ErrorReply(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
