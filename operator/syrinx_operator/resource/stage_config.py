"""Derives the start configuration of each stage process from a pipeline."""

import hashlib
from typing import Any

from msgspec import Struct, structs

from syrinx_operator.resource.checks.check import field_name
from syrinx_operator.resource.checks.local_rules import local_violations
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.resolve import ResolvedCodec, ResolvedGateway, ResolvedPipeline, ResolvedTalker
from syrinx_operator.resource.spec import PipelineSpec, TalkerSpec
from syrinx_stages.contract.settings import (
    CODEC_MEMORY,
    TALKER_MEMORY,
    ApiConfig,
    SharedVoice,
    StageConfig,
    TlsFiles,
    VllmOptions,
    VoiceLimits,
)
from syrinx_stages.contract.stages import WORKERS, Stage

ENVIRONMENT = {
    # With several threads BLAS splits by shape, and results would depend on the batch.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Environment variables of all stages."""
STANDBY_SHARE = 1 / 3
"""Part of a stage's memory of a GPU that a standby gets: weights, and state for fewer requests."""
_MEMORY = {Stage.TALKER: TALKER_MEMORY, Stage.CODEC: CODEC_MEMORY}


class StageProcess(Struct, frozen=True):
    """A process to run."""

    stage: Stage
    config: StageConfig


class LocalError(Exception):
    """The pipeline cannot run locally. The message contains advice."""


def plan_local(pipeline: ResolvedPipeline, version: str) -> list[StageProcess]:
    """Returns the processes of a local pipeline: talkers first, the gateways last. `version` is that of Syrinx.

    The topology makes no difference: all processes are on one machine.

    Raises `LocalError` for what is available only on Kubernetes: see `local_violations`.
    """
    spec = pipeline.spec
    if found := local_violations(pipeline):
        raise LocalError("\n".join(f"{field_name(path)}: {message}" for path, message in found))
    base = StageConfig(
        pipeline=pipeline.name,
        generation=model_generation(spec, version),
        settings_port=0,
        model="bundled" if spec.model.path is None else spec.model.path,
        model_name=pipeline.model_name,
        talker=pipeline.talker.settings,
        codec=pipeline.codec.settings,
        gateway=pipeline.gateway.settings,
    )
    public = {"playground": spec.gateway.playground is not False, "shares_port": spec.gateway.replicas > 1}
    fields = {stage: stage_fields(pipeline, stage) for stage in (*WORKERS, Stage.GATEWAY)}
    fields[Stage.GATEWAY] |= public | _local_access(spec.gateway)
    return [
        process
        for stage, own in fields.items()
        for process in _processes(pipeline.stage(stage), stage, structs.replace(base, **own))
    ]


def _processes(
    resolved: ResolvedGateway | ResolvedTalker | ResolvedCodec, stage: Stage, config: StageConfig
) -> list[StageProcess]:
    """Returns the replicas of a stage, then their standbys. `config` lacks only their names and memory."""
    names = [f"{stage}-{n}" for n in range(resolved.spec.replicas)]
    if isinstance(resolved, ResolvedGateway) or not resolved.spec.standby:
        return [StageProcess(stage, structs.replace(config, replica=name)) for name in names]
    own = of_standby = config.memory_fraction
    if resolved.device == "cuda":
        of_both = resolved.spec.memory_fraction or _MEMORY[stage]
        own, of_standby = (round(of_both * share, 3) for share in (1 - STANDBY_SHARE, STANDBY_SHARE))
    # The number at the end of a name is its cell: a replica and its standby share one.
    standbys = {f"{stage}-standby-{n}": name for n, name in enumerate(names)}
    return [
        *(StageProcess(stage, structs.replace(config, replica=name, memory_fraction=own)) for name in names),
        *(
            StageProcess(stage, structs.replace(config, replica=standby, standby_of=name, memory_fraction=of_standby))
            for standby, name in standbys.items()
        ),
    ]


def stage_fields(pipeline: ResolvedPipeline, stage: Stage) -> dict[str, Any]:
    """Returns the fields of a stage's start configuration that are the same on Kubernetes and locally."""
    resolved = pipeline.stage(stage)
    shared: dict[str, Any] = {"cells": pipeline.spec.connector.cells, "drain_seconds": resolved.spec.drain_seconds}
    if isinstance(resolved, ResolvedGateway):
        part = resolved.spec
        return shared | {
            "model_name": pipeline.model_name,
            "port": part.port,
            "reference_hosts": part.reference_hosts,
            "trusted_proxies": part.trusted_proxies,
            "keep_alive_seconds": part.keep_alive_seconds,
            "cors_origins": part.cors.allow_origins,
            "api": ApiConfig(**structs.asdict(part.api)),
            "voices": VoiceLimits(**structs.asdict(part.voices)),
            "shared_voices": tuple(SharedVoice(**structs.asdict(voice)) for voice in pipeline.spec.voices),
        }
    shared |= {"device": resolved.device, "max_resident": resolved.max_resident}
    shared |= {"memory_fraction": resolved.spec.memory_fraction}
    if isinstance(resolved, ResolvedTalker):
        shared |= {"engine": resolved.spec.engine, "vllm": _vllm_options(resolved.spec)}
    return shared


def engine_suffix(spec: PipelineSpec) -> str:
    """Returns a suffix for descriptions of the device: the talker's engine, if it is not the default."""
    return "" if spec.talker.engine == TalkerSpec().engine else f"; talker with {spec.talker.engine}"


def _local_access(gateway: GatewaySpec) -> dict[str, object]:
    """Returns the gateway's files of API keys and certificate."""
    files: dict[str, object] = {}
    if (keys := gateway.api_keys) is not None:
        files["api_keys_file"] = keys.file
    if (tls := gateway.tls) is not None and tls.certificate_file is not None and tls.key_file is not None:
        files["tls"] = TlsFiles(certificate=tls.certificate_file, key=tls.key_file)
    return files


def model_generation(spec: PipelineSpec, version: str) -> str:
    """Returns a hash of the model's weights. Only stages with the same hash exchange data.

    The bundled voice is part of Syrinx, so `version` identifies its weights.
    """
    identity = f"bundled {version}" if spec.model.path is None else f"path {spec.model.path}"
    return hashlib.sha256(identity.encode()).hexdigest()[:10]


def _vllm_options(spec: TalkerSpec) -> VllmOptions:
    return VllmOptions() if spec.vllm is None else VllmOptions(**structs.asdict(spec.vllm))


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
