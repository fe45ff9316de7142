"""What a pipeline needs to run, as values: one start configuration per stage process. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum

import msgspec
from msgspec import Struct, inspect

from syrinx_operator.resource.pods import kubernetes_only
from syrinx_operator.resource.rules import PROCESS_FIELDS
from syrinx_operator.resource.spec import CodecSpec, GatewaySpec, ModelSpec, PipelineSpec, TalkerSpec, TTSPipeline
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings, VllmOptions


class Stage(StrEnum):
    """The kinds of stage process; the values are their packages' names in `syrinx_stages`."""

    TALKER = "talker"
    CODEC = "codec"
    GATEWAY = "gateway"


class StageProcess(Struct, frozen=True):
    """One process to run."""

    stage: Stage
    config: StageConfig
    codec: StageConfig | None = None
    """Of the codec that shares a talker's process."""

    @property
    def stages(self) -> tuple[tuple[Stage, StageConfig], ...]:
        """The stages in it."""
        own = (self.stage, self.config)
        return (own,) if self.codec is None else (own, (Stage.CODEC, self.codec))

    @property
    def module(self) -> str:
        """Its package in `syrinx_stages`."""
        return self.stage.value if self.codec is None else "colocated"


class NotLocal(Exception):
    """The pipeline runs on Kubernetes only; the message names the field and what would do."""


def plan_local(pipeline: TTSPipeline, version: str) -> list[StageProcess]:
    """Every process of the pipeline, talkers first, the gateway last. `version` is that of Syrinx.

    Raises `NotLocal` for a model, or for GPUs, that are to be had on Kubernetes only.
    """
    spec = pipeline.spec
    _require_local_model(spec.model)
    _require_local_gpus(spec.talker)
    base = StageConfig(
        pipeline=pipeline.name,
        generation=model_generation(spec, version),
        replica="",
        model="bundled" if spec.model.path is None else spec.model.path,
        model_name=pipeline.model_name,
        talker=talker_settings(spec.talker),
        codec=codec_settings(spec.codec),
        gateway=gateway_settings(spec.gateway),
    )

    def replicas(stage: Stage, count: int, **fields: object) -> list[StageConfig]:
        return [msgspec.structs.replace(base, replica=f"{stage}-{n}", **fields) for n in range(count)]

    def compute(stage: TalkerSpec | CodecSpec) -> dict[str, object]:
        device = stage.device or "cpu"
        return {"device": device, "max_resident": stage.max_resident, "drain_seconds": stage.drain_seconds}

    gateway, shaping = spec.gateway, codec_process(spec)
    engine = {"engine": spec.talker.engine, "vllm": vllm_options(spec.talker)}
    talkers = replicas(Stage.TALKER, spec.talker.replicas, **engine, **compute(spec.talker))
    codecs = replicas(Stage.CODEC, shaping.replicas, **compute(shaping))
    [served] = replicas(
        Stage.GATEWAY,
        1,
        port=gateway.port,
        reference_hosts=gateway.reference_hosts,
        drain_seconds=gateway.drain_seconds,
    )
    if spec.topology == "Colocated":
        workers = [StageProcess(Stage.TALKER, *both) for both in zip(talkers, codecs, strict=True)]
    else:
        workers = [StageProcess(Stage.TALKER, config) for config in talkers]
        workers += [StageProcess(Stage.CODEC, config) for config in codecs]
    return [*workers, StageProcess(Stage.GATEWAY, served)]


def codec_process(spec: PipelineSpec) -> CodecSpec:
    """The codec as its process is shaped: by the talker's fields where they share one."""
    if spec.topology == "Separate":
        return spec.codec
    return msgspec.structs.replace(spec.codec, **{name: getattr(spec.talker, name) for name, _ in PROCESS_FIELDS})


def engine_suffix(spec: PipelineSpec) -> str:
    """What follows where it is said on what a pipeline computes: the talker's engine, if it is not the usual one."""
    return "" if spec.talker.engine == TalkerSpec().engine else f"; talker with {spec.talker.engine}"


def ignored_locally(pipeline: TTSPipeline) -> list[str]:
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


def _require_local_gpus(talker: TalkerSpec) -> None:
    if vllm_options(talker).tensor_parallel_size > 1 and talker.device is None:
        raise NotLocal(
            "spec.talker.vllm.tensorParallelSize takes GPUs, and spec.talker.resources gives them on Kubernetes only: "
            "give spec.talker.device: cuda"
        )


def model_generation(spec: PipelineSpec, version: str) -> str:
    """Names the model's weights, and the topology: stages meet only where both are the same for certain.

    The bundled voice comes with Syrinx, so its weights follow from `version`.
    """
    named = f"bundled {version}" if spec.model.path is None else f"path {spec.model.path}"
    if spec.topology != "Separate":
        named += f", {spec.topology}"
    return hashlib.sha256(named.encode()).hexdigest()[:10]


def talker_settings(spec: TalkerSpec) -> TalkerSettings:
    """The live settings that a talker starts with."""
    return TalkerSettings(max_num_seqs=spec.max_num_seqs, lead_limit_seconds=spec.lead_limit_seconds)


def vllm_options(spec: TalkerSpec) -> VllmOptions:
    """What a talker starts vLLM with."""
    return VllmOptions() if spec.vllm is None else VllmOptions(**msgspec.structs.asdict(spec.vllm))


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
