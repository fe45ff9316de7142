"""Leases: one operator at a time writes in a namespace; others stand by until it stops renewing."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError, if_found
from syrinx_operator.cluster.kinds import LEASE
from syrinx_operator.cluster.state import Manifest, Owner

log = logging.getLogger(__name__)

_MARGIN: Final = 0.2
"""Share of a Lease's duration reserved for a write that has passed the fence."""
_RETRY: Final = 1 / 15
"""Share of a Lease's duration between two attempts to renew it while they fail."""


class LeaseLost(Exception):
    """The Lease has expired or is about to: nothing may be written."""


class LeaseTaken(Exception):
    """Another operator holds the Lease; the message names it."""


@dataclass
class OtherHolder:
    """Another operator's Lease. Its age is measured by our own clock, because clocks of other machines may differ."""

    version: str = ""
    seen_at: float = 0.0

    def has_abandoned(self, live: Manifest, now: float, default_seconds: float) -> bool:
        """Returns whether the Lease has stayed the same for its duration."""
        if self.version != live["metadata"]["resourceVersion"]:
            self.version, self.seen_at = live["metadata"]["resourceVersion"], now
        return now - self.seen_at > float((live.get("spec") or {}).get("leaseDurationSeconds") or default_seconds)


@dataclass
class _Lease:
    """This process's view of a namespace's Lease. Times are of our monotonic clock."""

    namespace: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    held_until: float = 0.0
    """0 if we do not hold it."""
    is_prepared: bool = False
    """Whether everything that was written before we acquired it is known."""
    live: Manifest | None = None
    """The Lease as we wrote it last."""
    other: OtherHolder = field(default_factory=OtherHolder)
    refusal: Exception | None = None
    """Why the last attempt failed; None if it succeeded."""
    refused_at: float = 0.0


class Leases:
    """The Leases of this operator, one in each namespace with pipelines."""

    def __init__(
        self,
        api: Api,
        identity: str,
        seconds: float,
        prepare: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prepare` is called after a Lease is acquired, before anything is written in its namespace; it may raise."""
        self._api = api
        self._identity = identity
        self._seconds = seconds
        self._prepare = prepare
        self._clock = clock
        self._leases: dict[str, _Lease] = {}

    async def hold(self, namespace: str) -> None:
        """Acquires a namespace's Lease, or renews it. Raises LeaseTaken or ApiError."""
        lease = self._leases.setdefault(namespace, _Lease(namespace))
        async with lease.lock:
            if lease.held_until - self._clock() <= self._seconds * 2 / 3:
                await self._attempt(lease)
        async with lease.preparing:
            if not lease.is_prepared:
                await self._prepare(namespace)
                lease.is_prepared = True

    def fence(self, owner: Owner) -> None:
        """Raises LeaseLost unless the pipeline's Lease is held for long enough to finish a write."""
        lease = self._leases.get(owner.namespace)
        if lease is None or not lease.is_prepared or not self._is_safe(lease):
            raise LeaseLost(f"the Lease {names.LEASE} was not renewed in time")

    async def keep(self) -> None:
        """Renews all held Leases three times per duration, and more often while that fails; never returns."""
        has_failed = False
        while True:
            await asyncio.sleep(self._seconds * (_RETRY if has_failed else 1 / 3))
            renewals = [self._renew(lease) for lease in list(self._leases.values()) if lease.held_until]
            has_failed = not all(await asyncio.gather(*renewals))

    def forget(self, namespace: str) -> None:
        """Lets the Lease of a namespace without pipelines expire."""
        self._leases.pop(namespace, None)

    async def release(self) -> None:
        """Releases all held Leases, so that the next operator need not wait for them to expire."""
        held = [lease for lease in self._leases.values() if lease.held_until]
        self._leases = {}
        await asyncio.gather(*map(self._release, held))

    def _is_safe(self, lease: _Lease) -> bool:
        return lease.held_until - self._clock() >= self._seconds * _MARGIN

    async def _renew(self, lease: _Lease) -> bool:
        async with lease.lock:
            if lease.held_until - self._clock() > self._seconds * 2 / 3:
                return True
            lease.refusal = None
            try:
                await self._attempt(lease)
            except (LeaseTaken, ApiError) as error:
                log.warning("%s: the Lease was not renewed: %s", lease.namespace, error)
                return False
            return lease.refusal is None

    async def _attempt(self, lease: _Lease) -> None:
        """Acquires or renews once per third of the duration; in between repeats the last refusal."""
        now = self._clock()
        if lease.held_until <= now:
            # Others may have written since.
            lease.held_until, lease.is_prepared = 0.0, False
        if lease.refusal is None or now - lease.refused_at >= self._seconds / 3:
            lease.refusal = None
            try:
                lease.live = await self._write(lease)
                lease.held_until = now + self._seconds
            except LeaseTaken as error:
                lease.held_until, lease.is_prepared, lease.refusal = 0.0, False, error
            except ApiError as error:
                # Whether the request took effect is unknown: read it the next time.
                lease.live, lease.refusal = None, error
            lease.refused_at = now
        if lease.refusal is not None and not self._is_safe(lease):
            raise lease.refusal

    async def _write(self, lease: _Lease) -> Manifest:
        timeout = self._seconds / 3
        if lease.live is not None:
            try:
                return await self._api.replace(LEASE, lease.namespace, self._manifest(lease), timeout)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
        lease.live = await if_found(self._api.get(LEASE, lease.namespace, names.LEASE))
        try:
            if lease.live is None:
                return await self._api.create(LEASE, lease.namespace, self._manifest(lease))
            self._check(lease, lease.live)
            return await self._api.replace(LEASE, lease.namespace, self._manifest(lease), timeout)
        except ApiError as error:
            if error.status != 409:
                raise
            lease.live = None
            raise LeaseTaken("another operator has just acquired the Lease") from None

    def _check(self, lease: _Lease, live: Manifest) -> None:
        """Raises LeaseTaken unless the Lease is ours, released or abandoned."""
        holder = (live.get("spec") or {}).get("holderIdentity") or ""
        if holder in ("", self._identity) or lease.other.has_abandoned(live, self._clock(), self._seconds):
            return
        lease.live = None
        raise LeaseTaken(f"operator {holder} holds the Lease")

    def _manifest(self, lease: _Lease) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (lease.live or {}).get("spec") or {}
        is_ours = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        metadata = lease.live["metadata"] if lease.live else {"name": names.LEASE, "namespace": lease.namespace}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": math.ceil(self._seconds),
                "acquireTime": before.get("acquireTime", now) if is_ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if is_ours or lease.live is None else transitions + 1,
            },
        }

    async def _release(self, lease: _Lease) -> None:
        try:
            live = await self._api.get(LEASE, lease.namespace, names.LEASE)
            if live.get("spec", {}).get("holderIdentity") == self._identity:
                released = live | {"spec": live["spec"] | {"holderIdentity": ""}}
                await self._api.replace(LEASE, lease.namespace, released)
        except ApiError as error:
            log.info("%s: the Lease was not released and will expire: %s", lease.namespace, error)


class FormerLeases:
    """The Leases by which operators of earlier versions held single pipelines: NAME-operator.

    They are respected once for each pipeline, and left to be deleted with it.
    """

    def __init__(self, api: Api, identity: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._others: dict[tuple[str, str], OtherHolder] = {}
        self._free: dict[tuple[str, str], str] = {}
        """UIDs of the pipelines that no operator of an earlier version holds, by namespace and name."""

    async def check(self, owner: Owner) -> None:
        """Raises LeaseTaken while an operator of an earlier version holds a pipeline; ApiError."""
        key, name = (owner.namespace, owner.name), names.former_lease(owner.name)
        if self._free.get(key) == owner.uid:
            return
        live = await if_found(self._api.get(LEASE, owner.namespace, name))
        holder = ((live or {}).get("spec") or {}).get("holderIdentity") or ""
        other = self._others.setdefault(key, OtherHolder())
        is_held = live is not None and holder not in ("", self._identity)
        if live is not None and is_held and not other.has_abandoned(live, self._clock(), self._seconds):
            raise LeaseTaken(f"operator {holder}, of an earlier version, holds the Lease {name}")
        self._free[key] = owner.uid
        del self._others[key]

    def forget(self, namespace: str, name: str) -> None:
        """Drops a deleted pipeline."""
        self._free.pop((namespace, name), None)
        self._others.pop((namespace, name), None)
