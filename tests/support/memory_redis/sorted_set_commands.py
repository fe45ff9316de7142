"""Commands on sorted sets, with scores that are integers or infinite. Those by name suppose equal scores."""

from collections.abc import Sequence
from typing import Any

from support.memory_redis.commands import Database, command
from support.memory_redis.store import SortedSet


def _scores(database: Database, key: bytes) -> SortedSet:
    return database.store.get(key, SortedSet) or SortedSet()


def _within(scores: SortedSet, least: bytes, most: bytes) -> list[bytes]:
    first, last = float(least), float(most)
    ordered = sorted(scores.items(), key=lambda item: (item[1], item[0]))
    return [member for member, score in ordered if first <= score <= last]


def _within_names(database: Database, key: bytes, least: bytes, most: bytes) -> list[bytes]:
    """Returns the members from `least` to `most`, in order: `-`, `+`, or with `[` inclusive and with `(` exclusive."""

    def is_within(member: bytes) -> bool:
        after = least == b"-" or (least != b"+" and (member > least[1:] or (member == least[1:] and least[:1] == b"[")))
        before = most == b"+" or (most != b"-" and (member < most[1:] or (member == most[1:] and most[:1] == b"[")))
        return after and before

    return sorted(filter(is_within, _scores(database, key)))


def _limited(found: list[bytes], limit: Sequence[bytes]) -> list[bytes]:
    if not limit:
        return found
    offset, count = int(limit[1]), int(limit[2])
    return found[offset:][: count if count >= 0 else None]


@command("ZADD", deny_oom=True)
def zadd(database: Database, arguments: Sequence[bytes]) -> int:
    key, *pairs = arguments
    added = {member: float(score) for score, member in zip(pairs[::2], pairs[1::2], strict=True)}
    scores = _scores(database, key)
    before = len(scores)
    scores.update(added)
    database.store.put(key, scores)
    return len(scores) - before


@command("ZREM")
def zrem(database: Database, arguments: Sequence[bytes]) -> int:
    key, *members = arguments
    scores = _scores(database, key)
    removed = sum(scores.pop(member, None) is not None for member in members)
    if removed and not scores:
        database.store.delete(key)
    return removed


@command("ZSCORE")
def zscore(database: Database, arguments: Sequence[bytes]) -> bytes | None:
    score = _scores(database, arguments[0]).get(arguments[1])
    return None if score is None else b"%.17g" % score


@command("ZCOUNT")
def zcount(database: Database, arguments: Sequence[bytes]) -> int:
    return len(_within(_scores(database, arguments[0]), *arguments[1:3]))


@command("ZRANGEBYSCORE")
def zrangebyscore(database: Database, arguments: Sequence[bytes]) -> list[Any]:
    key, least, most, *limit = arguments
    return _limited(_within(_scores(database, key), least, most), limit)


@command("ZLEXCOUNT")
def zlexcount(database: Database, arguments: Sequence[bytes]) -> int:
    key, least, most = arguments[:3]
    return len(_within_names(database, key, least, most))


@command("ZREVRANGEBYLEX")
def zrevrangebylex(database: Database, arguments: Sequence[bytes]) -> list[bytes]:
    key, most, least, *limit = arguments
    return _limited(_within_names(database, key, least, most)[::-1], limit)


@command("ZREMRANGEBYLEX")
def zremrangebylex(database: Database, arguments: Sequence[bytes]) -> int:
    key, least, most = arguments[:3]
    found = _within_names(database, key, least, most)
    return zrem(database, (key, *found)) if found else 0
