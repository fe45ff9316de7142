"""Leases: only one operator at a time works on a pipeline; another one watches until the first has gone."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.kinds import LEASE
from syrinx_operator.cluster.state import Manifest, Owner
from syrinx_operator.resource.spec import KIND

log = logging.getLogger(__name__)

_MARGIN: Final = 0.2
"""Share of a Lease's duration that a write may be under way after its fence was passed."""


class LeaseLost(Exception):
    """Our time for this pipeline has run out: nothing may be written any more."""


class LeaseTaken(Exception):
    """Another operator works on this pipeline; the message says which."""


class LeaseForeign(LeaseTaken):
    """The Lease of that name is somebody else's, so nobody will work on this pipeline until it is gone."""


class _Lease:
    """What this process knows of one pipeline's Lease."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.lock = asyncio.Lock()
        self.held_until = 0.0
        """On our clock; 0 if it is not ours."""
        self.version = ""
        """Of another's Lease as last seen, first at `seen_at`: it is abandoned if it stays so for its duration."""
        self.seen_at = 0.0


class Leases:
    """The Leases that this operator holds. Clocks of other machines are not trusted, only their silence."""

    def __init__(self, api: Api, identity: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._leases: dict[tuple[str, str], _Lease] = {}
        """By the pipeline's namespace and name."""

    async def hold(self, owner: Owner) -> None:
        """Takes or renews a pipeline's Lease. Raises `LeaseTaken` or `ApiError`."""
        lease = self._leases.get((owner.namespace, owner.name))
        if lease is None or lease.owner.uid != owner.uid:
            lease = self._leases[owner.namespace, owner.name] = _Lease(owner)
        async with lease.lock:
            now = self._clock()
            if lease.held_until - now > self._seconds * 2 / 3:
                return
            try:
                await self._take(lease)
            except LeaseTaken:
                lease.held_until = 0.0
                raise
            lease.held_until = now + self._seconds

    def fence(self, owner: Owner) -> None:
        """Raises `LeaseLost` unless the pipeline is ours for long enough to finish a write."""
        lease = self._leases.get((owner.namespace, owner.name))
        if lease is None or lease.owner.uid != owner.uid or lease.held_until - self._clock() < self._seconds * _MARGIN:
            raise LeaseLost(f"the Lease {names.lease_key(owner.name).name} could not be renewed in time")

    async def keep(self) -> None:
        """Renews everything that is held, three times per duration, for ever."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            await asyncio.gather(*(self._renew(lease) for lease in self._held()))

    def forget(self, namespace: str, name: str) -> None:
        """The pipeline is gone, and its Lease with it."""
        self._leases.pop((namespace, name), None)

    async def release(self) -> None:
        """Gives everything back, so that the next operator need not wait."""
        held, self._leases = self._held(), {}
        await asyncio.gather(*(self._give_back(lease.owner) for lease in held))

    def _held(self) -> list[_Lease]:
        return [lease for lease in self._leases.values() if lease.held_until]

    async def _renew(self, lease: _Lease) -> None:
        try:
            await self.hold(lease.owner)
        except (LeaseTaken, ApiError) as error:
            log.warning("%s/%s: its Lease was not renewed: %s", lease.owner.namespace, lease.owner.name, error)

    async def _take(self, lease: _Lease) -> None:
        owner = lease.owner
        name = names.lease_key(owner.name).name
        try:
            live = await self._api.get(LEASE, owner.namespace, name)
        except ApiError as error:
            if not error.not_found:
                raise
            live = None
        try:
            if live is None:
                await self._api.create(LEASE, owner.namespace, self._manifest(owner, None))
            else:
                self._check(lease, live)
                await self._api.replace(LEASE, owner.namespace, self._manifest(owner, live))
        except ApiError as error:
            if error.status != 409:
                raise
            raise LeaseTaken("another operator has just taken it") from None

    def _check(self, lease: _Lease, live: Manifest) -> None:
        """Raises `LeaseTaken` unless the Lease is this pipeline's, and ours, free or abandoned."""
        metadata, spec = live["metadata"], live.get("spec") or {}
        owners = {reference.get("uid"): reference.get("kind") for reference in metadata.get("ownerReferences") or ()}
        if lease.owner.uid not in owners:
            words = f"the Lease {metadata['name']} does not belong to this pipeline"
            # That of a former pipeline of this name is about to go by itself.
            raise LeaseTaken(words) if KIND in owners.values() else LeaseForeign(f"{words}: delete it")
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return
        if lease.version != metadata["resourceVersion"]:
            lease.version, lease.seen_at = metadata["resourceVersion"], self._clock()
        if self._clock() - lease.seen_at <= float(spec.get("leaseDurationSeconds") or self._seconds):
            raise LeaseTaken(f"operator {holder} works on it")

    def _manifest(self, owner: Owner, live: Manifest | None) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (live or {}).get("spec") or {}
        ours = before.get("holderIdentity") == self._identity
        changes = int(before.get("leaseTransitions") or 0)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._seconds),
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": changes if ours or live is None else changes + 1,
        }
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": self._metadata(owner, live),
            "spec": spec,
        }

    def _metadata(self, owner: Owner, live: Manifest | None) -> dict[str, Any]:
        metadata = {
            "name": names.lease_key(owner.name).name,
            "namespace": owner.namespace,
            "labels": names.labels(owner.name, "operator"),
            "ownerReferences": [names.owner_reference(owner)],
        }
        return metadata | ({"resourceVersion": live["metadata"]["resourceVersion"]} if live else {})

    async def _give_back(self, owner: Owner) -> None:
        try:
            live = await self._api.get(LEASE, owner.namespace, names.lease_key(owner.name).name)
            if live.get("spec", {}).get("holderIdentity") == self._identity:
                await self._api.replace(LEASE, owner.namespace, live | {"spec": live["spec"] | {"holderIdentity": ""}})
        except ApiError as error:
            log.info("%s/%s: its Lease is left to expire: %s", owner.namespace, owner.name, error)
