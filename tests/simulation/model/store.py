"""What Redis does atomically with one request of one group: the scripts in `redis/lua/`, as pure functions."""

from __future__ import annotations

from typing import NamedTuple

QUEUED, FINISHED = "queued", "finished"
"""Values of `Store.claim` besides the name of an owner."""
WRITTEN, GONE, SUPERSEDED, BEHIND = "written", "gone", "superseded", "behind"
"""Outcomes of an append."""

Position = tuple[int, bool]
"""Number of frames so far, and whether the stream ended there."""


class Protocol(NamedTuple):
    """What the protocol does. Each planted bug changes one of the defaults."""

    fence: bool = True
    """An append is refused unless it carries the token of the latest claim."""
    unique_token: bool = True
    """A token is unique. Otherwise it is the epoch, which a promoted replica may issue again."""
    restore_token: bool = True
    """A token that a fail-over has lost is stored again after the one before it, if the stream has not grown since."""
    continuity: bool = True
    """An append is refused if the stream does not reach the position before it."""
    refuse_rest: bool = True
    """After a refused entry the rest of its batch is refused."""
    recognize_own: bool = True
    """An entry that its owner has already written counts as written."""
    accept_checks_claim: bool = True
    """A consumer gets a token only while it holds the claim."""
    admit_checks_start: bool = True
    """A row is made only of the stream as it was at the claim; else the request is claimed again."""
    barrier: bool = True
    """A claim is replicated before its first entry is written."""
    confirm: bool = True
    """A claim that no replica acknowledges is used only if its server is still the primary."""
    journal: bool = True
    """An owner writes again what a fail-over lost, also of what earlier owners have written."""
    keep_ended: bool = True
    """An owner does not claim a request again that it has ended, while its journal has the end."""
    repair: bool = True
    """An owner looks for a lost suffix after a fail-over, even if it has nothing to write."""
    grace: bool = True
    """Nobody takes over a claim after a fail-over before its owner had time to reconnect."""


class Token(NamedTuple):
    """Identifies a claim."""

    epoch: int = 0
    nonce: int = 0
    start: Position = (0, False)
    """Where the stream stood at the claim."""
    previous: int = 0
    """The nonce of the claim before it."""


class Entry(NamedTuple):
    """A frame, or the end after the frames of `chain`."""

    chain: tuple[int, ...]
    """The claim (nonce) that generated each frame so far. Two claims generate different frames, as two GPUs do."""
    end: bool
    epoch: int

    @property
    def position(self) -> Position:
        """The order of entries in a stream."""
        return len(self.chain), self.end

    @property
    def preceding(self) -> tuple[int, ...]:
        """The frames that this entry continues."""
        return self.chain if self.end else self.chain[:-1]


class Store(NamedTuple):
    """What one server holds of a request."""

    entries: tuple[Entry, ...] = ()
    token: Token = Token()
    claim: str = QUEUED

    @property
    def last(self) -> Position:
        """The position of the last entry."""
        return self.entries[-1].position if self.entries else (0, False)

    @property
    def ended(self) -> bool:
        """Whether the stream has its end."""
        return bool(self.entries) and self.entries[-1].end


class Batch(NamedTuple):
    """An append of consecutive entries. One without entries only asks whether they could be written."""

    token: Token
    after: Position
    """The writer's position before the entries."""
    entries: tuple[Entry, ...]


def accept(store: Store, owner: str, nonce: int, taken_over: bool, protocol: Protocol) -> tuple[Store, Token | None]:
    """Issues a token to a consumer that holds the claim (`accept.lua`).

    A request that was delivered although it has an owner is left to that owner, unless it was taken over.
    """
    if protocol.accept_checks_claim and store.claim != owner:
        return store, None
    if not taken_over and store.token.epoch and store.token.nonce != nonce:
        return store, None
    token = Token(store.token.epoch + 1, nonce, store.last, store.token.nonce)
    return store._replace(token=token), token


def refresh(store: Store | None, owner: str, token: Token, protocol: Protocol) -> tuple[Store | None, bool]:
    """Renews a lease and returns whether the claim is still the owner's (`refresh.lua`)."""
    if store is None or store.claim == FINISHED:
        return store, False
    store, newest = _newest(store, token, protocol)
    if not newest or (store.ended and store.claim != owner):
        return store, False
    return store._replace(claim=owner), True


def append(store: Store | None, batch: Batch, protocol: Protocol) -> tuple[Store | None, tuple[str, ...]]:
    """Writes entries and returns their outcomes, and finishes the claim with the end (`append.lua`)."""
    if store is None:
        return None, (GONE,) * max(1, len(batch.entries))
    store, valid = _newest(store, batch.token, protocol)
    if not batch.entries:
        behind = protocol.continuity and store.last < batch.after
        return store, (SUPERSEDED if not valid else BEHIND if behind else WRITTEN,)
    outcomes: list[str] = []
    after = batch.after
    for entry in batch.entries:
        outcome = _outcome(store, valid, after, entry.position, protocol)
        if outcomes and outcomes[-1] != WRITTEN and protocol.refuse_rest:
            outcome = outcomes[-1]
        if outcome is None:
            store = store._replace(entries=(*store.entries, entry))
        if outcome in (None, WRITTEN) and entry.end:
            store = store._replace(claim=FINISHED)
        outcomes.append(outcome or WRITTEN)
        after = entry.position
    return store, tuple(outcomes)


def _newest(store: Store, token: Token, protocol: Protocol) -> tuple[Store, bool]:
    """Returns whether a token is of the newest claim (`owner.lua`), and the store, which may have learned it."""
    known = store.token
    if (known == token) if protocol.unique_token else (known.epoch == token.epoch):
        return store, True
    previous = (token.epoch - 1, token.previous)
    if protocol.restore_token and (known.epoch, known.nonce) == previous and token.start >= store.last:
        return store._replace(token=token), True
    return store, not protocol.fence


def _outcome(store: Store, valid: bool, after: Position, at: Position, protocol: Protocol) -> str | None:
    """Returns the outcome of an entry at `at` whose writer was at `after`; None if it is to be written."""
    if not valid:
        return SUPERSEDED
    if protocol.continuity and store.last < after:
        return BEHIND
    if store.last < at:
        return None if store.last == after or not protocol.continuity else SUPERSEDED
    return WRITTEN if store.last != after and protocol.recognize_own else SUPERSEDED
