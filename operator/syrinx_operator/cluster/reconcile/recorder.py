"""Writes a pipeline's Events."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.kinds import EVENT
from syrinx_operator.cluster.objects.names import FIELD_MANAGER
from syrinx_operator.cluster.objects.state import Manifest, Owner
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.resource.spec import API_VERSION, KIND
from syrinx_operator.tuner.builder import Event

log = logging.getLogger(__name__)

MAX_MESSAGE = 1000
"""Maximum length of an Event's message; Kubernetes accepts 1,024 characters."""


class EventRecorder:
    """Writes Events. An Event that cannot be written is logged and dropped."""

    def __init__(self, api: Api, identity: str, now: Now = utc_now) -> None:
        self._api = api
        self._identity = identity
        self._now = now

    async def record(self, owner: Owner, previous: Mapping[str, Any], events: Iterable[Event]) -> None:
        """Writes the Events that follow from a change of the status `previous`."""
        for event in events:
            manifest = _manifest(owner, self._identity, previous, event, self._now())
            try:
                await self._api.create(EVENT, owner.namespace, manifest)
            except ApiError as error:
                if error.status != 409:
                    values = owner.namespace, owner.name, event.reason, error
                    log.info("%s/%s: Event %s was not written: %s", *values, extra=owner.log_fields)
                if error.unavailable:
                    return


def _manifest(owner: Owner, identity: str, previous: Mapping[str, Any], event: Event, now: datetime) -> Manifest:
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
