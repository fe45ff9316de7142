"""Commands on streams."""

from collections.abc import Sequence
from typing import Any

from support.memory_redis.commands import Database, command
from support.memory_redis.streams import Group, Stream
from support.memory_redis.values import EntryId, ErrorReply, entry_id, id_bytes, range_bound


def entry(stream: Stream, at: EntryId) -> list[Any]:
    """Returns an entry as a reply."""
    return [id_bytes(at), list(stream.rows[at])]


def _trim(stream: Stream, options: Sequence[bytes]) -> int:
    """Trims by `MAXLEN|MINID [=|~] threshold`."""
    kind, *limits = options
    approximate = limits[0] == b"~"
    threshold = limits[-1]
    if kind.upper() == b"MAXLEN":
        return stream.trim(len(stream.ids) - int(threshold), approximate)
    first = entry_id(threshold)
    return stream.trim(len(stream.range((0, 0), first)) - (first in stream.rows), approximate)


@command("XADD", deny_oom=True)
def xadd(database: Database, arguments: Sequence[bytes]) -> bytes | None:
    key, *rest = arguments
    create, trim = True, []
    while rest and rest[0].upper() in (b"NOMKSTREAM", b"MAXLEN", b"MINID"):
        if rest[0].upper() == b"NOMKSTREAM":
            create, rest = False, rest[1:]
        else:
            count = 3 if rest[1] in (b"~", b"=") else 2
            trim, rest = rest[:count], rest[count:]
    text, *fields = rest
    stream = database.store.get(key, Stream)
    given = None if text == b"*" else entry_id(text)
    if stream is None:
        if not create:
            return None
        stream = Stream()
    at = stream.next_id(database.store.now) if given is None else given
    stream.add(at, tuple(fields))
    database.store.put(key, stream)
    if trim:
        _trim(stream, trim)
    database.added(key, at, tuple(fields))
    return id_bytes(at)


@command("XTRIM")
def xtrim(database: Database, arguments: Sequence[bytes]) -> int:
    stream = database.store.get(arguments[0], Stream)
    return 0 if stream is None else _trim(stream, arguments[1:])


@command("XDEL")
def xdel(database: Database, arguments: Sequence[bytes]) -> int:
    key, *ids = arguments
    stream = database.store.get(key, Stream)
    return 0 if stream is None else sum(stream.delete(entry_id(at)) for at in ids)


@command("XLEN")
def xlen(database: Database, arguments: Sequence[bytes]) -> int:
    stream = database.store.get(arguments[0], Stream)
    return 0 if stream is None else len(stream.ids)


def _range(database: Database, key: bytes, first: bytes, last: bytes, options: Sequence[bytes], reverse: bool) -> Any:
    bounds = range_bound(first, start=True), range_bound(last, start=False)
    stream = database.store.get(key, Stream)
    if stream is None:
        return []
    ids = stream.range(*bounds)
    if reverse:
        ids = ids[::-1]
    if options:
        ids = ids[: int(options[1])]
    return [entry(stream, at) for at in ids]


@command("XRANGE")
def xrange(database: Database, arguments: Sequence[bytes]) -> Any:
    key, first, last, *options = arguments
    return _range(database, key, first, last, options, reverse=False)


@command("XREVRANGE")
def xrevrange(database: Database, arguments: Sequence[bytes]) -> Any:
    key, last, first, *options = arguments
    return _range(database, key, first, last, options, reverse=True)


def read_after(database: Database, after: Sequence[tuple[bytes, EntryId]], count: int | None) -> list[Any] | None:
    """Returns the entries of streams after the given IDs, as XREAD does; None if there are none."""
    found = []
    for key, last in after:
        stream = database.store.get(key, Stream)
        if stream is not None and stream.last_id > last:
            ids = stream.range((last[0], last[1] + 1), stream.last_id)[:count]
            if ids:
                found.append([key, [entry(stream, at) for at in ids]])
    return found or None


@command("XINFO")
def xinfo(database: Database, arguments: Sequence[bytes]) -> list[Any]:
    kind, key, *rest = arguments
    stream = database.store.get(key, Stream)
    if stream is None:
        raise ErrorReply("ERR no such key")
    now = database.store.now
    if kind == b"STREAM":
        entries = [entry(stream, at) for at in (*stream.ids[:1], *stream.ids[-1:])] or [None, None]
        last = [b"last-generated-id", id_bytes(stream.last_id), b"groups", len(stream.groups)]
        return [b"length", len(stream.ids), *last, b"first-entry", entries[0], b"last-entry", entries[-1]]
    if kind == b"GROUPS":
        return [_group_info(name, group) for name, group in sorted(stream.groups.items())]
    group = stream.group(key, rest[0])
    pending = [item.consumer for item in group.pending.values()]
    return [
        [b"name", name, b"pending", pending.count(name), b"idle", now - seen]
        for name, seen in sorted(group.consumers.items())
    ]


def _group_info(name: bytes, group: Group) -> list[Any]:
    counts = [b"consumers", len(group.consumers), b"pending", len(group.pending)]
    return [b"name", name, *counts, b"last-delivered-id", id_bytes(group.last_delivered)]
