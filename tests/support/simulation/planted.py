"""Protocol bugs to plant in the real code: what the simulation must find."""

import contextlib
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector import redis_scripts as scripts
from syrinx_stages.connector.redis_change_feed import StreamTail
from syrinx_stages.connector.redis_consumer import RedisConsumer
from syrinx_stages.connector.redis_reader import _Channel, _Subscription
from syrinx_stages.connector.redis_scripts import Script
from syrinx_stages.gateway.fanout import FanOut
from syrinx_stages.runtime.owned_requests import OwnedRequests
from syrinx_stages.runtime.publisher import Publisher
from syrinx_stages.talker.service import TalkerService


@dataclass(frozen=True)
class Bug:
    """A bug, and how to plant it for the duration of a block."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]


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


_NOT_FENCED = ("known ~= token and not is_newest(owners, group, token, kind)", "false")
_NOT_CONTINUOUS = ("last == after", "true")

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
    ),
    Bug(
        "an append is not checked for a gap",
        lambda: in_script(scripts.APPEND, *_NOT_CONTINUOUS),
    ),
    Bug(
        "what a fail-over has lost is not written again",
        lambda: in_method(Publisher, "_recover", "lost += missing", "pass"),
    ),
    Bug(
        "live claims are taken over",
        lambda: in_script(scripts.TAKE_OVER, "'IDLE', ARGV[1] == '1' and '43200000' or ARGV[4], ", ""),
    ),
    Bug(
        "leases that could not be renewed are taken over after a reconnection",
        lambda: in_method(
            RedisConsumer, "_take_over", "self._lease_ms if settled else HANDED_OVER_MS", "self._lease_ms"
        ),
    ),
    Bug(
        "leases are not renewed",
        lambda: in_script(scripts.REFRESH, "consumer, 0, unpack(mine)", "consumer, 86400000, unpack(mine)"),
    ),
    Bug(
        "a lost claim is not noticed",
        lambda: in_script(scripts.REFRESH, "lost[#lost + 1] = id", "mine[#mine + 1] = id"),
    ),
    Bug(
        "a takeover ignores the frames that were written",
        lambda: in_method(TalkerService, "admit", "_written_frames(entries)", "[]"),
    ),
    Bug(
        "a takeover publishes audio again",
        lambda: in_method(CodecService, "admit", "skip=last.frames", "skip=0"),
    ),
    Bug(
        "the row of a lost claim stays",
        lambda: in_method(OwnedRequests, "_lost", "self.evict(request_id)", "pass"),
    ),
    Bug(
        "the reader does not read again after a lost connection",
        lambda: in_method(StreamTail, "_start", "self._on_start()", "if self._last_read < 1: self._on_start()"),
    ),
    Bug(
        "the reader skips what arrives during a read",
        lambda: in_method(_Channel, "_on_changes", "if subscription.reading:", "if False:"),
    ),
    Bug(
        "the reader returns entries twice",
        lambda: in_method(_Subscription, "is_new", "position <= self._delivered and", "False and"),
    ),
    Bug(
        "a request is not released",
        lambda: in_method(FanOut, "close", "return True", "return False"),
    ),
]
