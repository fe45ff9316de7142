"""Stage configuration: the start configuration in the pod template, and live settings in a ConfigMap."""

import json
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import non_defaults, read_record, record
from syrinx_operator.cluster.state import Component, Manifest, Observed, Owner, workload_stages
from syrinx_operator.resource import stage_config as process
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import CodecSpec, GatewaySpec, ModelSpec, PipelineSpec, TalkerSpec, TTSPipeline
from syrinx_operator.resource.tuning_status import State
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings

AnyStage = GatewaySpec | TalkerSpec | CodecSpec

LIVE_FIELDS: Mapping[Component, frozenset[str]] = {
    Component.GATEWAY: frozenset({*GatewaySettings.__struct_fields__, "replicas", "service"}),
    Component.TALKER: frozenset({*TalkerSettings.__struct_fields__, "replicas"}),
    Component.CODEC: frozenset({*CodecSettings.__struct_fields__, "replicas"}),
}
"""Python names of the stage spec fields that the pod template does not depend on."""
_GPU_PREFIXES = ("nvidia.com/", "amd.com/")
_BACKED_UP = ("requested", "chosen", "lastGood", "identity", "trialCount")
"""The part of the tuner's state that takes longer than minutes to measure again."""


class Settings(Struct, frozen=True):
    """The body of `PUT /settings`: a stage's live settings and their generation."""

    generation: int
    settings: dict[str, Any]


def stage_spec(spec: PipelineSpec, stage: Component) -> AnyStage:
    """Returns the spec of a stage and its process."""
    part: AnyStage = process.codec_process(spec) if stage is Component.CODEC else getattr(spec, stage.value)
    return part


def start_config(pipeline: TTSPipeline, stage: Component, generation: str) -> str:
    """Returns a stage's start configuration as JSON, without defaults, live settings and the replica's name."""
    part = stage_spec(pipeline.spec, stage)
    colocated = stage not in workload_stages(pipeline.spec)
    own: dict[str, Any]
    if isinstance(part, GatewaySpec):
        own = {"model_name": pipeline.model_name, "port": part.port, "reference_hosts": part.reference_hosts}
    else:
        has_gpu = any(name.startswith(_GPU_PREFIXES) for name in part.resources.limits)
        own = {"device": part.device or ("cuda" if has_gpu else "cpu"), "max_resident": part.max_resident}
        if isinstance(part, TalkerSpec):
            own |= {"engine": part.engine, "vllm": process.vllm_options(part)}
    config = StageConfig(
        pipeline=pipeline.name,
        generation=generation,
        model=model_directory(pipeline.spec.model),
        host="",
        admin_port=names.CODEC_ADMIN_PORT if colocated else ADMIN_PORT,
        drain_seconds=part.drain_seconds,
        settings_file=names.CODEC_SETTINGS_FILE if colocated else names.SETTINGS_FILE,
        **own,
    )
    return json.dumps(non_defaults(config), sort_keys=True)


def model_directory(model: ModelSpec) -> str:
    """Returns the checkpoint in a stage's start configuration: a path, or `bundled`."""
    if (hub := model.hugging_face) is not None:
        # The layout of `syrinx_stages.fetch`.
        return posixpath.join(names.MODELS_DIRECTORY, hub.id.replace("/", "--"), hub.revision)
    if model.path is not None and model.claim is not None:
        return posixpath.normpath(posixpath.join(names.MODELS_DIRECTORY, model.path.lstrip("/")))
    return "bundled" if model.path is None else model.path


def settings(spec: PipelineSpec, stage: Component, owner: Owner, observed: Observed) -> Settings:
    """Returns a stage's live settings. Their generation increases on a change and exceeds all known generations."""
    live: dict[Component, GatewaySettings | TalkerSettings | CodecSettings] = {
        Component.GATEWAY: process.gateway_settings(spec.gateway),
        Component.TALKER: process.talker_settings(spec.talker),
        Component.CODEC: process.codec_settings(spec.codec),
    }
    desired = msgspec.json.decode(msgspec.json.encode(live[stage]))
    recorded = recorded_settings(owner, stage, observed)
    reported = [each.reported.generation for each in observed.replicas_of(stage) if each.reported is not None]
    # A generation above the ConfigMap's was set by someone else or comes from a lost ConfigMap.
    highest = max(observed.status_generations.get(stage, 0), *reported, 0)
    if recorded is not None and recorded.settings == desired and recorded.generation >= max(highest, 1):
        return recorded
    return Settings(max(highest, recorded.generation if recorded else 0) + 1, desired)


def recorded_settings(owner: Owner, stage: Component, observed: Observed) -> Settings | None:
    """Returns the live settings in a stage's ConfigMap; None if there is no readable one."""
    return read_record(owner, observed, stage, Settings, names.SETTINGS_KEY)


def tuning_config_maps(owner: Owner, state: State) -> list[Manifest]:
    """Returns the backup of the tuner's state, for a pipeline restored without its status, once a setting is chosen."""
    if state.requested is None or state.chosen is None:
        return []
    kept = {name: value for name, value in msgspec.to_builtins(state).items() if name in _BACKED_UP}
    return [record(owner, "tuning", kept)]


def recorded_tuning(owner: Owner, observed: Observed) -> State:
    """Returns the tuner's state in the backup; an initial state if there is no readable one."""
    return read_record(owner, observed, "tuning", State) or State()
