"""A primary that serves on after another server has replaced it, for those that have not noticed: it was paused."""

from __future__ import annotations

from .model import ADMITTED, DELIVERED, IDLE, READING, Bounds, Owner, State, Step, Steps, act, read
from .store import Protocol


def on_former(state: State, protocol: Protocol, bounds: Bounds) -> Steps:
    """Yields every step that is possible on the former primary, with the state after it; the last one demotes it."""
    if state.former is None:
        return
    view = state._replace(primary=state.former, former=None)
    for number, owner in enumerate(state.owners):
        if owner.reconnects:
            # It does not know yet that it has to reconnect.
            own = view.with_owner(number, owner._replace(reconnects=False))
            for step, after in act(own, number, protocol, bounds):
                if not step.fault:
                    yield _named(step), _back(after, state, _used(owner, after.owners[number], protocol), number)
    if state.reads_former and state.reader == READING:
        for step, after in read(view):
            if step.action == "read":
                yield _named(step), after._replace(primary=state.primary, former=after.primary)
    owners = tuple(Owner() if owner.phase == IDLE else owner for owner in state.owners)
    yield Step("demote the former primary"), state._replace(former=None, reads_former=False, owners=owners)


def _used(before: Owner, after: Owner, protocol: Protocol) -> Owner:
    """Returns an owner after a step. No replica acknowledges its claim: it asks, and reconnects without the claim."""
    if protocol.barrier and protocol.confirm and before.phase in (DELIVERED, ADMITTED) and after.phase != IDLE:
        return Owner()
    return after._replace(reconnects=True)


def _back(after: State, state: State, owner: Owner, number: int) -> State:
    """Returns the state after a step of an owner on the former primary, which no replica follows."""
    return after.with_owner(number, owner, primary=state.primary, replica=state.replica, former=after.primary)


def _named(step: Step) -> Step:
    return step._replace(action=f"{step.action} on the former primary")
