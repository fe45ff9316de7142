"""Derives the start configuration of each stage process from a pipeline."""

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct, structs

from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.pods import is_kubernetes_only
from syrinx_operator.resource.resolve import ResolvedCodec, ResolvedPipeline, ResolvedTalker
from syrinx_operator.resource.spec import PipelineSpec, TalkerSpec
from syrinx_stages.contract.settings import (
    ApiConfig,
    SharedVoice,
    StageConfig,
    TlsFiles,
    VllmOptions,
    VoiceLimits,
)
from syrinx_stages.contract.stages import Stage


class StageProcess(Struct, frozen=True):
    """A process to run."""

    stage: Stage
    config: StageConfig


class LocalError(Exception):
    """The pipeline cannot run locally. The message contains advice."""


def plan_local(pipeline: ResolvedPipeline, version: str) -> list[StageProcess]:
    """Returns the processes of a local pipeline: talkers first, the gateway last. `version` is that of Syrinx.

    The topology makes no difference: all processes are on one machine.

    Raises `LocalError` for a model or GPUs that are available only on Kubernetes.
    """
    spec, talker, codec = pipeline.spec, pipeline.talker, pipeline.codec
    _require_local(pipeline)
    base = StageConfig(
        pipeline=pipeline.name,
        generation=model_generation(spec, version),
        replica="",
        cells=spec.connector.cells,
        settings_port=0,
        model="bundled" if spec.model.path is None else spec.model.path,
        model_name=pipeline.model_name,
        talker=talker.settings,
        codec=codec.settings,
        gateway=pipeline.gateway.settings,
    )

    def replicas(stage: Stage, count: int, **fields: object) -> list[StageConfig]:
        return [structs.replace(base, replica=f"{stage}-{n}", **fields) for n in range(count)]

    def compute(stage: ResolvedTalker | ResolvedCodec) -> dict[str, object]:
        return {
            "device": stage.device,
            "max_resident": stage.max_resident,
            "memory_fraction": stage.spec.memory_fraction,
            "drain_seconds": stage.spec.drain_seconds,
        }

    engine = {"engine": talker.spec.engine, "vllm": vllm_options(talker.spec)}
    public = {
        name: getattr(spec.gateway, name) for name in ("port", "reference_hosts", "drain_seconds", "trusted_proxies")
    }
    public |= {
        "api": api_config(spec.gateway),
        "voices": voice_limits(spec.gateway),
        "shared_voices": shared_voices(spec),
    }
    public["playground"] = spec.gateway.playground is not False
    public |= {"cors_origins": spec.gateway.cors.allow_origins, **_local_access(spec.gateway)}
    talkers = replicas(Stage.TALKER, talker.spec.replicas, **engine, **compute(talker))
    codecs = replicas(Stage.CODEC, codec.spec.replicas, **compute(codec))
    public["shares_port"] = spec.gateway.replicas > 1
    configs = replicas(Stage.GATEWAY, spec.gateway.replicas, **public)
    gateways = [StageProcess(Stage.GATEWAY, config) for config in configs]
    workers = [StageProcess(Stage.TALKER, config) for config in talkers]
    return workers + [StageProcess(Stage.CODEC, config) for config in codecs] + gateways


def engine_suffix(spec: PipelineSpec) -> str:
    """Returns a suffix for descriptions of the device: the talker's engine, if it is not the default."""
    return "" if spec.talker.engine == TalkerSpec().engine else f"; talker with {spec.talker.engine}"


def ignored_locally(part: Struct, path: str = "spec") -> Iterator[str]:
    """Yields the names of fields of a spec that are set but apply only on Kubernetes."""
    for field in structs.fields(part):
        value, name = getattr(part, field.name), f"{path}.{field.encode_name}"
        if is_kubernetes_only(field):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if value != default:
                yield name
        elif isinstance(value, Struct):
            yield from ignored_locally(value, name)


def _require_local(pipeline: ResolvedPipeline) -> None:
    spec = pipeline.spec
    if (hub := spec.model.hugging_face) is not None:
        raise LocalError(
            "spec.model.huggingFace is supported only on Kubernetes: download the checkpoint "
            f"(hf download {hub.id} --revision {hub.revision} --local-dir DIRECTORY) "
            "and set spec.model.path to its directory"
        )
    if (s3 := spec.model.s3) is not None:
        raise LocalError(
            f"spec.model.s3 is supported only on Kubernetes: download {s3.uri} and set spec.model.path to its directory"
        )
    if (image := spec.model.image) is not None:
        raise LocalError(
            "spec.model.image is supported only on Kubernetes: copy the checkpoint out of "
            f"{image.reference} and set spec.model.path to its directory"
        )
    if spec.model.volume is not None:
        raise LocalError(
            "spec.model.volume is supported only on Kubernetes: remove it and set spec.model.path to a local directory"
        )
    if spec.model.claim is not None:
        raise LocalError(
            "spec.model.claim is supported only on Kubernetes: remove it and set spec.model.path to a local directory"
        )
    if vllm_options(spec.talker).tensor_parallel_size > 1 and pipeline.talker.device == "cpu":
        raise LocalError("spec.talker.vllm.tensorParallelSize needs GPUs: set spec.talker.device: cuda")


def _local_access(gateway: GatewaySpec) -> dict[str, object]:
    """Returns the gateway's files of API keys and certificate.

    Raises `LocalError` if the resource names only Secrets: the API would be open, or unencrypted.
    """
    files: dict[str, object] = {}
    if (keys := gateway.api_keys) is not None:
        if keys.file is None:
            raise LocalError(
                "spec.gateway.apiKeys.secret is supported only on Kubernetes: set spec.gateway.apiKeys.file"
            )
        files["api_keys_file"] = keys.file
    if (tls := gateway.tls) is not None:
        if tls.certificate_file is None or tls.key_file is None:
            raise LocalError(
                "spec.gateway.tls.secret is supported only on Kubernetes: "
                "set spec.gateway.tls.certificateFile and spec.gateway.tls.keyFile"
            )
        files["tls"] = TlsFiles(certificate=tls.certificate_file, key=tls.key_file)
    return files


def model_generation(spec: PipelineSpec, version: str) -> str:
    """Returns a hash of the model's weights. Only stages with the same hash exchange data.

    The bundled voice is part of Syrinx, so `version` identifies its weights.
    """
    identity = f"bundled {version}" if spec.model.path is None else f"path {spec.model.path}"
    return hashlib.sha256(identity.encode()).hexdigest()[:10]


def vllm_options(spec: TalkerSpec) -> VllmOptions:
    """Returns the engine options of vLLM."""
    return VllmOptions() if spec.vllm is None else VllmOptions(**structs.asdict(spec.vllm))


def api_config(spec: GatewaySpec) -> ApiConfig:
    """Returns what the public API accepts besides the names of the checkpoint."""
    return ApiConfig(**structs.asdict(spec.api))


def voice_limits(spec: GatewaySpec) -> VoiceLimits:
    """Returns how many voices clients may keep."""
    return VoiceLimits(**structs.asdict(spec.voices))


def shared_voices(spec: PipelineSpec) -> tuple[SharedVoice, ...]:
    """Returns the voices that all clients may use."""
    return tuple(SharedVoice(**structs.asdict(voice)) for voice in spec.voices)


def tracing_environment(spec: PipelineSpec) -> dict[str, str]:
    """Returns the environment variables by which OpenTelemetry configures the stages; none without tracing."""
    tracing = spec.monitoring.tracing
    if tracing is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": tracing.endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(tracing.sample_ratio),
    }
