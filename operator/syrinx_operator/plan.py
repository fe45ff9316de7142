"""What a pipeline needs to run, as values: one start configuration per stage process. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum

import msgspec
from msgspec import Struct, inspect

from syrinx_operator.spec import CodecSpec, GatewaySpec, ModelSpec, TalkerSpec, TTSPipeline
from syrinx_operator.spec_pods import kubernetes_only
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


class NotLocal(Exception):
    """The pipeline runs on Kubernetes only; the message names the field and what would do."""


def plan_local(pipeline: TTSPipeline, version: str) -> list[StageProcess]:
    """Every process of the pipeline, talkers first, the gateway last. `version` is that of Syrinx.

    Raises `NotLocal` for a model that is to be had on Kubernetes only.
    """
    spec = pipeline.spec
    _require_local_model(spec.model)
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

    def compute(stage: TalkerSpec | CodecSpec) -> dict[str, object]:
        device = stage.device or "cpu"
        return {"device": device, "max_resident": stage.max_resident, "drain_seconds": stage.drain_seconds}

    gateway = spec.gateway
    return [
        *replicas(Stage.TALKER, spec.talker.replicas, **compute(spec.talker)),
        *replicas(Stage.CODEC, spec.codec.replicas, **compute(spec.codec)),
        *replicas(
            Stage.GATEWAY,
            1,
            port=gateway.port,
            reference_hosts=gateway.reference_hosts,
            drain_seconds=gateway.drain_seconds,
        ),
    ]


def unused_locally(pipeline: TTSPipeline) -> list[str]:
    """Fields that say something on Kubernetes only and that are not as by default, by name."""
    return list(_unused(pipeline.spec, "spec"))


def _unused(part: Struct, path: str) -> Iterator[str]:
    kind = inspect.type_info(type(part))
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        value, name = getattr(part, field.name), f"{path}.{field.encode_name}"
        if kubernetes_only(field):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if value != default:
                yield name
        elif isinstance(value, Struct):
            yield from _unused(value, name)


def _require_local_model(model: ModelSpec) -> None:
    if model.hugging_face is not None:
        raise NotLocal(
            "spec.model.huggingFace is fetched on Kubernetes only: download the checkpoint "
            f"(hf download {model.hugging_face.id} --revision {model.hugging_face.revision} --local-dir DIRECTORY) "
            "and give its directory as spec.model.path"
        )
    if model.claim is not None:
        raise NotLocal(
            "spec.model.claim is a volume of Kubernetes: without it, spec.model.path is a directory of this machine"
        )


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
