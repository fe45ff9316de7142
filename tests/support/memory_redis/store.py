"""The keys of one database, with their expiry. Can be pickled: a copy is a replica that has stopped to follow."""

from collections import UserDict
from collections.abc import Callable
from typing import Any, TypeVar

from support.memory_redis.streams import Fields
from support.memory_redis.values import EntryId, ErrorReply

T = TypeVar("T")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class SortedSet(UserDict[bytes, float]):
    """The score of each member."""


class Store:
    """Values by key: bytes, dict (a hash), `SortedSet` or `Stream`. `clock` returns Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.values: dict[bytes, Any] = {}
        self.expires: dict[bytes, int] = {}
        """Unix milliseconds at which a key expires."""
        self.now = 0
        """Unix milliseconds: constant within a command, as in Redis."""

    def update_now(self) -> None:
        """Reads the clock."""
        self.now = int(self.clock() * 1000)

    def get(self, key: bytes, kind: type[T]) -> T | None:
        """Returns the value of a key, or None. Raises `ErrorReply` if it is of another type."""
        value = self.find(key)
        if value is not None and not isinstance(value, kind):
            raise ErrorReply(WRONG_TYPE)
        return value

    def find(self, key: bytes) -> Any:
        """Returns the value of a key whatever its type, or None."""
        at = self.expires.get(key)
        if at is not None and at <= self.now:
            self.delete(key)
        return self.values.get(key)

    def put(self, key: bytes, value: Any) -> None:
        """Sets a value; the expiry stays."""
        self.values[key] = value

    def delete(self, key: bytes) -> bool:
        """Deletes a key. Returns whether it existed."""
        self.expires.pop(key, None)
        return self.values.pop(key, None) is not None

    def names(self) -> list[bytes]:
        """Returns the keys that exist."""
        self.update_now()
        return [key for key in list(self.values) if self.find(key) is not None]


OnAppend = Callable[[bytes, EntryId, Fields], None]
"""Called with key, ID and fields of each entry that was added to a stream."""
