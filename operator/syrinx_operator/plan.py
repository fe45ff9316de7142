"""What a pipeline needs to run, as values: one start configuration per stage process. Pure."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct

from syrinx_operator.spec import CodecSpec, GatewaySpec, ModelSpec, TalkerSpec, TTSPipeline
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings


class Stage(StrEnum):
    """The kinds of stage process; the values are their packages' names in `syrinx_stages`."""

    TALKER = "talker"
    CODEC = "codec"
    GATEWAY = "gateway"


class StageProcess(Struct, frozen=True):
    """One process to run."""

    stage: Stage
    config: StageConfig

    @property
    def replica(self) -> str:
        """Its name, unique in the pipeline and stable across restarts."""
        return self.config.replica


def plan_local(pipeline: TTSPipeline, version: str) -> list[StageProcess]:
    """Every process of the pipeline, talkers first, the gateway last. `version` is that of Syrinx."""
    spec = pipeline.spec
    base = StageConfig(
        pipeline=pipeline.name,
        generation=model_generation(spec.model, version),
        replica="",
        model="bundled" if spec.model.path is None else spec.model.path,
        model_name=pipeline.model_name,
        talker=talker_settings(spec.talker),
        codec=codec_settings(spec.codec),
        gateway=gateway_settings(spec.gateway),
    )

    def replicas(stage: Stage, count: int, **fields: object) -> list[StageProcess]:
        configs = (msgspec.structs.replace(base, replica=f"{stage}-{n}", **fields) for n in range(count))
        return [StageProcess(stage, config) for config in configs]

    return [
        *replicas(Stage.TALKER, spec.talker.replicas, max_resident=spec.talker.max_resident),
        *replicas(Stage.CODEC, spec.codec.replicas, max_resident=spec.codec.max_resident),
        *replicas(Stage.GATEWAY, 1, port=spec.gateway.port, reference_hosts=spec.gateway.reference_hosts),
    ]


def model_generation(model: ModelSpec, version: str) -> str:
    """Names the model's weights: it changes when they may have changed, so that old and new stages never meet.

    The bundled voice comes with Syrinx, so its weights follow from `version`.
    """
    weights = f"bundled {version}" if model.path is None else f"path {model.path}"
    return hashlib.sha256(weights.encode()).hexdigest()[:10]


def talker_settings(spec: TalkerSpec) -> TalkerSettings:
    """The live settings that a talker starts with."""
    return TalkerSettings(max_num_seqs=spec.max_num_seqs, lead_limit_seconds=spec.lead_limit_seconds)


def codec_settings(spec: CodecSpec) -> CodecSettings:
    """The live settings that a codec starts with."""
    return CodecSettings(
        max_num_seqs=spec.max_num_seqs,
        chunk_ramp=spec.chunk_ramp,
        capture_pairs=tuple((shape.rows, shape.frames) for shape in spec.capture_pairs),
    )


def gateway_settings(spec: GatewaySpec) -> GatewaySettings:
    """The live settings that a gateway starts with."""
    return GatewaySettings(max_queue=spec.max_queue, max_queue_seconds=spec.max_queue_seconds)
