"""Writes what a reconcile reports: Events, the tuner's state and the status."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from syrinx_operator.cluster.objects.clock import Now
from syrinx_operator.cluster.objects.kinds import EVENT, PIPELINE
from syrinx_operator.cluster.objects.names import FIELD_MANAGER
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Owner
from syrinx_operator.cluster.plan.objects import with_applied_hash
from syrinx_operator.cluster.plan.tuning_record import tuning_record
from syrinx_operator.cluster.reconcile.apply import Objects
from syrinx_operator.cluster.report.events import status_events
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import Leases
from syrinx_operator.cluster.watch.telemetry import ConditionTelemetry
from syrinx_operator.resource.spec import API_VERSION, KIND
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event

log = logging.getLogger(__name__)

MAX_MESSAGE = 1000
"""Maximum length of an Event's message; Kubernetes accepts 1,024 characters."""


@dataclass
class Reports:
    """Writes while the Lease is held, and exports the conditions."""

    _api: Api
    _cache: Cache
    _leases: Leases
    _objects: Objects
    _conditions: ConditionTelemetry
    _identity: str
    """The operator that the Events are of."""
    _now: Now

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
            await self._create_events(owner, previous, found)
        if tuner is not None:
            record = with_applied_hash(tuning_record(owner, tuner))
            written = await self._objects.apply(owner, [record], objects or {})
            if written.failure is not None:
                raise written.failure
        if new != previous:
            await self._update_status(owner, new)

    async def _create_events(self, owner: Owner, previous: Mapping[str, Any], events: Sequence[Event]) -> None:
        """Creates Events that follow from a change of the status `previous`. One that is refused is logged."""
        for event in events:
            try:
                manifest = _event(owner, self._identity, previous, event, self._now())
                await self._api.create(EVENT, owner.namespace, manifest)
            except ApiError as error:
                if error.status != 409:
                    values = owner.namespace, owner.name, event.reason, error
                    log.info("%s/%s: Event %s was not written: %s", *values, extra=owner.log_fields)
                if error.unavailable:
                    return

    async def _update_status(self, owner: Owner, status: dict[str, Any]) -> None:
        self._leases.fence(owner)
        manifest = {
            "apiVersion": PIPELINE.api_version,
            "kind": PIPELINE.kind,
            "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
            "status": status,
        }
        answer = await self._api.apply(PIPELINE, owner.namespace, manifest, subresource="status")
        self._cache.of(PIPELINE, owner.namespace).put(answer)


def _event(owner: Owner, identity: str, previous: Mapping[str, Any], event: Event, now: datetime) -> Manifest:
    time = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    message = event.message[:MAX_MESSAGE]
    # An operator that was killed before it wrote the new status creates the same Event again and gets a conflict.
    known = [previous.get(part) for part in ("conditions", "tuning", "canary")]
    change = [owner.uid, *known, event.kind, event.reason, message]
    digest = hashlib.sha256(json.dumps(change, sort_keys=True).encode()).hexdigest()[:16]
    pipeline = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid}
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": f"{owner.name}.{digest}", "namespace": owner.namespace},
        "involvedObject": {**pipeline, "namespace": owner.namespace},
        "type": event.kind,
        "reason": event.reason,
        "message": message,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": identity[:128],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
