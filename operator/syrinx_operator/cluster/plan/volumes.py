"""Volumes of a stage's pod with their mounts, and claims for downloaded checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.cluster.state import Component, Manifest, Owner, stages_in_pod
from syrinx_operator.resource.pods import ExtraVolume, Storage
from syrinx_operator.resource.spec import ModelSpec, PipelineSpec

Mounted = tuple[Manifest, Manifest]
"""A volume and its mount."""

_MODELS = "syrinx-models"


def mounted(name: str, source: Manifest, path: str, *, read_only: bool = True, sub_path: str | None = None) -> Mounted:
    """Returns a volume and its mount."""
    mount = {"name": name, "mountPath": path, **omit_empty(readOnly=read_only or None, subPath=sub_path)}
    return {"name": name, **source}, mount


TMP = mounted("syrinx-tmp", {"emptyDir": {}}, "/tmp", read_only=False)


def volumes(pipeline: str, stage: Component, spec: PipelineSpec, extra: Sequence[ExtraVolume]) -> list[Mounted]:
    """Returns all volumes of a stage's pod; its containers mount them read-only except /tmp and extra volumes."""
    start = [_start_file(names.START_FILE, names.CONFIG_ANNOTATION)]
    settings = [_settings("syrinx-settings", pipeline, stage, names.SETTINGS_DIRECTORY)]
    for codec in stages_in_pod(spec, stage)[1:]:
        start.append(_start_file(names.CODEC_START_FILE, names.CODEC_CONFIG_ANNOTATION))
        settings.append(_settings("syrinx-codec-settings", pipeline, codec, names.CODEC_SETTINGS_DIRECTORY))
    result = [mounted("syrinx-start", {"downwardAPI": {"items": start}}, names.START_DIRECTORY), *settings, TMP]
    if (source := models_source(pipeline, spec.model)) is not None:
        result.append(mounted(_MODELS, source, names.MODELS_DIRECTORY))
    if (ca := spec.connector.ca_secret) is not None:
        items = [{"key": ca.key, "path": names.CA_FILE.rpartition("/")[2]}]
        secret = {"secret": {"secretName": ca.name, "items": items}}
        result.append(mounted("syrinx-redis-ca", secret, names.REDIS_DIRECTORY))
    return result + _extra(extra)


def fetch_mounts(extra: Sequence[ExtraVolume]) -> list[Manifest]:
    """Returns the mounts of the container that downloads the checkpoint."""
    models = mounted(_MODELS, {}, names.MODELS_DIRECTORY, read_only=False)
    return [mount for _, mount in (TMP, models, *_extra(extra))]


def models_source(pipeline: str, model: ModelSpec) -> Manifest | None:
    """Returns the volume at /models; None if the checkpoint is in the image or in one of the user's volumes."""
    if model.claim is not None:
        return {"persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}}
    if model.hugging_face is None:
        return None
    if model.cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": model.cache.claim or names.models_claim(pipeline)}}


def model_claims(owner: Owner, model: ModelSpec) -> list[Manifest]:
    """Returns the PersistentVolumeClaim for downloaded checkpoints, if there is one."""
    return claims(owner, names.models_claim(owner.name), "models", model.cache.storage if model.cache else None)


def claims(owner: Owner, name: str, component: str, storage: Storage | None) -> list[Manifest]:
    """Returns the PersistentVolumeClaim of a storage, if there is one."""
    if storage is None:
        return []
    spec = {
        "accessModes": [storage.access_mode],
        "resources": {"requests": {"storage": storage.size}},
        **omit_empty(storageClassName=storage.storage_class_name),
    }
    return [manifest(owner, "v1", "PersistentVolumeClaim", name, component, spec=spec)]


def _start_file(path: str, annotation: str) -> Manifest:
    return {"path": path.rpartition("/")[2], "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}


def _settings(name: str, pipeline: str, stage: Component, path: str) -> Mounted:
    return mounted(name, {"configMap": {"name": names.workload(pipeline, stage)}}, path)


def _extra(extra: Sequence[ExtraVolume]) -> list[Mounted]:
    return [
        mounted(each.name, _source(each), each.mount_path, read_only=each.read_only, sub_path=each.sub_path)
        for each in extra
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
