"""Checks a trace of a real system: each action, as Redis executed it, must have the outcome that the model gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from .store import FINISHED, GONE, QUEUED, WRITTEN, Batch, Protocol, Store, Token, accept, append, refresh

CREATED = (0, 1)
"""The position of the entry that creates a stream."""
END_SEQUENCE = 9
_PROTOCOL = Protocol()


class Written(NamedTuple):
    """An entry of an append: where its writer was, its position (frames, sequence), and the outcome."""

    after: tuple[int, int]
    position: tuple[int, int]
    token: str
    outcome: str
    finishes: str = ""
    """The claim's entry in the queue, if it is finished."""

    @property
    def end(self) -> bool:
        """Whether it ends its stream."""
        return self.position[1] == END_SEQUENCE


class Action(NamedTuple):
    """One atomic operation of Redis on one request.

    `name` is submit, claim, accept, refresh, append, finish or release; or copy or restore for what a fail-over brings
    back, with the copy's name as `request` ("" for an empty Redis).
    """

    name: str
    request: str
    queued: str = ""
    """The request's entry in the queue. A request that is submitted again gets another one."""
    group: str = ""
    owner: str = ""
    kind: str = ""
    """The stream that `token` or `entries` are about."""
    token: str = ""
    entries: tuple[Written, ...] = ()
    held: bool = True
    """Outcome of a refresh."""
    taken_over: bool = False
    """Whether an accepted claim was taken over."""


@dataclass
class _Request:
    queued: str
    tokens: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    last: dict[str, tuple[int, int]] = field(default_factory=dict)


_Requests = dict[str, _Request]


def validate(actions: Iterable[Action]) -> list[str]:
    """Returns what differs from the model; empty if the model allows the whole trace."""
    requests: _Requests = {}
    copies: dict[str, _Requests] = {"": {}}
    found = []
    for number, action in enumerate(actions):
        if action.name == "copy":
            copies[action.request] = _copied(requests)
        elif action.name == "restore":
            requests = _copied(copies[action.request])
        elif action.name == "submit":
            if action.request not in requests or requests[action.request].queued != action.queued:
                requests[action.request] = _Request(action.queued, dict.fromkeys(("talker", "codec"), action.token))
        elif action.name == "release":
            requests.pop(action.request, None)
        elif problem := _STEPS[action.name](requests.get(action.request), action):
            found.append(
                f"action {number}, {action.name} of {action.request} by {action.owner or 'a writer'}: {problem}"
            )
    return found


def _copied(requests: Mapping[str, _Request]) -> _Requests:
    return {name: deepcopy(each) for name, each in requests.items()}


def _store(request: _Request, group: str, kind: str) -> Store:
    """Returns one group's view of a request, with the last entry only: the model's functions look at no other."""
    last = request.last.get(kind, CREATED)
    entry = Written(last, last, "", WRITTEN)
    token = parse_token(request.tokens.get(group, ""), kind)
    return Store((entry,), token, request.claims.get(group, QUEUED))  # type: ignore[arg-type]


def parse_token(text: str, kind: str) -> Token:
    """Parses `<epoch>:<nonce>:<codes>:<audio>:<previous>` (see `Fence.token`); before a claim only the first two."""
    epoch, nonce, codes, audio, previous, *_ = [*(text or "0:").split(":"), "0-1", "0-1", ""]
    frames, sequence = (codes if kind == "codes" else audio).split("-")
    return Token(int(epoch), nonce, (int(frames), int(sequence)), previous)  # type: ignore[arg-type]


def _claim(request: _Request | None, action: Action) -> str | None:
    if request is not None and request.queued == action.queued:
        request.claims[action.group] = action.owner
    return None


def _finish(request: _Request | None, action: Action) -> str | None:
    if request is not None:
        _finished(request, action.group, action.queued)
    return None


def _finished(request: _Request, group: str, queued: str) -> None:
    if queued != request.queued:
        return
    for each in ("talker", "codec") if group == "codec" else (group,):
        request.claims[each] = FINISHED


def _accept(request: _Request | None, action: Action) -> str | None:
    if request is None:
        return "a token of a request that does not exist" if action.token else None
    got = parse_token(action.token, action.kind)
    before, token = _store(request, action.group, action.kind), None
    if action.queued == request.queued:
        _, token = accept(before, action.owner, got.nonce, action.taken_over, _PROTOCOL)
    if action.token:
        request.tokens[action.group] = action.token
    expected = token or Token(0, "", CREATED, "")  # type: ignore[arg-type]
    return None if got == expected else f"got {got}, the model issues {expected}"


def _refresh(request: _Request | None, action: Action) -> str | None:
    if request is None:
        return "held, although the request does not exist" if action.held else None
    before = _store(request, action.group, action.kind)
    after, held = refresh(before, action.owner, parse_token(action.token, action.kind), _PROTOCOL)
    if after is not None and after.token != before.token:
        request.tokens[action.group] = action.token
    held = held and action.queued == request.queued
    if held != action.held:
        return f"{'held' if action.held else 'lost'}, in the model {'held' if held else 'lost'}"
    if held:
        request.claims[action.group] = action.owner
    return None


def _append(request: _Request | None, action: Action) -> str | None:
    expected = WRITTEN
    for entry in action.entries:
        if expected == WRITTEN:
            expected = _write(request, action, entry)
        if entry.outcome != expected:
            return f"{entry.position} after {entry.after} was {entry.outcome}, in the model {expected}"
    return None


def _write(request: _Request | None, action: Action, entry: Written) -> str:
    """Writes an entry in the model and returns its outcome."""
    if request is None:
        return GONE
    token = parse_token(entry.token, action.kind)
    before = _store(request, action.group, action.kind)
    after, (outcome,) = append(before, Batch(token, entry.after, (entry,)), _PROTOCOL)  # type: ignore[arg-type]
    if after is not None and after.token != before.token:
        request.tokens[action.group] = entry.token
    if after is not None:
        request.last[action.kind] = after.last
    if outcome == WRITTEN and entry.finishes:
        _finished(request, action.group, entry.finishes)
    return outcome


_STEPS: Mapping[str, Callable[[_Request | None, Action], str | None]] = {
    "claim": _claim,
    "finish": _finish,
    "accept": _accept,
    "refresh": _refresh,
    "append": _append,
}
