"""Keeps the objects of one kind in memory: a LIST, a WATCH of the changes after it, and a LIST from time to time."""

import asyncio
import logging
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.cluster.objects.kinds import OPTIONAL, Kind
from syrinx_operator.cluster.objects.names import PIPELINE_LABEL
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.watch.api import Api, ApiError, WatchEvent
from syrinx_operator.cluster.watch.backoff import backoff

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 30.0
"""Seconds of failed attempts to watch after which the objects in memory are too old to act on."""
MIN_SECONDS: Final = 1.0
"""Minimum seconds between two watches, if the server ends them early."""
LONG_SECONDS: Final = 10.0
"""A watch that has lasted this long was no failure, so the backoff starts again."""
NOT_SERVED_SECONDS: Final = 60.0
"""Seconds between two checks whether an optional kind is served by now."""
GONE: Final = 410

Change = Callable[[Kind, str, Manifest], None]
"""Gets the kind, the type of the change (ADDED, MODIFIED or DELETED) and the object."""


class _Stored(Struct, frozen=True):
    version: int
    pipeline: str
    data: bytes
    """The object as compressed JSON, which takes a fraction of the memory. Each reader gets its own copy."""


class Informer:
    """The objects of a kind in one namespace or in all. `run` never returns: every error is retried with backoff.

    Resource versions of a kind are compared as numbers: nothing older than what is stored replaces it.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind,
        namespace: str | None,
        selector: str,
        on_change: Change,
        *,
        relist_seconds: float,
        max_backoff_seconds: float,
    ) -> None:
        self.kind = kind
        self.namespace = namespace
        self.error: ApiError | None = None
        """The error of the last attempt to list or watch; None if it succeeded."""
        self.is_served = True
        self._api = api
        self._selector = selector
        self._on_change = on_change
        self._relist_seconds = relist_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._stored: dict[tuple[str, str], _Stored] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        """Names of objects by namespace and pipeline."""
        self._floors: dict[str | None, int] = {}
        """Versions of the last LIST of a namespace, or of the whole scope (None)."""
        self._version = ""
        """Where the next watch starts; empty if a LIST must precede it."""
        self._seen = 0
        """Version of the last event."""
        self._relist_at = 0.0
        self._is_listed = False
        self._failing_since = 0.0
        self._tried = asyncio.Event()
        self._outdated: set[str] = set()
        """Namespaces to be listed before anything is written in them."""
        self._refreshing = asyncio.Lock()

    async def run(self) -> None:
        """Lists and watches until it is cancelled."""
        failures = 0
        while True:
            started = monotonic()
            try:
                await self._follow()
                failures, pause = 0, MIN_SECONDS
            except ApiError as error:
                failures = 1 if monotonic() - started > LONG_SECONDS else failures + 1
                pause = self._failed(error, failures)
            except Exception as error:
                log.exception("%s: unexpected error", self)
                failures, self._version = failures + 1, ""
                message = f"unexpected error: {type(error).__name__}: {error}"
                pause = self._failed(ApiError(0, "InternalError", message), failures)
            await asyncio.sleep(pause)

    def get(self, namespace: str, name: str) -> Manifest | None:
        """Returns an object."""
        found = self._stored.get((namespace, name))
        return None if found is None else _decode(found.data)

    def of_pipeline(self, namespace: str, pipeline: str) -> list[Manifest]:
        """Returns the objects with a pipeline's label."""
        names = self._names.get((namespace, pipeline), ())
        return [_decode(self._stored[namespace, name].data) for name in sorted(names)]

    def all(self, namespace: str) -> Iterator[Manifest]:
        """Yields all objects in a namespace."""
        return (_decode(each.data) for (within, _), each in self._stored.items() if within == namespace)

    def put(self, live: Manifest) -> None:
        """Stores what a request returned, unless the watch is already beyond it."""
        version, metadata = _version(live), live["metadata"]
        if self._selector and PIPELINE_LABEL not in (metadata.get("labels") or {}):
            return
        known = self._stored.get((metadata["namespace"], metadata["name"]))
        newest = max(self._seen, self._floor(metadata["namespace"]), known.version if known else 0)
        if version > newest:
            self._store(version, live)

    def discard(self, namespace: str, name: str, uid: str) -> None:
        """Removes an object that has been deleted."""
        found = self.get(namespace, name)
        if found is not None and found["metadata"]["uid"] == uid:
            self._remove(namespace, name)

    async def tried(self) -> None:
        """Waits until the first LIST has succeeded or failed."""
        await self._tried.wait()

    def staleness(self) -> ApiError | None:
        """Returns why the objects in memory are none to act on; None if they are current."""
        if not self._is_listed:
            return self.error or ApiError(503, "NotListed", f"{self}: not listed yet")
        is_stale = self.error is not None and monotonic() - self._failing_since > STALE_SECONDS
        return self.error if is_stale else None

    def outdate(self, namespace: str) -> None:
        """Makes the next `refresh` of a namespace list it."""
        self._outdated.add(namespace)

    async def refresh(self, namespace: str) -> None:
        """Lists a namespace if it is outdated. Raises ApiError."""
        async with self._refreshing:
            if namespace not in self._outdated:
                return
            try:
                listing = await self._api.list_objects(self.kind, namespace, self._selector)
            except ApiError as error:
                if not (error.not_found and self.kind in OPTIONAL):
                    raise
            else:
                self._replace(listing.items, int(listing.version), namespace)
            self._outdated.discard(namespace)

    async def _follow(self) -> None:
        """Lists if that is due, and watches until the connection or the time until the next LIST ends."""
        if not self._version or monotonic() >= self._relist_at:
            await self._list()
        seconds = max(MIN_SECONDS, self._relist_at - monotonic())
        async with self._api.watch(self.kind, self.namespace, self._selector, self._version, seconds) as events:
            self._succeeded()
            async for event in events:
                self._receive(event)

    async def _list(self) -> None:
        listing = await self._api.list_objects(self.kind, self.namespace, self._selector)
        self._replace(listing.items, int(listing.version), self.namespace)
        self._version = listing.version
        # Not all kinds at the same time.
        self._relist_at = monotonic() + self._relist_seconds * random.uniform(0.8, 1.0)
        self._is_listed = True
        self._tried.set()

    def _succeeded(self) -> None:
        if self.error is not None:
            log.info("%s: watching again", self)
        self.error, self.is_served = None, True

    def _failed(self, error: ApiError, failures: int) -> float:
        """Handles a failure and returns the seconds until the next attempt."""
        pause = max(error.retry_after or 0.0, backoff(failures, random.random(), self._max_backoff_seconds))
        if error.status == GONE:
            self._version = ""
            return pause
        if error.not_found:
            self._clear()
            if self.kind in OPTIONAL:
                self.error, self.is_served, self._is_listed = None, False, True
                self._tried.set()
                return NOT_SERVED_SECONDS
            # Not 404, which would say that a pipeline does not exist.
            message = f"the cluster does not serve {self.kind.plural} ({self.kind.api_version}): install the CRD"
            error = ApiError(503, "NotServed", message)
        if self.error is None:
            self._failing_since = monotonic()
        if self.error is None or str(self.error) != str(error):
            log.warning("%s: cannot watch: %s (%s); trying again", self, error, error.reason)
        self.error = error
        self._tried.set()
        return pause

    def _clear(self) -> None:
        """Removes all objects: the kind is not served."""
        self._version, self._is_listed = "", False
        newest = max((each.version for each in self._stored.values()), default=0)
        self._replace([], newest, self.namespace)

    def _receive(self, event: WatchEvent) -> None:
        version, live = _version(event.object), event.object
        self._version, self._seen = live["metadata"]["resourceVersion"], version
        if event.type == "BOOKMARK":
            return
        metadata = live["metadata"]
        known = self._stored.get((metadata["namespace"], metadata["name"]))
        if version <= self._floor(metadata["namespace"]) or (known is not None and known.version > version):
            return
        if event.type == "DELETED":
            self._remove(metadata["namespace"], metadata["name"])
        else:
            self._store(version, live)
        self._on_change(self.kind, event.type, live)

    def _replace(self, items: Iterable[Manifest], version: int, namespace: str | None) -> None:
        """Makes a LIST the content, without what has been written since; reports the differences as changes."""
        found = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in items}
        for key, known in list(self._stored.items()):
            if key not in found and known.version <= version and namespace in (None, key[0]):
                gone = _decode(known.data)
                self._remove(*key)
                self._on_change(self.kind, "DELETED", gone)
        for key, live in found.items():
            before = self._stored.get(key)
            if before is None or before.version < _version(live):
                self._store(_version(live), live)
                self._on_change(self.kind, "ADDED" if before is None else "MODIFIED", live)
        self._floors[namespace] = max(version, self._floors.get(namespace, 0))

    def _floor(self, namespace: str) -> int:
        return max(self._floors.get(namespace, 0), self._floors.get(None, 0))

    def _store(self, version: int, live: Manifest) -> None:
        # Most of an object is `managedFields`. The plan needs only who owns the replica count.
        metadata: dict[str, Any] = {key: each for key, each in live["metadata"].items() if key != "managedFields"}
        if owners := list(_owners_of_replicas(live)):
            metadata["managedFields"] = owners
        pipeline = (metadata.get("labels") or {}).get(PIPELINE_LABEL, "")
        self._remove(metadata["namespace"], metadata["name"])
        typed = {**live, "apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": metadata}
        data = zlib.compress(msgspec.json.encode(typed), level=1)
        self._stored[metadata["namespace"], metadata["name"]] = _Stored(version, pipeline, data)
        self._names.setdefault((metadata["namespace"], pipeline), set()).add(metadata["name"])

    def _remove(self, namespace: str, name: str) -> None:
        known = self._stored.pop((namespace, name), None)
        if known is not None:
            names = self._names[namespace, known.pipeline]
            names.discard(name)
            if not names:
                del self._names[namespace, known.pipeline]

    def __str__(self) -> str:
        return self.kind.plural if self.namespace is None else f"{self.namespace}/{self.kind.plural}"


def _owners_of_replicas(live: Manifest) -> Iterator[Manifest]:
    """Yields the entries of `managedFields` that own the replica count, without their other fields."""
    for entry in live["metadata"].get("managedFields") or ():
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {}):
            yield {"manager": entry.get("manager"), "fieldsV1": {"f:spec": {"f:replicas": {}}}}


def _decode(data: bytes) -> Manifest:
    decoded: Manifest = msgspec.json.decode(zlib.decompress(data))
    return decoded


def _version(live: Manifest) -> int:
    return int(live["metadata"]["resourceVersion"])
