"""A pipeline with everything that its resource leaves open: devices, batch sizes, decoder shapes, and what runs where.

The sizes follow from the device. A stage has fewer rows and requests if its GPU cannot do as much
(`syrinx_stages.runtime.requests.engine.Limits`). Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct, structs

from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.tuning import RowBounds
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, StageSpec, TalkerSpec, TTSPipeline
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.settings import (
    DEFAULT_RAMP,
    DEFAULT_RESIDENT,
    CapturePair,
    CodecSettings,
    GatewaySettings,
    TalkerSettings,
)
from syrinx_stages.contract.stages import Stage

Device = Literal["cpu", "cuda"]
_GPU_RESOURCES = ("nvidia.com/", "amd.com/")
_DOWNLOAD_SECONDS: Final = 600
"""Seconds to pull an image and download a checkpoint, before a stage can load it."""


class RedisForm(StrEnum):
    """The forms of the managed Redis."""

    SINGLE = "redis"
    """One server."""
    REPLICATED = "redis-ha"
    """Three servers with sentinels."""


class ResolvedGateway(Struct, frozen=True, kw_only=True):
    """The gateways."""

    spec: GatewaySpec
    settings: GatewaySettings
    """The initial live settings."""


class ResolvedTalker(Struct, frozen=True, kw_only=True):
    """The talkers."""

    spec: TalkerSpec
    device: Device
    max_resident: int
    """Number of requests with state."""
    settings: TalkerSettings
    """The initial live settings."""


class ResolvedCodec(Struct, frozen=True, kw_only=True):
    """The codecs."""

    spec: CodecSpec
    """The fields of the pod are the talker's if it is colocated."""
    device: Device
    max_resident: int
    """Number of requests with state."""
    settings: CodecSettings
    """The initial live settings."""


class ResolvedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline, resolved."""

    resource: TTSPipeline
    gateway: ResolvedGateway
    talker: ResolvedTalker
    codec: ResolvedCodec
    workloads: tuple[Stage, ...]
    """The stages with pods of their own: a colocated codec runs in the talker's."""
    redis: RedisForm | None
    """None if the pipeline uses another Redis."""
    progress_deadline: int
    """Seconds without progress after which a roll-out or scaling has failed."""

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.resource.name

    @property
    def model_name(self) -> str:
        """The name that clients send as `model`."""
        return self.resource.model_name

    @property
    def spec(self) -> PipelineSpec:
        """The spec, with what it leaves open."""
        return self.resource.spec

    def stage(self, stage: Stage) -> ResolvedGateway | ResolvedTalker | ResolvedCodec:
        """Returns a stage."""
        match stage:
            case Stage.GATEWAY:
                return self.gateway
            case Stage.TALKER:
                return self.talker
            case Stage.CODEC:
                return self.codec

    def in_pod(self, stage: Stage) -> tuple[Stage, ...]:
        """Returns the stages in the pods of a workload, its own first."""
        return (stage, Stage.CODEC) if stage is Stage.TALKER and Stage.CODEC not in self.workloads else (stage,)


class _Defaults(Struct, frozen=True, kw_only=True):
    talker_rows: int
    codec_rows: int
    max_resident: int
    chunk_ramp: tuple[int, ...]
    captures: bool
    """Whether decoder calls of all sizes are captured."""


_DEFAULTS = {
    "cpu": _Defaults(
        talker_rows=8, codec_rows=8, max_resident=DEFAULT_RESIDENT, chunk_ramp=DEFAULT_RAMP, captures=False
    ),
    # Measured on an H200 as the best for any load. The ramp has few sizes, so that each can be captured.
    "cuda": _Defaults(talker_rows=256, codec_rows=32, max_resident=1024, chunk_ramp=(2, 2, 4, 8, 12), captures=True),
}


def resolve(pipeline: TTSPipeline) -> ResolvedPipeline:
    """Returns a valid pipeline, resolved."""
    spec, is_colocated = pipeline.spec, pipeline.spec.topology == "Colocated"
    talker = _talker(spec)
    codec = _codec(spec, spec.talker if is_colocated else None)
    started = max(talker.spec.startup_seconds, codec.spec.startup_seconds)
    form = RedisForm.SINGLE if spec.connector.replicas == 1 else RedisForm.REPLICATED
    return ResolvedPipeline(
        resource=pipeline,
        gateway=ResolvedGateway(
            spec=spec.gateway,
            settings=GatewaySettings(
                max_queue=spec.gateway.max_queue,
                max_queue_seconds=spec.gateway.max_queue_seconds,
                ttfa_seconds={TaskType(each.task_type): each.ttfa_p95_ms / 1000 for each in spec.slo.ttfa},
            ),
        ),
        talker=talker,
        codec=codec,
        workloads=(Stage.GATEWAY, Stage.TALKER) if is_colocated else tuple(Stage),
        redis=form if spec.connector.managed else None,
        progress_deadline=spec.progress_deadline_seconds or started + _DOWNLOAD_SECONDS,
    )


def _talker(spec: PipelineSpec) -> ResolvedTalker:
    talker, device = spec.talker, _device_of(spec.talker)
    defaults = _DEFAULTS[device]
    resident = talker.max_resident or max(defaults.max_resident, talker.max_num_seqs or 0)
    rows = talker.max_num_seqs or _rows(defaults.talker_rows, resident, spec.tuning.bounds.talker_max_num_seqs)
    settings = TalkerSettings(max_num_seqs=rows, lead_limit_seconds=talker.lead_limit_seconds)
    return ResolvedTalker(spec=talker, device=device, max_resident=resident, settings=settings)


def _codec(spec: PipelineSpec, beside: TalkerSpec | None) -> ResolvedCodec:
    """`beside`: the talker in the same pod."""
    codec, bounds = spec.codec, spec.tuning.bounds
    if beside is not None:
        of_pod = (field.name for field in structs.fields(StageSpec))
        codec = structs.replace(codec, **{name: getattr(beside, name) for name in of_pod})
    device = _device_of(codec)
    defaults = _DEFAULTS[device]
    needed = [codec.max_num_seqs or 0, *(shape.rows for shape in codec.capture_pairs or ())]
    resident = codec.max_resident or max(defaults.max_resident, *needed)
    rows = codec.max_num_seqs or _rows(defaults.codec_rows, resident, bounds.codec_max_num_seqs)
    ramp = codec.chunk_ramp or defaults.chunk_ramp
    if codec.capture_pairs is not None:
        pairs = tuple((shape.rows, shape.frames) for shape in codec.capture_pairs)
    else:
        pairs = capture_grid(rows, ramp, bounds.capture_pairs.max) if defaults.captures else ()
    settings = CodecSettings(max_num_seqs=rows, chunk_ramp=ramp, capture_pairs=pairs)
    return ResolvedCodec(spec=codec, device=device, max_resident=resident, settings=settings)


def _device_of(stage: StageSpec) -> Device:
    """Returns the device of a stage's process: cuda if it asks for a GPU, unless the resource says otherwise."""
    has_gpu = any(name.startswith(_GPU_RESOURCES) for name in stage.resources.limits)
    return stage.device or ("cuda" if has_gpu else "cpu")


def _rows(default: int, max_resident: int, bounds: RowBounds) -> int:
    """Returns a default within the bounds of tuning, as far as there are resident requests."""
    return min(max(bounds.min, min(default, bounds.max)), max_resident)


def capture_grid(rows: int, ramp: tuple[int, ...], limit: int) -> tuple[CapturePair, ...]:
    """Returns shapes for up to `rows` streams with chunks of a ramp: at most `limit`, for evenly spaced powers of two.

    Empty if the limit is less than the ramp's sizes: then the decoder would mostly run without captured shapes.
    """
    frames = sorted(set(ramp))
    for step in range(1, rows.bit_length() + 1):
        counts = sorted({rows, *(1 << power for power in range(0, rows.bit_length(), step))})
        if len(counts) * len(frames) <= limit:
            return tuple((count, each) for count in counts for each in frames)
    return tuple((rows, each) for each in frames) if len(frames) <= limit else ()
