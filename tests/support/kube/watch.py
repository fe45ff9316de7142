"""Watches: changes to the objects of a kind since a version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from support.kube.kinds import Kind
from support.kube.select import Test
from support.kube.store import Change, Object, Store

Event = dict[str, Any]
_TIME_IS_OVER: Event = {}


class _Watch(NamedTuple):
    """What an open watch gets."""

    queue: asyncio.Queue[Event | None]
    kind: Kind
    namespace: str | None
    test: Test


class Watches:
    """All watches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: list[_Watch] = []
        self.silent = False
        """True keeps watches open without events, as behind a broken load balancer."""
        store.listeners.append(self._hear)

    def drop(self) -> None:
        """Ends all watches, like lost connections."""
        for watch in self._open:
            watch.queue.put_nowait(None)

    def _hear(self, change: Change) -> None:
        for watch in () if self.silent else self._open:
            if event := _event(change, watch.kind, watch.namespace, watch.test):
                watch.queue.put_nowait(event)

    async def events(
        self, kind: Kind, namespace: str | None, test: Test, params: dict[str, str]
    ) -> AsyncIterator[Event]:
        """Yields events until `timeoutSeconds` have passed or the watch is dropped."""
        watch = _Watch(asyncio.Queue(), kind, namespace, test)
        since = params["resourceVersion"]
        seconds = float(params.get("timeoutSeconds", 1800))
        end = asyncio.get_running_loop().call_later(seconds, watch.queue.put_nowait, _TIME_IS_OVER)
        bookmarks = params.get("allowWatchBookmarks") in ("true", "1")
        self._open.append(watch)
        try:
            for change in [change for change in self._store.history if change.version > int(since)]:
                if event := _event(change, kind, namespace, test):
                    yield event
            while event := await watch.queue.get():
                yield event
            if event is _TIME_IS_OVER and bookmarks:
                yield self._bookmark(kind)
        finally:
            end.cancel()
            self._open.remove(watch)

    def _bookmark(self, kind: Kind) -> Event:
        meta: Object = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}}


def _event(change: Change, kind: Kind, namespace: str | None, test: Test) -> Event | None:
    """Returns the event that a watch with a selector gets; a label change may add or remove an object."""
    obj = change.object
    if (change.kind.group, change.kind.plural) != (kind.group, kind.plural):
        return None
    if namespace is not None and obj["metadata"].get("namespace") != namespace:
        return None
    before = change.before is not None and test(change.before)
    after = change.after is not None and test(change.after)
    if after:
        return {"type": "MODIFIED" if before else "ADDED", "object": obj}
    return {"type": "DELETED", "object": obj} if before else None
