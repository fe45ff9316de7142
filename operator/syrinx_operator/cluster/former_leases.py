"""The Leases of single pipelines, by which operators of earlier versions held them."""

from collections.abc import Callable

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, if_found
from syrinx_operator.cluster.clock import monotonic
from syrinx_operator.cluster.kinds import LEASE
from syrinx_operator.cluster.lease import LeaseTaken, OtherHolder
from syrinx_operator.cluster.state import Owner


class FormerLeases:
    """The Leases by which operators of earlier versions held single pipelines: NAME-operator.

    They are respected once for each pipeline, and left to be deleted with it.
    """

    def __init__(self, api: Api, identity: str, seconds: float, clock: Callable[[], float] = monotonic) -> None:
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
