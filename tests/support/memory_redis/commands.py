"""Commands on keys, strings and hashes, and the table of all commands.

A command maps the database and its arguments to a reply, and raises `ErrorReply`.
"""

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from support.memory_redis.store import Store
from support.memory_redis.values import OK, ErrorReply, Status


class Database(Protocol):
    """What a command works on."""

    store: Store

    def added(self, key: bytes, at: tuple[int, int], fields: tuple[bytes, ...]) -> None:
        """An entry was added to a stream."""

    def deleted(self, key: bytes) -> None:
        """A key was deleted."""


Command = Callable[[Database, Sequence[bytes]], Any]
COMMANDS: dict[bytes, Command] = {}
DENY_OOM: set[bytes] = set()
"""Commands that a Redis whose memory is full refuses."""
READ_ONLY = set(
    b"EXISTS TTL SCAN GET STRLEN HGET HMGET HGETALL TIME XLEN XRANGE XREVRANGE XPENDING XINFO ZSCORE ZCOUNT "
    b"ZRANGEBYSCORE ZLEXCOUNT ZREVRANGEBYLEX INFO".split()
)
"""Commands that change nothing. After any other one, Redis refuses no command of a script."""


def command(name: str, deny_oom: bool = False) -> Callable[[Command], Command]:
    """Registers a command."""

    def register(function: Command) -> Command:
        COMMANDS[name.encode()] = function
        if deny_oom:
            DENY_OOM.add(name.encode())
        return function

    return register


def run_command(database: Database, name: bytes, arguments: Sequence[bytes]) -> Any:
    """Runs a command and returns its reply. Raises `ErrorReply`."""
    if name not in COMMANDS:
        raise ErrorReply(f"ERR unknown command `{name.decode()}`")
    return COMMANDS[name](database, arguments)


@command("EXISTS")
def exists(database: Database, keys: Sequence[bytes]) -> int:
    return sum(database.store.find(key) is not None for key in keys)


@command("DEL")
def delete(database: Database, keys: Sequence[bytes]) -> int:
    existing = [key for key in dict.fromkeys(keys) if database.store.find(key) is not None]
    for key in existing:
        database.store.delete(key)
        database.deleted(key)
    return len(existing)


command("UNLINK")(delete)


@command("EXPIRE")
def expire(database: Database, arguments: Sequence[bytes]) -> int:
    key, seconds = arguments
    if database.store.find(key) is None:
        return 0
    database.store.expires[key] = database.store.now + 1000 * int(seconds)
    return 1


@command("TTL")
def ttl(database: Database, arguments: Sequence[bytes]) -> int:
    if database.store.find(arguments[0]) is None:
        return -2
    at = database.store.expires.get(arguments[0])
    return -1 if at is None else (at - database.store.now + 500) // 1000


@command("SCAN")
def scan(database: Database, arguments: Sequence[bytes]) -> list[Any]:
    """Returns all keys at once."""
    options = dict(zip(map(bytes.upper, arguments[1::2]), arguments[2::2], strict=True))
    pattern = options.get(b"MATCH", b"*").decode()
    return [b"0", [key for key in database.store.names() if fnmatch.fnmatchcase(key.decode(), pattern)]]


@command("GET")
def get(database: Database, arguments: Sequence[bytes]) -> bytes | None:
    return database.store.get(arguments[0], bytes)


@command("SETRANGE", deny_oom=True)
def set_range(database: Database, arguments: Sequence[bytes]) -> int:
    """Supports only the empty value, which changes nothing."""
    key, _, value = arguments
    assert not value
    return len(database.store.get(key, bytes) or b"")


@command("SET", deny_oom=True)
def set_value(database: Database, arguments: Sequence[bytes]) -> Status:
    """Supports only the option EX."""
    key, value, *options = arguments
    database.store.delete(key)
    database.store.put(key, value)
    if options:
        expire(database, (key, options[1]))
    return OK


@command("STRLEN")
def strlen(database: Database, arguments: Sequence[bytes]) -> int:
    return len(database.store.get(arguments[0], bytes) or b"")


@command("HSET", deny_oom=True)
def hset(database: Database, arguments: Sequence[bytes]) -> int:
    key, *pairs = arguments
    values: dict[bytes, bytes] | None = database.store.get(key, dict)
    if values is None:
        database.store.put(key, values := {})
    before = len(values)
    values.update(zip(pairs[::2], pairs[1::2], strict=True))
    return len(values) - before


@command("HGET")
def hget(database: Database, arguments: Sequence[bytes]) -> bytes | None:
    return (database.store.get(arguments[0], dict) or {}).get(arguments[1])


@command("HMGET")
def hmget(database: Database, arguments: Sequence[bytes]) -> list[bytes | None]:
    values = database.store.get(arguments[0], dict) or {}
    return [values.get(name) for name in arguments[1:]]


@command("HGETALL")
def hgetall(database: Database, arguments: Sequence[bytes]) -> list[bytes]:
    values = database.store.get(arguments[0], dict) or {}
    return [part for pair in values.items() for part in pair]


@command("HDEL")
def hdel(database: Database, arguments: Sequence[bytes]) -> int:
    key, *names = arguments
    values = database.store.get(key, dict) or {}
    removed = sum(values.pop(name, None) is not None for name in names)
    if removed and not values:
        database.store.delete(key)
    return removed


@command("TIME")
def time_of(database: Database, arguments: Sequence[bytes]) -> list[bytes]:
    microseconds = int(database.store.clock() * 1_000_000)
    return [b"%d" % (microseconds // 1_000_000), b"%d" % (microseconds % 1_000_000)]
