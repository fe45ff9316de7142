"""Events: what changed for a pipeline, once, for `kubectl describe`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.kinds import EVENT
from syrinx_operator.cluster.names import FIELD_MANAGER
from syrinx_operator.cluster.state import Manifest, Owner
from syrinx_operator.cluster.status import Transition
from syrinx_operator.resource.spec import API_VERSION, KIND

log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 1024


async def announce(
    api: Api, owner: Owner, identity: str, previous: Mapping[str, Any], transitions: Iterable[Transition]
) -> None:
    """Says what changed since the status `previous`. Nothing waits for it: an Event that cannot be written is lost.

    The same change of the same status has one name, so an operator that is killed before it has written the new status
    does not say it twice.
    """
    for transition in transitions:
        try:
            await api.create(EVENT, owner.namespace, _event(owner, identity, previous, transition))
        except ApiError as error:
            if error.status != 409:
                log.info("%s/%s: the Event %s is lost: %s", owner.namespace, owner.name, transition.reason, error)
            if error.unavailable:
                return


def _event(owner: Owner, identity: str, previous: Mapping[str, Any], transition: Transition) -> Manifest:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    before = [previous.get("conditions"), previous.get("tuning")]
    what = [owner.uid, *before, transition.type, transition.reason, transition.message]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": f"{owner.name}.{digest}", "namespace": owner.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
        },
        "type": transition.type,
        "reason": transition.reason,
        "message": transition.message[:_MAX_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": identity[:128],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
