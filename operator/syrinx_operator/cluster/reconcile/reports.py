"""Writes what a reconcile reports: Events, the tuner's state and the status."""

from collections.abc import Mapping, Sequence
from typing import Any

from syrinx_operator.cluster.objects.clock import Now
from syrinx_operator.cluster.objects.kinds import PIPELINE
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Owner
from syrinx_operator.cluster.plan.objects import with_applied_hash
from syrinx_operator.cluster.plan.tuning_record import tuning_record
from syrinx_operator.cluster.reconcile.apply import Objects
from syrinx_operator.cluster.reconcile.recorder import EventRecorder
from syrinx_operator.cluster.report.events import status_events
from syrinx_operator.cluster.watch.api import Api
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import Leases
from syrinx_operator.cluster.watch.telemetry import ConditionTelemetry
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event


class Reports:
    """Writes while the Lease is held, and exports the conditions."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        leases: Leases,
        objects: Objects,
        conditions: ConditionTelemetry,
        identity: str,
        now: Now,
    ) -> None:
        self._api = api
        self._cache = cache
        self._leases = leases
        self._objects = objects
        self._conditions = conditions
        self._events = EventRecorder(api, identity, now)

    def forget(self, namespace: str, name: str) -> None:
        """Stops exporting the conditions of a pipeline."""
        self._conditions.forget(namespace, name)

    async def write(
        self,
        owner: Owner,
        previous: Mapping[str, Any],
        new: dict[str, Any],
        events: Sequence[Event] = (),
        tuner: State | None = None,
        objects: Mapping[ObjectKey, Manifest] | None = None,
    ) -> None:
        """Writes Events, then the tuner's state if there is one, then the status, if they have changed.

        After a crash in between, the same Events are recognized as duplicates, and the status follows from the recorded
        state. `objects` are the live objects. Raises LeaseLost or ApiError.
        """
        self._conditions.update(owner.namespace, owner.name, new.get("conditions") or ())
        found = [*events, *(status_events(previous, new) if new != previous else ())]
        if found:
            self._leases.fence(owner)
            await self._events.record(owner, previous, found)
        if tuner is not None:
            await self._record(owner, tuner, objects or {})
        if new != previous:
            await self._update_status(owner, new)

    async def _record(self, owner: Owner, tuner: State, objects: Mapping[ObjectKey, Manifest]) -> None:
        manifest = with_applied_hash(tuning_record(owner, tuner))
        written = await self._objects.apply(owner, [manifest], objects)
        if written.failure is not None:
            raise written.failure

    async def _update_status(self, owner: Owner, status: dict[str, Any]) -> None:
        self._leases.fence(owner)
        manifest = {
            "apiVersion": PIPELINE.api_version,
            "kind": PIPELINE.kind,
            "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
            "status": status,
        }
        self._cache.put(PIPELINE, await self._api.apply(PIPELINE, owner.namespace, manifest, subresource="status"))
