"""Backup of the tuning results in a ConfigMap, for a pipeline that is restored from a backup without its status."""

from __future__ import annotations

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import config_map_text, manifest
from syrinx_operator.cluster.state import Manifest, Observed, Owner
from syrinx_operator.resource.knobs import Identity, Setting, StatusStruct
from syrinx_operator.resource.tuning_status import State


class TuningBackup(StatusStruct, frozen=True, kw_only=True):
    """The part of the tuner's state that takes longer than minutes to measure again (ConfigMap NAME-tuning)."""

    requested: Setting
    chosen: Setting
    last_good: Setting | None = None
    identity: Identity | None = None
    trial_count: int = 0


def tuning_config_map(owner: Owner, backup: TuningBackup) -> Manifest:
    """Returns the ConfigMap of the backup."""
    data = {names.TUNING_KEY: msgspec.json.encode(backup, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", names.tuning_key(owner.name).name, "tuning", data=data)


def backup_of(state: State) -> TuningBackup | None:
    """Returns the backup of a state; None if no setting was chosen yet."""
    if state.requested is None or state.chosen is None:
        return None
    return TuningBackup(
        requested=state.requested,
        chosen=state.chosen,
        last_good=state.last_good,
        identity=state.identity,
        trial_count=state.trial_count,
    )


def restored(owner: Owner, observed: Observed) -> State:
    """Returns the state in the ConfigMap; an initial state if there is no readable one."""
    text = config_map_text(owner, observed, names.tuning_key(owner.name), names.TUNING_KEY)
    try:
        backup = msgspec.json.decode(text, type=TuningBackup)
    except msgspec.MsgspecError:
        return State()
    return State(**msgspec.structs.asdict(backup))
