"""How stages are configured: what their pods start with, and what changes live."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import model
from syrinx_operator.cluster.plan.objects import given, manifest, recorded_text
from syrinx_operator.cluster.state import Component, Manifest, Observed, Owner
from syrinx_operator.cluster.topology import workloads
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import CodecSpec, GatewaySpec, PipelineSpec, StageSpec, TalkerSpec, TTSPipeline
from syrinx_operator.resource.stage_config import (
    codec_process,
    codec_settings,
    gateway_settings,
    talker_settings,
    vllm_options,
)
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, StageSettings, TalkerSettings

AnyStage = GatewaySpec | TalkerSpec | CodecSpec

LIVE: Mapping[Component, frozenset[str]] = {
    Component.GATEWAY: frozenset({*GatewaySettings.__struct_fields__, "replicas", "service"}),
    Component.TALKER: frozenset({*TalkerSettings.__struct_fields__, "replicas"}),
    Component.CODEC: frozenset({*CodecSettings.__struct_fields__, "replicas"}),
}
"""Fields of a stage's spec that its pods do not depend on, by their names in Python."""

_GPU_PREFIXES = ("nvidia.com/", "amd.com/")


class Settings(Struct, frozen=True):
    """The body of `PUT /settings`: what a stage shall run with, and its generation."""

    generation: int
    settings: dict[str, Any]


def stage_spec(spec: PipelineSpec, stage: Component) -> AnyStage:
    """The part of the spec that describes a stage, and its process."""
    part: AnyStage = codec_process(spec) if stage is Component.CODEC else getattr(spec, stage.value)
    return part


def start_config(pipeline: TTSPipeline, stage: Component, generation: str) -> StageConfig:
    """What a stage's pods start with. Live settings and the replica's name are not in it: both come with the pod."""
    part = stage_spec(pipeline.spec, stage)
    guest = stage not in workloads(pipeline.spec)
    base = StageConfig(
        pipeline=pipeline.name,
        generation=generation,
        model=model.directory(pipeline.spec.model),
        host="",
        admin_port=names.GUEST_ADMIN_PORT if guest else ADMIN_PORT,
        drain_seconds=part.drain_seconds,
        settings_file=names.GUEST_SETTINGS_FILE if guest else names.SETTINGS_FILE,
    )
    if isinstance(part, GatewaySpec):
        own = {"model_name": pipeline.model_name, "port": part.port, "reference_hosts": part.reference_hosts}
        return msgspec.structs.replace(base, **own)
    computing = msgspec.structs.replace(base, device=device(part), max_resident=part.max_resident)
    if isinstance(part, CodecSpec):
        return computing
    return msgspec.structs.replace(computing, engine=part.engine, vllm=vllm_options(part))


def start_text(config: StageConfig) -> str:
    """A start configuration as JSON, without what is the stages' default."""
    return json.dumps(given(config), sort_keys=True)


def device(stage: StageSpec) -> str:
    """Where a stage computes: what the spec says, else on the GPU that its container is given."""
    if stage.device is not None:
        return stage.device
    return "cuda" if any(name.startswith(_GPU_PREFIXES) for name in stage.resources.limits) else "cpu"


def settings(spec: PipelineSpec, stage: Component, owner: Owner, observed: Observed) -> Settings:
    """A stage's live settings. The generation is counted up when they change, and is always the highest known."""
    wanted = msgspec.json.decode(msgspec.json.encode(_wanted(spec, stage)))
    there = recorded_settings(owner, stage, observed)
    reported = [replica.reported.generation for replica in observed.of(stage) if replica.reported is not None]
    # Beyond the ConfigMap's generation there is only what somebody else set, or what is left of a lost ConfigMap.
    highest = max(observed.status_generations.get(stage, 0), *reported, 0)
    if there is not None and there.settings == wanted and there.generation >= max(highest, 1):
        return there
    return Settings(max(highest, there.generation if there else 0) + 1, wanted)


def settings_config_map(owner: Owner, stage: Component, body: Settings) -> Manifest:
    """Live settings as an object: mounted into the stage's pods, and the operator's own record."""
    data = {names.SETTINGS_KEY: msgspec.json.encode(body, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", names.settings_key(owner.name, stage).name, stage, data=data)


def recorded_settings(owner: Owner, stage: Component, observed: Observed) -> Settings | None:
    """A stage's live settings as its ConfigMap has them; None if there is none, or none that can be read."""
    text = recorded_text(owner, observed, names.settings_key(owner.name, stage), names.SETTINGS_KEY)
    try:
        return msgspec.json.decode(text, type=Settings)
    except msgspec.MsgspecError:
        return None


def _wanted(spec: PipelineSpec, stage: Component) -> StageSettings:
    match stage:
        case Component.GATEWAY:
            return gateway_settings(spec.gateway)
        case Component.TALKER:
            return talker_settings(spec.talker)
        case _:
            return codec_settings(spec.codec)
