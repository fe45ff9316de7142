"""The volumes of a stage's pod, and where they are mounted."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import model
from syrinx_operator.cluster.plan.objects import present
from syrinx_operator.cluster.state import Component, Manifest
from syrinx_operator.cluster.topology import members
from syrinx_operator.resource.pods import ExtraVolume
from syrinx_operator.resource.spec import PipelineSpec

_START, _SETTINGS, _TMP, _REDIS_CA = "syrinx-start", "syrinx-settings", "syrinx-tmp", "syrinx-redis-ca"
_GUEST_SETTINGS = "syrinx-codec-settings"


def volumes(pipeline: str, stage: Component, spec: PipelineSpec, extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Every volume of a stage's pod."""
    start = [_start(names.START_FILE, names.CONFIG_ANNOTATION)]
    settings = [{"name": _SETTINGS, "configMap": {"name": names.settings_key(pipeline, stage).name}}]
    for guest in members(spec, stage)[1:]:
        start.append(_start(names.GUEST_START_FILE, names.GUEST_CONFIG_ANNOTATION))
        settings.append({"name": _GUEST_SETTINGS, "configMap": {"name": names.settings_key(pipeline, guest).name}})
    own: list[Manifest] = [
        {"name": _START, "downwardAPI": {"items": start}},
        *settings,
        {"name": _TMP, "emptyDir": {}},
    ]
    if (models := model.volume(pipeline, spec.model)) is not None:
        own.append(models)
    if (ca := spec.connector.ca_secret) is not None:
        items = [{"key": ca.key, "path": names.CA_FILE.rpartition("/")[2]}]
        own.append({"name": _REDIS_CA, "secret": {"secretName": ca.name, "items": items}})
    return own + [{"name": volume.name, **_source(volume)} for volume in extra]


def _start(path: str, annotation: str) -> Manifest:
    return {"path": path.rpartition("/")[2], "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}


def mounts(stage: Component, spec: PipelineSpec, extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Where a stage's container has them: all read-only but /tmp and what the user says."""
    own = [
        {"name": _START, "mountPath": names.START_DIRECTORY, "readOnly": True},
        {"name": _SETTINGS, "mountPath": names.SETTINGS_DIRECTORY, "readOnly": True},
        *(
            {"name": _GUEST_SETTINGS, "mountPath": names.GUEST_SETTINGS_DIRECTORY, "readOnly": True}
            for _ in members(spec, stage)[1:]
        ),
        _TMP_MOUNT,
    ]
    if model.volume("", spec.model) is not None:
        own.append(model.mount(read_only=True))
    if spec.connector.ca_secret is not None:
        own.append({"name": _REDIS_CA, "mountPath": names.REDIS_DIRECTORY, "readOnly": True})
    return own + extra_mounts(extra)


def fetch_mounts(extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Where the container that fetches the checkpoint has them."""
    return [_TMP_MOUNT, model.mount(read_only=False), *extra_mounts(extra)]


def extra_mounts(extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Where the user wants volumes of his own."""
    return [
        {
            "name": volume.name,
            "mountPath": volume.mount_path,
            **present(readOnly=volume.read_only or None, subPath=volume.sub_path),
        }
        for volume in extra
    ]


_TMP_MOUNT: Manifest = {"name": _TMP, "mountPath": "/tmp"}


def _source(volume: ExtraVolume) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, **present(readOnly=volume.read_only or None)}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    limits = volume.empty_dir
    return {"emptyDir": present(medium=limits.medium, sizeLimit=limits.size_limit) if limits else {}}
