"""Records a trace: the scripts that a Redis executes, in their order, as actions of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import hiredis

from support.memory_redis import MemoryRedis
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.inbox import unpack
from syrinx_stages.contract.messages import decode_request

from .store import BEHIND, GONE, SUPERSEDED, WRITTEN
from .trace import Action, Written

Text = Sequence[str]
UNCHECKED = "unchecked"
"""The outcome of an entry that the writer sends again, because it must be checked."""


class Recorder:
    """The actions so far. Call `script` and `delivered` for all that one Redis executes."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._requests: dict[str, str] = {}
        """Request ID by entry ID of the queue."""
        self._last: dict[tuple[str, str], tuple[str, str, Written]] = {}
        """The group, the kind and the entry that a writer has written last to a stream."""
        self._readers: dict[bytes, Callable[[Text, Text, Any], None]] = {
            scripts.SUBMIT.digest: self._submit,
            scripts.ACCEPT.digest: self._accept,
            scripts.REFRESH.digest: self._refresh,
            scripts.APPEND.digest: self._append,
            scripts.TAKE_OVER.digest: self._take_over,
            scripts.FINISH.digest: self._finish,
            scripts.RELEASE.digest: self._release,
        }

    def script(self, digest: bytes, keys: Sequence[Any], arguments: Sequence[Any], reply: Any) -> None:
        """Records a script; those that fail, or change neither claims nor output streams, are left out."""
        if (read := self._readers.get(digest)) is not None and not isinstance(reply, Exception):
            read([_text(key) for key in keys], [_text(value) for value in arguments], reply)

    def delivered(self, group: str, owner: str, reply: Any) -> None:
        """Records the reply to XREADGROUP with `>`."""
        for _, entries in reply or ():
            for entry_id, fields in entries:
                self._claim(group, owner, _text(entry_id), fields[1])

    def _claim(self, group: str, owner: str, entry_id: str, payload: bytes) -> None:
        request = self._requests[entry_id] = decode_request(payload).id
        self.actions.append(Action("claim", request, entry_id, group, owner))

    def _submit(self, keys: Text, arguments: Text, reply: Any) -> None:
        request = _request(keys[5])
        if _text(reply[0]) == "queued":
            self._requests[queued := _text(reply[1])] = request
            self.actions.append(Action("submit", request, queued, token=f"0:{queued.replace('-', '')}"))

    def _accept(self, keys: Text, arguments: Text, reply: Any) -> None:
        _, group, owner, kind, _, *claims = arguments
        for number, (queued, taken_over) in enumerate(zip(claims[::2], claims[1::2], strict=True)):
            token, request = _text(reply[number][0]), _request(keys[2 + 3 * number])
            action = Action("accept", request, queued, group, owner, kind, token, taken_over=taken_over == "1")
            self.actions.append(action)

    def _refresh(self, keys: Text, arguments: Text, reply: Any) -> None:
        _, group, owner, kind, *claims = arguments
        lost = {_text(entry_id) for entry_id in reply}
        for number, (queued, token) in enumerate(zip(claims[::2], claims[1::2], strict=True)):
            request = _request(keys[3 + 2 * number])
            held = queued not in lost
            self.actions.append(Action("refresh", request, queued, group, owner, kind, token, held=held))

    def _append(self, keys: Text, arguments: Text, reply: Any) -> None:
        _, _, writer, _, _, count, *_ = arguments
        direct, start = int(count), 6
        batches: dict[tuple[str, str, str], list[Written]] = {}

        def add(stream: str, group: str, kind: str, entry: Written) -> None:
            if entry.outcome == WRITTEN:
                self._last[writer, stream] = group, kind, entry
            batches.setdefault((_request(stream), group, kind), []).append(entry)

        outcomes = list(map(_outcome, reply[2:]))
        positions = list[tuple[int, int]]()
        while len(positions) < direct:
            found = list(unpack(arguments[start + 1].encode("latin-1")))
            positions += [_position(_text(position)) for _, position, _ in found]
            start += 2 + sum(not message for *_, message in found)
        for number, (stream, position) in enumerate(zip(keys[2 : 2 + direct], positions, strict=True)):
            if outcomes[number] == UNCHECKED:
                continue
            # It must be what the model allows the writer of the entry before, which was checked or direct itself.
            group, kind, last = self._last[writer, stream]
            add(stream, group, kind, Written(last.position, position, last.token, outcomes[number]))
        checked = keys[2 + direct :: 2]
        finished = arguments[start + 6 * len(checked) :]
        finishes = {int(number): queued for number, queued in zip(finished[::3], finished[2::3], strict=True)}
        for number, stream in enumerate(checked):
            position, _, kind, group, token, after = arguments[start + 6 * number : start + 6 * number + 6]
            outcome, finished_claim = outcomes[direct + number], finishes.get(number + 1, "")
            add(stream, group, kind, Written(_position(after), _position(position), token, outcome, finished_claim))
        for (request, group, kind), entries in batches.items():
            self.actions.append(Action("append", request, group=group, kind=kind, entries=tuple(entries)))

    def _take_over(self, keys: Text, arguments: Text, reply: Any) -> None:
        for entry_id, payload in reply:
            self._claim(arguments[1], arguments[2], _text(entry_id), payload)

    def _finish(self, keys: Text, arguments: Text, reply: Any) -> None:
        if request := self._requests.get(arguments[2]):
            self.actions.append(Action("finish", request, arguments[2], arguments[1]))

    def _release(self, keys: Text, arguments: Text, reply: Any) -> None:
        self.actions.append(Action("release", arguments[2]))


def record_memory_redis(redis: MemoryRedis) -> Recorder:
    """Records what an in-memory Redis executes from now on, fail-overs and restarts included."""
    recorder, copies = Recorder(), dict[bytes, str]()
    run_script, group_read, snapshot, restart = redis._run_script, redis._group_read, redis.snapshot, redis.restart

    def recorded_script(source: bytes, arguments: Sequence[bytes]) -> Any:
        reply = run_script(source, arguments)
        count = int(arguments[0])
        recorder.script(_digest(source), arguments[1 : 1 + count], arguments[1 + count :], _decoded(reply))
        return reply

    def recorded_read(owner: Sequence[bytes], key: bytes, count: int | None) -> Callable[[], Any]:
        read = group_read(owner, key, count)

        def recorded() -> Any:
            reply = read()
            if isinstance(reply, list):
                recorder.delivered(*map(_text, owner), reply)
            return reply

        return recorded

    def recorded_snapshot() -> bytes:
        copy = snapshot()
        name = copies.setdefault(copy, f"copy {len(copies)}")
        recorder.actions.append(Action("copy", name))
        return copy

    def recorded_restart(copy: bytes | None = None) -> None:
        restart(copy)
        recorder.actions.append(Action("restore", copies[copy] if copy is not None else ""))

    for name, method in (
        ("_run_script", recorded_script),
        ("_group_read", recorded_read),
        ("snapshot", recorded_snapshot),
        ("restart", recorded_restart),
    ):
        setattr(redis, name, method)
    return recorder


@cache
def _digest(source: bytes) -> bytes:
    return hashlib.sha1(source).hexdigest().encode()


def _decoded(reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _request(key: str) -> str:
    return key.rsplit(":", 2)[1]


def _position(text: str) -> tuple[int, int]:
    frames, sequence = text.split("-")
    return int(frames), int(sequence)


def _outcome(reply: Any) -> str:
    return {0: WRITTEN, 1: GONE, 2: SUPERSEDED, 3: UNCHECKED}.get(reply, BEHIND)
