"""A copy of what tuning found, for when the status is lost: restored from a backup, or written by another version."""

from __future__ import annotations

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest, recorded_text
from syrinx_operator.cluster.state import Manifest, Observed, Owner
from syrinx_operator.resource.knobs import Identity, Setting, StatusStruct
from syrinx_operator.resource.tuning_status import State


class Copy(StatusStruct, frozen=True, kw_only=True):
    """The part of the tuner's state that cannot be measured anew within minutes (ConfigMap NAME-tuning)."""

    spec: Setting
    chosen: Setting
    last_good: Setting | None = None
    identity: Identity | None = None
    trials: int = 0


def tuning_config_map(owner: Owner, copy: Copy) -> Manifest:
    """The copy as an object."""
    data = {names.TUNING_KEY: msgspec.json.encode(copy, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", names.tuning_key(owner.name).name, "tuning", data=data)


def copied(state: State) -> Copy | None:
    """What is worth a copy; None while nothing was chosen."""
    if state.requested is None or state.chosen is None:
        return None
    return Copy(
        spec=state.requested,
        chosen=state.chosen,
        last_good=state.last_good,
        identity=state.identity,
        trials=state.trial_count,
    )


def restored(owner: Owner, observed: Observed) -> State:
    """What the ConfigMap remembers; nothing, if there is none that can be read."""
    text = recorded_text(owner, observed, names.tuning_key(owner.name), names.TUNING_KEY)
    try:
        copy = msgspec.json.decode(text, type=Copy)
    except msgspec.MsgspecError:
        return State()
    return State(
        requested=copy.spec,
        chosen=copy.chosen,
        last_good=copy.last_good,
        identity=copy.identity,
        trial_count=copy.trials,
    )
