"""Leases: one operator at a time writes a pipeline's objects; others stand by until it stops renewing."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError, if_found
from syrinx_operator.cluster.kinds import LEASE
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.state import Manifest, Owner
from syrinx_operator.resource.spec import KIND

log = logging.getLogger(__name__)

_MARGIN: Final = 0.2
"""Share of a Lease's duration reserved for a write that has passed the fence."""


class LeaseLost(Exception):
    """The Lease has expired or is about to: nothing may be written."""


class LeaseTaken(Exception):
    """Another operator holds the pipeline's Lease; the message names it."""


class LeaseForeign(LeaseTaken):
    """A Lease of that name belongs to something else, so no operator can reconcile until it is deleted."""


@dataclass
class _Lease:
    """This process's view of one pipeline's Lease. Times are of our monotonic clock."""

    owner: Owner
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    held_until: float = 0.0
    """0 if we do not hold it."""
    version: str = ""
    """Resource version of another operator's Lease, which is abandoned if it keeps it for its duration."""
    version_seen_at: float = 0.0


class Leases:
    """The Leases of this operator. Expiry is measured by our own clock, because clocks of other machines may differ."""

    def __init__(self, api: Api, identity: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._leases: dict[tuple[str, str], _Lease] = {}

    async def hold(self, owner: Owner) -> None:
        """Acquires or renews a pipeline's Lease. Raises LeaseTaken or ApiError."""
        lease = self._leases.get((owner.namespace, owner.name))
        if lease is None or lease.owner.uid != owner.uid:
            lease = self._leases[owner.namespace, owner.name] = _Lease(owner)
        async with lease.lock:
            now = self._clock()
            if lease.held_until - now > self._seconds * 2 / 3:
                return
            try:
                await self._acquire(lease)
            except LeaseTaken:
                lease.held_until = 0.0
                raise
            lease.held_until = now + self._seconds

    def fence(self, owner: Owner) -> None:
        """Raises LeaseLost unless the Lease is held for long enough to finish a write."""
        lease = self._leases.get((owner.namespace, owner.name))
        if lease is None or lease.owner.uid != owner.uid or lease.held_until - self._clock() < self._seconds * _MARGIN:
            raise LeaseLost(f"the Lease {names.lease(owner.name)} was not renewed in time")

    async def keep(self) -> None:
        """Renews all held Leases three times per duration; never returns."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            await asyncio.gather(*(self._renew(owner) for owner in self._held()))

    def forget(self, namespace: str, name: str) -> None:
        """Drops the Lease of a deleted pipeline, which the cluster deletes with it."""
        self._leases.pop((namespace, name), None)

    async def release(self) -> None:
        """Releases all held Leases, so that the next operator need not wait for them to expire."""
        held, self._leases = self._held(), {}
        await asyncio.gather(*(self._release(owner) for owner in held))

    def _held(self) -> list[Owner]:
        return [lease.owner for lease in self._leases.values() if lease.held_until]

    async def _renew(self, owner: Owner) -> None:
        try:
            await self.hold(owner)
        except (LeaseTaken, ApiError) as error:
            values = owner.namespace, owner.name, error
            log.warning("%s/%s: Lease was not renewed: %s", *values, extra=owner.log_fields)

    async def _acquire(self, lease: _Lease) -> None:
        owner = lease.owner
        live = await if_found(self._api.get(LEASE, owner.namespace, names.lease(owner.name)))
        try:
            if live is None:
                await self._api.create(LEASE, owner.namespace, self._manifest(owner, None))
            else:
                self._check(lease, live)
                await self._api.replace(LEASE, owner.namespace, self._manifest(owner, live))
        except ApiError as error:
            if error.status != 409:
                raise
            raise LeaseTaken("another operator has just acquired the Lease") from None

    def _check(self, lease: _Lease, live: Manifest) -> None:
        """Raises LeaseTaken unless the Lease belongs to this pipeline and is ours, released or abandoned."""
        metadata, spec = live["metadata"], live.get("spec") or {}
        owners = {reference.get("uid"): reference.get("kind") for reference in metadata.get("ownerReferences") or ()}
        if lease.owner.uid not in owners:
            message = f"the Lease {metadata['name']} does not belong to this pipeline"
            # The Lease of a former pipeline of this name is about to be garbage collected.
            raise LeaseTaken(message) if KIND in owners.values() else LeaseForeign(f"{message}: delete it")
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return
        if lease.version != metadata["resourceVersion"]:
            lease.version, lease.version_seen_at = metadata["resourceVersion"], self._clock()
        if self._clock() - lease.version_seen_at <= float(spec.get("leaseDurationSeconds") or self._seconds):
            raise LeaseTaken(f"operator {holder} holds the Lease")

    def _manifest(self, owner: Owner, live: Manifest | None) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (live or {}).get("spec") or {}
        is_ours = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._seconds),
            "acquireTime": before.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or live is None else transitions + 1,
        }
        version = live["metadata"]["resourceVersion"] if live else None
        return manifest(owner, LEASE.api_version, LEASE.kind, "operator", resource_version=version, spec=spec)

    async def _release(self, owner: Owner) -> None:
        try:
            live = await self._api.get(LEASE, owner.namespace, names.lease(owner.name))
            if live.get("spec", {}).get("holderIdentity") == self._identity:
                await self._api.replace(LEASE, owner.namespace, live | {"spec": live["spec"] | {"holderIdentity": ""}})
        except ApiError as error:
            values = owner.namespace, owner.name, error
            log.info("%s/%s: Lease was not released and will expire: %s", *values, extra=owner.log_fields)
