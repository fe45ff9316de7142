"""Claim, takeover and append as a transition function over immutable states.

One request, one group, two owners and one reader. There is no clock: whatever is paused, cut off or slow takes its next
step later, so a command that is under way is one that its sender has not issued yet. Only a lost connection or a crash
leaves commands behind that arrive late. A lease expires if its owner does not serve the request; else only by a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .store import BEHIND, FINISHED, GONE, QUEUED, WRITTEN, Batch, Entry, Protocol, Store, Token
from .store import accept as accept_claim
from .store import append as append_batch
from .store import refresh as refresh_claim

IDLE, DELIVERED, ACCEPTED, ADMITTED, SERVING, ENDED = "idle", "delivered", "accepted", "admitted", "serving", "ended"
"""Phases of an owner."""
READING, SPLICED, COMPLETE, FAILED = "reading", "spliced", "complete", "failed"
"""Status of the reader."""
NAMES = ("A", "B")
RESUBMITTED = -1
"""The nonce before the first claim of a request that was submitted again: owners from before do not continue it."""


class Faults(NamedTuple):
    """Number of faults that may still happen."""

    crashes: int = 1
    losses: int = 1
    """Lost connections: the reply to a command is lost, or the command arrives late."""
    pauses: int = 1
    """Leases that expire although their owner serves: it is paused, or partitioned from Redis."""
    failovers: int = 1
    """The primary dies, and the replica is promoted as it is."""
    replacements: int = 1
    """The replica is promoted, and the primary serves on those that have not noticed until it is demoted."""

    @property
    def promotions(self) -> int:
        """Number of replicas that may still be promoted."""
        return self.failovers + self.replacements


class Bounds(NamedTuple):
    """The size of the model."""

    frames: int = 3
    shortest: int = 2
    """Fewest frames of a stream. Owners may end it at different lengths."""
    batch: int = 2
    """Entries of an append."""
    faults: Faults = Faults()


class Owner(NamedTuple):
    """One replica and its row of the request."""

    phase: str = IDLE
    token: Token = Token()
    chain: tuple[int, ...] = ()
    """The frames that the row has, as in `Entry`."""
    ended: bool = False
    """It has generated the end."""
    written: int = 0
    """Number of entries that are in the stream, as far as it knows."""
    reconnects: bool = False
    """A fail-over closed its connections, and it has not reached the new primary yet."""
    fresh: bool = False
    """The request was delivered to it as a new one."""

    @property
    def total(self) -> int:
        """Number of its entries."""
        return len(self.chain) + self.ended

    def batch(self, count: int) -> Batch:
        """Returns the append of its next entries, `count` at most."""
        frames = len(self.chain)
        entries = [Entry(self.chain[:end], False, self.token.epoch) for end in range(self.written + 1, frames + 1)]
        if self.ended:
            entries.append(Entry(self.chain, True, self.token.epoch))
        after = (min(self.written, frames), self.written > frames)
        return Batch(self.token, after, tuple(entries[:count] if self.written < self.total else ()))


class State(NamedTuple):
    """Everything between two steps."""

    primary: Store | None = Store()
    """None: the request does not exist."""
    replica: Store | None = None
    former: Store | None = None
    """A primary that was replaced and not demoted yet, if it knows the request. Owners that have not reconnected, and
    the reader if `reads_former`, may still use it: see `former.py`."""
    reads_former: bool = False
    owners: tuple[Owner, ...] = (Owner(), Owner())
    delayed: frozenset[Batch] = frozenset()
    """Batches that may still arrive."""
    reader: str = READING
    last: Entry | None = None
    """The last entry that the reader got."""
    faults: Faults = Faults()
    nonces: int = 0

    def with_owner(self, number: int, owner: Owner, **changes: Any) -> State:
        """Returns the state with one owner replaced."""
        return self._replace(owners=(*self.owners[:number], owner, *self.owners[number + 1 :]), **changes)

    def spend(self, kind: str) -> State | None:
        """Returns the state after a fault, None if no such fault is left."""
        left = getattr(self.faults, kind) - 1
        return self._replace(faults=self.faults._replace(**{kind: left})) if left >= 0 else None


class Step(NamedTuple):
    """The name of a transition."""

    action: str
    owner: str = ""
    detail: object = ""
    fault: bool = False


Steps = Iterator[tuple[Step, State]]


def on_primary(state: State, protocol: Protocol, bounds: Bounds) -> Steps:
    """Yields every step that is possible on the primary, with the state after it."""
    for number in range(len(state.owners)):
        yield from act(state, number, protocol, bounds)
        yield from _drop(state, number, bounds)
    for batch in sorted(state.delayed):
        primary, outcomes = append_batch(state.primary, batch, protocol)
        arrived = state._replace(primary=primary, delayed=state.delayed - {batch})
        yield Step("a delayed append arrives", "", (batch, outcomes)), arrived
    for step, after in read(state):
        yield step, after._replace(reads_former=False)
    yield from _replicate(state)


def act(state: State, number: int, protocol: Protocol, bounds: Bounds) -> Steps:
    """Yields what an owner may do on the primary."""
    phase = state.owners[number].phase
    if phase == IDLE:
        yield from _claim(state, number, protocol)
    elif phase == DELIVERED:
        yield from _accept(state, number, protocol)
    elif phase in (ACCEPTED, ADMITTED):
        yield from _admit(state, number, protocol)
    else:
        yield from _append(state, number, protocol, bounds)
        if phase == ENDED and not protocol.keep_ended:
            yield from _claim(state, number, protocol)
    yield from _refresh(state, number, protocol)


def _claim(state: State, number: int, protocol: Protocol) -> Steps:
    """XREADGROUP of a queued request, or `take_over.lua`. A consumer finds its own claims without waiting."""
    primary, name, other = state.primary, NAMES[number], state.owners[1 - number]
    if primary is None or primary.claim == FINISHED:
        return
    if primary.claim == QUEUED and not state.nonces and number:
        return  # The owners are alike: the first is A.
    after: State | None = state
    owned = primary.claim == NAMES[1 - number] or (other.phase != IDLE and other.token == primary.token)
    if primary.claim != QUEUED and owned:
        serves = other.phase not in (IDLE, ENDED) and not other.reconnects
        if serves or (protocol.grace and other.reconnects):
            after = state.spend("pauses")
    if after is None:
        return
    step = Step("claim" if primary.claim == QUEUED else "take over", name, fault=after.faults != state.faults)
    after = after._replace(primary=primary._replace(claim=name))
    yield step, after.with_owner(number, Owner(DELIVERED, fresh=primary.claim == QUEUED))
    if primary.claim != name and (lost := after.spend("losses")):
        yield step._replace(detail="reply lost", fault=True), lost


def _accept(state: State, number: int, protocol: Protocol) -> Steps:
    primary, token, name = state.primary, None, NAMES[number]
    if primary is not None:
        primary, token = accept_claim(primary, name, state.nonces + 1, not state.owners[number].fresh, protocol)
    if token is None:
        yield Step("accept", name, "refused"), state.with_owner(number, Owner())
        return
    accepted = state._replace(primary=primary, nonces=state.nonces + 1)
    yield Step("accept", name, token), accepted.with_owner(number, Owner(ACCEPTED, token))
    if lost := accepted.spend("losses"):
        yield Step("accept", name, "reply lost", fault=True), lost


def _admit(state: State, number: int, protocol: Protocol) -> Steps:
    """The row is made from the stream; WAIT then makes sure that a promoted replica knows the claim."""
    primary, owner, name = state.primary, state.owners[number], NAMES[number]
    if owner.reconnects and protocol.confirm:
        # The barrier is on the connection that the claim was accepted on.
        yield Step("accept again after a reconnection", name), state.with_owner(number, Owner(DELIVERED))
    elif owner.phase == ADMITTED:
        replica = primary if state.faults.promotions else None
        yield (
            Step("replicate the claim", name),
            state.with_owner(number, owner._replace(phase=SERVING), replica=replica),
        )
    elif primary is None:
        yield Step("admit", name, GONE), state.with_owner(number, Owner())
    elif protocol.admit_checks_start and primary.last != owner.token.start:
        yield Step("admit", name, "changed since the claim"), state.with_owner(number, Owner(DELIVERED))
    elif primary.last[1]:
        finished = state._replace(primary=primary._replace(claim=FINISHED))
        yield Step("admit", name, "ended"), finished.with_owner(number, Owner())
    else:
        chain = primary.entries[-1].chain if primary.entries else ()
        phase = ADMITTED if protocol.barrier else SERVING
        row = owner._replace(phase=phase, chain=chain, written=len(chain))
        yield Step("admit", name, len(chain)), state.with_owner(number, row)


def _append(state: State, number: int, protocol: Protocol, bounds: Bounds) -> Steps:
    """Appends what is missing in Redis, else newly generated entries. A lost connection leads to a retry."""
    name = NAMES[number]
    for row in _rows(state.owners[number], protocol, bounds):
        batch = row.batch(0 if row.reconnects and protocol.repair else bounds.batch)
        primary, outcomes = append_batch(state.primary, batch, protocol)
        step = Step("append", name, (batch.after, batch.entries, outcomes))
        done = row._replace(reconnects=False)
        yield step, state.with_owner(number, _received(done, batch, state.primary, outcomes, protocol), primary=primary)
        if batch.entries and (lost := state.spend("losses")):
            step = step._replace(fault=True)
            yield step._replace(action="append, reply lost"), lost.with_owner(number, done, primary=primary)
            delayed = state.delayed | {batch}
            yield step._replace(action="append, delayed"), lost.with_owner(number, done, delayed=delayed)


def _rows(owner: Owner, protocol: Protocol, bounds: Bounds) -> Iterator[Owner]:
    """Yields the row as it may be at the next append."""
    if owner.reconnects and not protocol.repair:
        owner = owner._replace(reconnects=False)
    if owner.reconnects or owner.written < owner.total:
        yield owner
    elif owner.phase == SERVING:
        for count in range(bounds.batch + 1):
            row = owner._replace(chain=owner.chain + (owner.token.nonce,) * count)
            if count and len(row.chain) <= bounds.frames:
                yield row
            if count < bounds.batch and bounds.shortest <= len(row.chain) <= bounds.frames:
                yield row._replace(ended=True)


def _received(row: Owner, batch: Batch, primary: Store | None, outcomes: tuple[str, ...], protocol: Protocol) -> Owner:
    """Returns the row after the outcomes of its append."""
    refusal = next((outcome for outcome in outcomes if outcome != WRITTEN), None)
    if refusal is None:
        written = row.written + len(batch.entries)
        return row._replace(written=written, phase=ENDED if written > len(row.chain) else SERVING)
    if refusal == BEHIND and primary is not None and protocol.journal:
        return row._replace(phase=SERVING, written=primary.last[0])
    return Owner(DELIVERED) if refusal != GONE and row.phase == SERVING else Owner()


def _refresh(state: State, number: int, protocol: Protocol) -> Steps:
    """An owner that holds the newest token gets its claim back; another one drops the row."""
    owner, name, primary = state.owners[number], NAMES[number], state.primary
    if owner.phase not in (ACCEPTED, ADMITTED, SERVING) or owner.ended:
        return
    refreshed, mine = refresh_claim(primary, name, owner.token, protocol)
    if not mine:
        yield Step("find the claim lost", name), state.with_owner(number, Owner(), primary=refreshed)
    elif refreshed != primary:
        yield Step("refresh", name), state._replace(primary=refreshed)


def _drop(state: State, number: int, bounds: Bounds) -> Steps:
    """A journal is no longer needed, or the process dies."""
    owner, name, primary = state.owners[number], NAMES[number], state.primary
    if owner.phase == IDLE:
        return
    dropped = state.with_owner(number, Owner())
    durable = state.replica if state.faults.promotions else primary
    if owner.phase == ENDED and (durable is None or durable.claim == FINISHED):
        yield Step("discard the journal", name), dropped
    if crashed := dropped.spend("crashes"):
        yield Step("crash", name, fault=True), crashed
        if owner.phase == SERVING:
            for row in _rows(owner, Protocol(), bounds):
                batch = row.batch(bounds.batch)
                delayed = crashed._replace(delayed=state.delayed | {batch})
                yield Step("crash during an append", name, batch.entries, fault=True), delayed


def read(state: State) -> Steps:
    """The reader gets the next entry, submits a lost request again, or releases one that is over."""
    primary, last = state.primary, state.last
    if state.reader != READING:
        if primary is not None:
            yield Step("release"), state._replace(primary=None)
        return
    if primary is None:
        if last is None:
            yield Step("submit again"), state._replace(primary=Store(token=Token(nonce=RESUBMITTED)))
        else:
            yield Step("find the request lost"), state._replace(reader=FAILED, last=None)
        return
    chain, position = (last.chain, last.position) if last is not None else ((), (0, False))
    entry = next((each for each in primary.entries if each.position > position), None)
    if entry is None and primary.claim == FINISHED:
        yield Step("stall"), state._replace(reader=FAILED, last=None)
    if entry is not None:
        status = COMPLETE if entry.end else READING
        status = status if entry.preceding == chain else SPLICED
        yield Step("read", "", entry), state._replace(reader=status, last=entry if status == READING else None)


def _replicate(state: State) -> Steps:
    """The replica catches up, or it is promoted as it is."""
    if state.faults.promotions and state.replica != state.primary:
        yield Step("replicate"), state._replace(replica=state.primary)
    if promoted := state.spend("failovers"):
        owners = tuple(owner._replace(reconnects=owner.phase != IDLE) for owner in state.owners)
        yield Step("fail over", fault=True), _promoted(promoted, owners)
    if state.primary is not None and (promoted := state.spend("replacements")):
        owners = tuple(owner._replace(reconnects=True) for owner in state.owners)
        replaced = _promoted(promoted, owners)._replace(former=state.primary, reads_former=True)
        yield Step("replace the primary", fault=True), replaced


def _promoted(state: State, owners: tuple[Owner, ...]) -> State:
    replica = state.replica if state.faults.promotions else None
    # An earlier primary was demoted by now.
    return state._replace(primary=state.replica, replica=replica, owners=owners, former=None, reads_former=False)
