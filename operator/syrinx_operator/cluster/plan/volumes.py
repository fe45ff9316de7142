"""Volumes and volume mounts of a stage's pod."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import model
from syrinx_operator.cluster.plan.objects import omit_empty
from syrinx_operator.cluster.state import Component, Manifest, stages_in_pod
from syrinx_operator.resource.pods import ExtraVolume
from syrinx_operator.resource.spec import PipelineSpec

_START, _SETTINGS, _TMP, _REDIS_CA = "syrinx-start", "syrinx-settings", "syrinx-tmp", "syrinx-redis-ca"
_CODEC_SETTINGS = "syrinx-codec-settings"
_TMP_MOUNT: Manifest = {"name": _TMP, "mountPath": "/tmp"}


def volumes(pipeline: str, stage: Component, spec: PipelineSpec, extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Returns all volumes of a stage's pod."""
    start = [_start_file(names.START_FILE, names.CONFIG_ANNOTATION)]
    settings = [{"name": _SETTINGS, "configMap": {"name": names.settings_key(pipeline, stage).name}}]
    for codec in stages_in_pod(spec, stage)[1:]:
        start.append(_start_file(names.CODEC_START_FILE, names.CODEC_CONFIG_ANNOTATION))
        settings.append({"name": _CODEC_SETTINGS, "configMap": {"name": names.settings_key(pipeline, codec).name}})
    result: list[Manifest] = [
        {"name": _START, "downwardAPI": {"items": start}},
        *settings,
        {"name": _TMP, "emptyDir": {}},
    ]
    if (models := model.volume(pipeline, spec.model)) is not None:
        result.append(models)
    if (ca := spec.connector.ca_secret) is not None:
        items = [{"key": ca.key, "path": names.CA_FILE.rpartition("/")[2]}]
        result.append({"name": _REDIS_CA, "secret": {"secretName": ca.name, "items": items}})
    return result + [{"name": volume.name, **_source(volume)} for volume in extra]


def mounts(stage: Component, spec: PipelineSpec, extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Returns the mounts of a stage's container; all are read-only except /tmp and extra volumes."""
    result = [
        {"name": _START, "mountPath": names.START_DIRECTORY, "readOnly": True},
        {"name": _SETTINGS, "mountPath": names.SETTINGS_DIRECTORY, "readOnly": True},
        *(
            {"name": _CODEC_SETTINGS, "mountPath": names.CODEC_SETTINGS_DIRECTORY, "readOnly": True}
            for _ in stages_in_pod(spec, stage)[1:]
        ),
        _TMP_MOUNT,
    ]
    if model.volume("", spec.model) is not None:
        result.append(model.mount(read_only=True))
    if spec.connector.ca_secret is not None:
        result.append({"name": _REDIS_CA, "mountPath": names.REDIS_DIRECTORY, "readOnly": True})
    return result + _extra_mounts(extra)


def fetch_mounts(extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Returns the mounts of the container that downloads the checkpoint."""
    return [_TMP_MOUNT, model.mount(read_only=False), *_extra_mounts(extra)]


def _start_file(path: str, annotation: str) -> Manifest:
    return {"path": path.rpartition("/")[2], "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}


def _extra_mounts(extra: Sequence[ExtraVolume]) -> list[Manifest]:
    return [
        {
            "name": volume.name,
            "mountPath": volume.mount_path,
            **omit_empty(readOnly=volume.read_only or None, subPath=volume.sub_path),
        }
        for volume in extra
    ]


def _source(volume: ExtraVolume) -> Manifest:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, **omit_empty(readOnly=volume.read_only or None)}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    limits = volume.empty_dir
    return {"emptyDir": omit_empty(medium=limits.medium, sizeLimit=limits.size_limit) if limits else {}}
