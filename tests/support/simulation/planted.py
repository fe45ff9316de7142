"""Protocol bugs to plant in the real code: what the simulation must find."""

import contextlib
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from support.simulation.faults import Fault
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.consumer import RedisConsumer
from syrinx_stages.connector.redis.reader import RedisReader, _Subscription
from syrinx_stages.connector.redis.scripts import Script
from syrinx_stages.gateway.cells.fanout import FanOut
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.runtime.requests.owned import OwnedRequests
from syrinx_stages.runtime.requests.publisher import Publisher
from syrinx_stages.talker.service import TalkerService


@dataclass(frozen=True)
class Bug:
    """A bug, and how to plant it for the duration of a block."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    faults: Sequence[Fault] | None = None
    """Of each run, if those that its seed draws would rarely show the bug."""
    seed: int = 0
    """A seed that has found it."""


@contextlib.contextmanager
def in_script(script: Script, before: str, after: str) -> Iterator[None]:
    """Replaces a part of a script."""
    source, digest = script.source, script.digest
    script.source = _replaced(source.decode(), before, after).encode()
    script.digest = hashlib.sha1(script.source).hexdigest().encode()
    try:
        yield
    finally:
        script.source, script.digest = source, digest


def in_method(owner: type, name: str, before: str, after: str) -> AbstractContextManager[Any]:
    """Replaces a part of a method, which must not use `super()`."""
    method = getattr(owner, name)
    names: dict[str, Any] = {}
    source = _replaced(textwrap.dedent(inspect.getsource(method)), before, after)
    exec(compile(source, inspect.getfile(method), "exec"), method.__globals__, names)
    return mock.patch.object(owner, name, names[name])


def _replaced(source: str, before: str, after: str) -> str:
    if before not in source:
        raise ValueError(f"the code has changed, plant the bug elsewhere: {before!r} is not in\n{source}")
    return source.replace(before, after)


def all_of(*plants: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
    """Plants several changes."""
    stack = contextlib.ExitStack()
    for plant in plants:
        stack.enter_context(plant())
    return stack


_NOT_FENCED = ("not is_newest(KEYS[2], owners, group, token, kind, key)", "false")
_NOT_CONTINUOUS = ("last == after", "true")
_ALL_DUE = ("or clock() - lease", "or '+inf'")
_ALL_SETTLED = (" or retry == '1'", "")
_SEARCHES = scripts.FIND_DUE, scripts.TAKE_OVER
_NOT_RENEWED = ("redis.call('ZADD', leases, clock(), consumer)", "redis.call('ZADD', leases, 'NX', clock(), consumer)")
_RENEWALS = scripts.FIND_DUE, scripts.TAKE_OVER, scripts.REFRESH, scripts.REPORT_CAPACITY, scripts.JOIN

LOST_WITH_TALKERS = (
    Fault("fail-over", 3.0, "redis", 0.3, 0.5, after="1 audio", delay=0.3),
    *(Fault("crash", 3.0, f"talker-{number}", 0.1, "process", after="1 audio", delay=0.7) for number in range(2)),
)
"""Codes and audio are lost, and with both talkers all that could write the codes again."""

BUGS = [
    Bug(
        "an append is checked neither for its owner nor for a gap",
        lambda: all_of(
            lambda: in_script(scripts.APPEND, *_NOT_FENCED),
            lambda: in_script(scripts.APPEND, *_NOT_CONTINUOUS),
        ),
    ),
    Bug(
        "an append is not checked for its owner",
        lambda: in_script(scripts.APPEND, *_NOT_FENCED),
        seed=43,
    ),
    Bug(
        "an append is not checked for a gap",
        lambda: in_script(scripts.APPEND, *_NOT_CONTINUOUS),
    ),
    Bug(
        "a takeover leaves the entries of the former owner unchecked",
        lambda: in_script(scripts.ACCEPT, "redis.call('UNLINK', writers)", ""),
        seed=43,
    ),
    Bug(
        "a lost batch is not noticed",
        lambda: in_script(scripts.APPEND, "redis.call('HGET', KEYS[2], writer) == last_batch", "true"),
        seed=3,
    ),
    Bug(
        "what a fail-over has lost is not written again",
        lambda: in_method(Publisher, "_recover", "lost += missing", "pass"),
        seed=25,
    ),
    Bug(
        "live claims are taken over",
        lambda: all_of(*(lambda script=script: in_script(script, *_ALL_DUE) for script in _SEARCHES)),
        seed=24,
    ),
    Bug(
        "leases that could not be renewed are taken over after a reconnection",
        lambda: all_of(
            *(lambda script=script: in_script(script, *_ALL_SETTLED) for script in _SEARCHES),
            lambda: mock.patch.object(RedisConsumer, "_lease", property(lambda self: str(self._lease_ms))),
        ),
        seed=15,
    ),
    Bug(
        "leases are not renewed",
        lambda: all_of(*(lambda script=script: in_script(script, *_NOT_RENEWED) for script in _RENEWALS)),
    ),
    Bug(
        "a lost claim is not noticed",
        lambda: in_script(scripts.REFRESH, "lost[#lost + 1] = id", ""),
        seed=64,
    ),
    Bug(
        "a takeover ignores the frames that were written",
        lambda: in_method(TalkerService, "admit", "written = written_of(entries, written)", "pass"),
        seed=6,
    ),
    Bug(
        "a takeover publishes audio again",
        lambda: in_method(CodecService, "_begin_next", "max(row.decoded - segment.frames, 0)", "0"),
        seed=3,
    ),
    Bug(
        "a codec joins codes of two takes",
        lambda: in_method(CodecService, "_read", "row.checksum != expected", "False"),
        LOST_WITH_TALKERS,
    ),
    Bug(
        "a gateway joins audio of two takes",
        lambda: in_method(SpeechStream, "_checked", "checksum not in", "False and checksum not in"),
        LOST_WITH_TALKERS,
    ),
    Bug(
        "the row of a lost claim stays",
        lambda: in_method(OwnedRequests, "_lost", "self.evict(request_id)", "pass"),
        seed=6,
    ),
    Bug(
        "the reader does not read again after a lost connection",
        lambda: in_method(RedisReader, "_on_connected", "self._subscriptions.values()", "[*self._to_read.values()]"),
        seed=26,
    ),
    Bug(
        "a stream has no reader but its first one",
        lambda: in_script(scripts.READ, "string.find(known, inbox, 1, true)", "true"),
        seed=6,
    ),
    Bug(
        "a writer does not learn of a further reader",
        lambda: in_script(scripts.READ, "if writer then redis.call('HDEL', writers, writer) end", ""),
        seed=4,
    ),
    Bug(
        "the reader skips what arrives during a read",
        lambda: in_method(RedisReader, "_received", "if subscription.reading or", "if"),
        seed=8,
    ),
    Bug(
        "the reader returns entries twice",
        # The checksums would show it, and the codec would start again.
        lambda: all_of(
            lambda: in_method(_Subscription, "is_new", "position <= self._delivered and", "False and"),
            lambda: in_method(CodecService, "_read", "row.checksum != expected", "False"),
        ),
        seed=26,
    ),
    Bug(
        "a request is not released",
        lambda: in_method(FanOut, "close", "return True", "return False"),
    ),
]
