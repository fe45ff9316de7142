"""Stage configuration: the start configuration in the pod template, and live settings in a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import model
from syrinx_operator.cluster.plan.objects import config_map_text, manifest, non_defaults
from syrinx_operator.cluster.state import Component, Manifest, Observed, Owner, workload_stages
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import CodecSpec, GatewaySpec, PipelineSpec, StageSpec, TalkerSpec, TTSPipeline
from syrinx_operator.resource.stage_config import (
    codec_process,
    codec_settings,
    gateway_settings,
    talker_settings,
    vllm_options,
)
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings

AnyStage = GatewaySpec | TalkerSpec | CodecSpec

LIVE_FIELDS: Mapping[Component, frozenset[str]] = {
    Component.GATEWAY: frozenset({*GatewaySettings.__struct_fields__, "replicas", "service"}),
    Component.TALKER: frozenset({*TalkerSettings.__struct_fields__, "replicas"}),
    Component.CODEC: frozenset({*CodecSettings.__struct_fields__, "replicas"}),
}
"""Python names of the stage spec fields that the pod template does not depend on."""

_GPU_PREFIXES = ("nvidia.com/", "amd.com/")


class Settings(Struct, frozen=True):
    """The body of `PUT /settings`: a stage's live settings and their generation."""

    generation: int
    settings: dict[str, Any]


def stage_spec(spec: PipelineSpec, stage: Component) -> AnyStage:
    """Returns the spec of a stage and its process."""
    part: AnyStage = codec_process(spec) if stage is Component.CODEC else getattr(spec, stage.value)
    return part


def start_config(pipeline: TTSPipeline, stage: Component, generation: str) -> StageConfig:
    """Returns a stage's start configuration, without live settings and without the replica's name."""
    part = stage_spec(pipeline.spec, stage)
    colocated = stage not in workload_stages(pipeline.spec)
    base = StageConfig(
        pipeline=pipeline.name,
        generation=generation,
        model=model.directory(pipeline.spec.model),
        host="",
        admin_port=names.CODEC_ADMIN_PORT if colocated else ADMIN_PORT,
        drain_seconds=part.drain_seconds,
        settings_file=names.CODEC_SETTINGS_FILE if colocated else names.SETTINGS_FILE,
    )
    if isinstance(part, GatewaySpec):
        gateway = {"model_name": pipeline.model_name, "port": part.port, "reference_hosts": part.reference_hosts}
        return msgspec.structs.replace(base, **gateway)
    config = msgspec.structs.replace(base, device=_device(part), max_resident=part.max_resident)
    if isinstance(part, CodecSpec):
        return config
    return msgspec.structs.replace(config, engine=part.engine, vllm=vllm_options(part))


def start_text(config: StageConfig) -> str:
    """Returns a start configuration as JSON, without default values."""
    return json.dumps(non_defaults(config), sort_keys=True)


def _device(stage: StageSpec) -> str:
    """Returns the device of a stage: the spec's, or the GPU if its container requests one."""
    if stage.device is not None:
        return stage.device
    return "cuda" if any(name.startswith(_GPU_PREFIXES) for name in stage.resources.limits) else "cpu"


def settings(spec: PipelineSpec, stage: Component, owner: Owner, observed: Observed) -> Settings:
    """Returns a stage's live settings. Their generation increases on a change and exceeds all known generations."""
    desired = msgspec.json.decode(msgspec.json.encode(_live_settings(spec, stage)))
    recorded = recorded_settings(owner, stage, observed)
    reported = [each.reported.generation for each in observed.replicas_of(stage) if each.reported is not None]
    # A generation above the ConfigMap's was set by someone else or comes from a lost ConfigMap.
    highest = max(observed.status_generations.get(stage, 0), *reported, 0)
    if recorded is not None and recorded.settings == desired and recorded.generation >= max(highest, 1):
        return recorded
    return Settings(max(highest, recorded.generation if recorded else 0) + 1, desired)


def settings_config_map(owner: Owner, stage: Component, body: Settings) -> Manifest:
    """Returns the ConfigMap of live settings: mounted into the stage's pods, and the operator's own record."""
    data = {names.SETTINGS_KEY: msgspec.json.encode(body, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", names.settings_key(owner.name, stage).name, stage, data=data)


def recorded_settings(owner: Owner, stage: Component, observed: Observed) -> Settings | None:
    """Returns the live settings in a stage's ConfigMap; None if there is no readable one."""
    text = config_map_text(owner, observed, names.settings_key(owner.name, stage), names.SETTINGS_KEY)
    try:
        return msgspec.json.decode(text, type=Settings)
    except msgspec.MsgspecError:
        return None


def _live_settings(spec: PipelineSpec, stage: Component) -> GatewaySettings | TalkerSettings | CodecSettings:
    match stage:
        case Component.GATEWAY:
            return gateway_settings(spec.gateway)
        case Component.TALKER:
            return talker_settings(spec.talker)
        case _:
            return codec_settings(spec.codec)
