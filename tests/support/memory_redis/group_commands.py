"""Commands on consumer groups."""

from collections.abc import Sequence
from typing import Any

from support.memory_redis.commands import Database, command
from support.memory_redis.stream_commands import entry
from support.memory_redis.streams import Group, Pending, Stream, no_group
from support.memory_redis.values import (
    OK,
    EntryId,
    ErrorReply,
    entry_id,
    id_bytes,
    range_bound,
)


def find_group(database: Database, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Returns a stream and its group. Raises `ErrorReply` if one of them does not exist."""
    stream = database.store.get(key, Stream)
    if stream is None:
        raise no_group(key, name)
    return stream, stream.group(key, name)


@command("XGROUP")
def xgroup(database: Database, arguments: Sequence[bytes]) -> Any:
    """Supports CREATE with MKSTREAM, and DELCONSUMER."""
    kind, key, name, *rest = arguments
    stream = database.store.get(key, Stream)
    if kind == b"CREATE":
        if stream is None:
            database.store.put(key, stream := Stream())
        if name in stream.groups:
            raise ErrorReply("BUSYGROUP Consumer Group name already exists")
        stream.groups[name] = Group(entry_id(rest[0]))
        return OK
    if stream is None:
        raise ErrorReply("ERR The XGROUP subcommand requires the key to exist.")
    group = stream.group(key, name)
    owned = [at for at, item in group.pending.items() if item.consumer == rest[0]]
    for at in owned:
        del group.pending[at]
    group.consumers.pop(rest[0], None)
    return len(owned)


def read_new(database: Database, key: bytes, name: bytes, consumer: bytes, count: int | None) -> list[Any] | None:
    """Delivers new entries to a consumer, as XREADGROUP with `>` does; None if there are none."""
    stream, group = find_group(database, key, name)
    first, sequence = group.last_delivered
    ids = stream.range((first, sequence + 1), stream.last_id)[:count]
    if ids:
        # Redis 6.2 does not count a read without new entries as a sign of life.
        now = database.store.now
        group.see(consumer, now)
        group.pending.update((at, Pending(consumer, now, 1)) for at in ids)
        group.last_delivered = ids[-1]
    return [[key, [entry(stream, at) for at in ids]]] if ids else None


@command("XACK")
def xack(database: Database, arguments: Sequence[bytes]) -> int:
    key, name, *ids = arguments
    stream = database.store.get(key, Stream)
    if stream is None or name not in stream.groups:
        return 0
    pending = stream.groups[name].pending
    return sum(pending.pop(entry_id(at), None) is not None for at in ids)


@command("XPENDING")
def xpending(database: Database, arguments: Sequence[bytes]) -> list[Any]:
    key, name, *rest = arguments
    _, group = find_group(database, key, name)
    if not rest:
        return _summary(group)
    least_idle = 0
    if rest[0].upper() == b"IDLE":
        least_idle, rest = int(rest[1]), rest[2:]
    first, last, count, *consumer = rest
    now = database.store.now
    found = []
    for at in group.pending_range(range_bound(first, start=True), range_bound(last, start=False)):
        item = group.pending[at]
        idle = max(now - item.delivered, 0)
        if idle >= least_idle and (not consumer or item.consumer == consumer[0]):
            found.append([id_bytes(at), item.consumer, idle, item.count])
    return found[: int(count)]


def _summary(group: Group) -> list[Any]:
    if not group.pending:
        return [0, None, None, None]
    consumers = [item.consumer for item in group.pending.values()]
    counts = [[name, b"%d" % consumers.count(name)] for name in sorted(set(consumers))]
    return [len(group.pending), id_bytes(min(group.pending)), id_bytes(max(group.pending)), counts]


@command("XCLAIM")
def xclaim(database: Database, arguments: Sequence[bytes]) -> list[Any]:
    key, name, consumer, least_idle, *rest = arguments
    stream, group = find_group(database, key, name)
    now = database.store.now
    ids, delivered, count, options = _claim_options(rest, now)
    just_ids, claimed = b"JUSTID" in options, list[Any]()
    for at in ids:
        if b"FORCE" in options:
            group.pending.setdefault(at, Pending(consumer, now, 1))
        item = group.pending.get(at)
        if item is None or now - item.delivered < int(least_idle):
            continue
        group.see(consumer, now)
        item.consumer, item.delivered = consumer, delivered
        if count is not None:
            item.count = count
        elif not just_ids:
            item.count += 1
        # Redis 6.2 reports an entry that was deleted as nil.
        claimed.append(id_bytes(at) if just_ids else entry(stream, at) if at in stream.rows else None)
    return claimed


def _claim_options(rest: Sequence[bytes], now: int) -> tuple[list[EntryId], int, int | None, Sequence[bytes]]:
    """Returns the IDs, the time of delivery, the delivery count if it is given, and the options in capitals."""
    names = [part.upper() for part in rest]
    options = [index for index, part in enumerate(names) if part in (b"IDLE", b"RETRYCOUNT", b"FORCE", b"JUSTID")]
    first = min(options, default=len(rest))
    delivered, count = now, None
    for index in options:
        if names[index] == b"IDLE":
            delivered = now - int(rest[index + 1])
        elif names[index] == b"RETRYCOUNT":
            count = int(rest[index + 1])
    return [entry_id(part) for part in rest[:first]], delivered, count, names[first:]
