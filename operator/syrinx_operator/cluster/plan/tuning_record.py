"""The tuner's state in the ConfigMap NAME-tuning, and what replaces it if it is lost. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Observed, Owner
from syrinx_operator.cluster.plan.objects import record
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.resource.versions import read_known


def tuning_record(owner: Owner, tuning: State) -> Manifest:
    """Returns the ConfigMap with the tuner's state."""
    return record(owner, names.TUNING, tuning, names.TUNING_KEY)


def recorded_tuning(owner: Owner, observed: Observed) -> str | None:
    """Returns the text in the ConfigMap with the tuner's state; None if the pipeline has no such ConfigMap."""
    found = observed.objects.get(ObjectKey("ConfigMap", names.tuning_record(owner.name)))
    return None if found is None else tuning_text(found)


def tuning_text(config_map: Manifest) -> str:
    """Returns the text in a ConfigMap with the tuner's state."""
    text: str = (config_map.get("data") or {}).get(names.TUNING_KEY, "")
    return text


def decode_tuning(text: str | None, published: Mapping[str, Any]) -> tuple[State, str]:
    """Returns the tuner's state, and what is lost of it; empty if nothing is.

    `text` is that of the ConfigMap, None if there is none. `published` is the part of it in the status.
    """
    # The status has the message as part of a sentence.
    from_status = {name: value for name, value in published.items() if name != "message"}
    if text is None:
        lost = "is missing" if "configMap" in published else ""
        return read_known(from_status, State), lost
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return read_known(from_status, State), "is not readable"
    try:
        return msgspec.convert(found, State), ""
    except msgspec.ValidationError as error:
        return read_known(found, State), f"is not readable as a whole ({error})"
