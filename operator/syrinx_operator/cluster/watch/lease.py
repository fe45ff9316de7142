"""Leases: one operator at a time writes in a namespace; others stand by until it stops renewing.

An installation renews one Lease, in its own namespace. It claims each namespace with pipelines by another Lease there,
which names the first one. So the requests do not grow with the number of namespaces.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import Now, monotonic, utc_now
from syrinx_operator.cluster.objects.kinds import LEASE
from syrinx_operator.cluster.objects.state import Manifest, Owner
from syrinx_operator.cluster.watch.api import Api, ApiError, if_found
from syrinx_operator.cluster.watch.workqueue import NamespacedName

log = logging.getLogger(__name__)

_MARGIN: Final = 0.2
"""Share of a Lease's duration reserved for a write that has passed the fence."""
_RETRY: Final = 1 / 15
"""Share of a Lease's duration between two attempts to renew it while they fail."""
CLAIM_SECONDS: Final = 600.0
"""Duration of a namespace's Lease. It ends earlier if the installation's Lease does."""


class LeaseLost(Exception):
    """The Lease has expired or is about to: nothing may be written."""


class LeaseTaken(Exception):
    """Another operator holds the Lease; the message names it."""


@dataclass
class OtherHolder:
    """Another operator's Lease. Its age is measured by our own clock, because clocks of other machines may differ."""

    version: str | None = None
    seen_at: float = 0.0

    def has_abandoned(self, live: Manifest | None, now: float, default_seconds: float) -> bool:
        """Returns whether the Lease has stayed the same, or away, for its duration."""
        version = "" if live is None else live["metadata"]["resourceVersion"]
        if self.version != version:
            self.version, self.seen_at = version, now
        seconds = ((live or {}).get("spec") or {}).get("leaseDurationSeconds") or default_seconds
        return now - self.seen_at > float(seconds)


class Lease:
    """One Lease. Times are of our monotonic clock."""

    def __init__(
        self,
        api: Api,
        key: NamespacedName,
        holder: str,
        *,
        seconds: float,
        retry_seconds: float,
        clock: Callable[[], float],
        now: Now,
        has_stopped: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`retry_seconds`: time between two attempts that fail. `has_stopped` tells it of another holder."""
        self.term = 0
        """How often it was acquired after it had expired: others may have written before each."""
        self._api = api
        self._key = key
        self._holder = holder
        self._seconds = seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._now = now
        self._has_stopped = has_stopped
        self._lock = asyncio.Lock()
        self._held_until = 0.0
        self._live: Manifest | None = None
        """The Lease as we wrote it last."""
        self._other = OtherHolder()
        self._refusal: Exception | None = None
        """Why the last attempt failed; None if it succeeded."""
        self._refused_at = 0.0

    @property
    def is_safe(self) -> bool:
        """Whether it is held for long enough to finish a write."""
        return self._held_until - self._clock() >= self._seconds * _MARGIN

    async def hold(self) -> None:
        """Acquires it, or renews it after a third of its duration. Raises LeaseTaken or ApiError."""
        async with self._lock:
            if self._held_until - self._clock() <= self._seconds * 2 / 3:
                await self._attempt()

    async def renew(self) -> bool:
        """Renews it if it is held. Returns whether that succeeded."""
        async with self._lock:
            if not self._held_until or self._held_until - self._clock() > self._seconds * 2 / 3:
                return True
            self._refusal = None
            try:
                await self._attempt()
            except (LeaseTaken, ApiError) as error:
                log.warning("the Lease %s was not renewed: %s", self._key, error)
                return False
            return self._refusal is None

    def doubt(self) -> None:
        """Requires that it is acquired again: another operator may have it."""
        self._held_until = 0.0

    async def release(self) -> None:
        """Lets another operator acquire it immediately."""
        async with self._lock:
            if not self._held_until:
                return
            self._held_until = 0.0
            try:
                live = await self._api.get(LEASE, self._key.namespace, self._key.name)
                if live.get("spec", {}).get("holderIdentity") == self._holder:
                    released = live | {"spec": live["spec"] | {"holderIdentity": ""}}
                    await self._api.replace(LEASE, self._key.namespace, released)
            except ApiError as error:
                log.info("the Lease %s was not released and will expire: %s", self._key, error)

    async def _attempt(self) -> None:
        """Acquires or renews at most once per `retry_seconds`; in between repeats the last refusal."""
        now = self._clock()
        was_held = self._held_until > now
        if self._refusal is None or now - self._refused_at >= self._retry_seconds:
            self._refusal, self._refused_at = None, now
            try:
                self._live = await self._write()
                self.term += not was_held
                self._held_until = now + self._seconds
            except LeaseTaken as error:
                self._held_until, self._refusal = 0.0, error
            except ApiError as error:
                # Whether the request took effect is unknown: read it the next time.
                self._live, self._refusal = None, error
        if self._refusal is not None and not self.is_safe:
            raise self._refusal

    async def _write(self) -> Manifest:
        namespace, timeout = self._key.namespace, self._retry_seconds
        if self._live is not None:
            try:
                return await self._api.replace(LEASE, namespace, self._manifest(), timeout)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
        self._live = await if_found(self._api.get(LEASE, namespace, self._key.name))
        try:
            if self._live is None:
                return await self._api.create(LEASE, namespace, self._manifest())
            await self._check(self._live)
            return await self._api.replace(LEASE, namespace, self._manifest(), timeout)
        except ApiError as error:
            if error.status != 409:
                raise
            self._live = None
            raise LeaseTaken(f"another operator has just acquired the Lease {self._key}") from None

    async def _check(self, live: Manifest) -> None:
        """Raises LeaseTaken unless the Lease is ours, released or abandoned; ApiError."""
        holder = (live.get("spec") or {}).get("holderIdentity") or ""
        if holder in ("", self._holder) or self._other.has_abandoned(live, self._clock(), self._seconds):
            return
        if self._has_stopped is not None and await self._has_stopped(holder):
            return
        self._live = None
        raise LeaseTaken(f"operator {holder} holds the Lease {self._key}")

    def _manifest(self) -> Manifest:
        now = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        live = self._live
        before = (live or {}).get("spec") or {}
        is_ours = before.get("holderIdentity") == self._holder
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": live["metadata"] if live else {"name": self._key.name, "namespace": self._key.namespace},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": math.ceil(self._seconds),
                "acquireTime": before.get("acquireTime", now) if is_ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if is_ours or live is None else transitions + 1,
            },
        }


@dataclass
class _Claim:
    """A namespace's Lease, and the terms of both Leases for which everything that others wrote before is known."""

    lease: Lease
    own_term: int = 0
    """Term of the installation's Lease in which the namespace was claimed."""
    prepared: tuple[int, int] = (0, 0)
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Leases:
    """The installation's Lease and its claims of namespaces."""

    def __init__(
        self,
        api: Api,
        identity: str,
        key: NamespacedName,
        seconds: float,
        prepare: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
        now: Now = utc_now,
    ) -> None:
        """`key`: of the installation's Lease, of which `identity` is one of the holders, for `seconds`.

        `prepare` is called after a namespace is claimed, before anything is written there; it may raise.
        """
        self._api = api
        self._seconds = seconds
        self._prepare = prepare
        self._clock = clock
        self._now = now
        self._holder = str(key)
        self._own = Lease(api, key, identity, seconds=seconds, retry_seconds=seconds / 3, clock=clock, now=now)
        self._claims: dict[str, _Claim] = {}
        self._unused: dict[str, _Claim] = {}
        """Claims to release."""
        self._others: dict[str, OtherHolder] = {}
        """Leases of other installations."""

    async def hold(self, namespace: str) -> None:
        """Holds the Lease and claims a namespace. Raises LeaseTaken or ApiError."""
        await self._own.hold()
        if (claim := self._claims.get(namespace)) is None:
            claim = self._unused.pop(namespace) if namespace in self._unused else self._claim(namespace)
            self._claims[namespace] = claim
        if claim.own_term != self._own.term:
            claim.own_term = self._own.term
            claim.lease.doubt()
        await claim.lease.hold()
        async with claim.preparing:
            terms = self._own.term, claim.lease.term
            if claim.prepared != terms:
                await self._prepare(namespace)
                claim.prepared = terms

    def fence(self, owner: Owner) -> None:
        """Raises LeaseLost unless the pipeline's namespace is held for long enough to finish a write."""
        claim = self._claims.get(owner.namespace)
        if (
            claim is None
            or claim.own_term != self._own.term
            or claim.prepared != (self._own.term, claim.lease.term)
            or not (self._own.is_safe and claim.lease.is_safe)
        ):
            raise LeaseLost(f"the Lease {self._holder} was not renewed in time")

    async def keep(self) -> None:
        """Renews the Lease three times per duration, and more often while that fails; never returns."""
        has_failed = False
        while True:
            await asyncio.sleep(self._seconds * (_RETRY if has_failed else 1 / 3))
            has_failed = not await self._own.renew()
            for namespace, claim in list(self._unused.items()):
                await claim.lease.release()
                self._unused.pop(namespace, None)

    def forget(self, namespace: str) -> None:
        """Releases a namespace without pipelines, within a third of a Lease's duration."""
        if (claim := self._claims.pop(namespace, None)) is not None:
            self._unused[namespace] = claim

    async def release(self) -> None:
        """Releases the Lease, so that the next operator need not wait for it to expire."""
        self._claims = {}
        await self._own.release()

    def _claim(self, namespace: str) -> _Claim:
        lease = Lease(
            self._api,
            NamespacedName(namespace, names.LEASE),
            self._holder,
            seconds=CLAIM_SECONDS,
            retry_seconds=self._seconds / 3,
            clock=self._clock,
            now=self._now,
            has_stopped=self._has_stopped,
        )
        return _Claim(lease)

    async def _has_stopped(self, holder: str) -> bool:
        """Returns whether another installation no longer holds its Lease, which is the name of the holder."""
        namespace, is_installation, name = holder.partition("/")
        if not is_installation:
            return False
        try:
            live = await if_found(self._api.get(LEASE, namespace, name))
        except ApiError as error:
            if error.status == 403:
                return False
            raise
        if live is not None and not (live.get("spec") or {}).get("holderIdentity"):
            return True
        return self._others.setdefault(holder, OtherHolder()).has_abandoned(live, self._clock(), self._seconds)
