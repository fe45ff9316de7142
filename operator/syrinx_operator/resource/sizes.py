"""The devices of a pipeline, and its batch sizes and decoder shapes with what the resource leaves open. Pure.

The open ones follow from the device. A stage has fewer rows and requests if its GPU cannot do as much
(`syrinx_stages.runtime.engine.Limits`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, StageSpec
from syrinx_operator.resource.tuning import RowBounds
from syrinx_stages.contract.settings import DEFAULT_RAMP, DEFAULT_RESIDENT, CapturePair, CodecSettings, TalkerSettings

_GPU_RESOURCES = ("nvidia.com/", "amd.com/")


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


def codec_process(spec: PipelineSpec) -> CodecSpec:
    """Returns the codec with the fields of its process. If it is colocated, these are the talker's."""
    if spec.topology == "Separate":
        return spec.codec
    fields = (field.name for field in structs.fields(StageSpec))
    return structs.replace(spec.codec, **{name: getattr(spec.talker, name) for name in fields})


def device_of(stage: StageSpec) -> Literal["cpu", "cuda"]:
    """Returns the device of a stage's process: cuda if it asks for a GPU, unless the resource says otherwise."""
    has_gpu = any(name.startswith(_GPU_RESOURCES) for name in stage.resources.limits)
    return stage.device or ("cuda" if has_gpu else "cpu")


def talker_resident(spec: PipelineSpec) -> int:
    """Returns the number of requests with state in a talker: in one process with a codec, at most the codec's."""
    defaults, shared = _DEFAULTS[device_of(spec.talker)], spec.codec.max_resident
    limit = shared if shared and spec.topology == "Colocated" else defaults.max_resident
    return spec.talker.max_resident or max(min(defaults.max_resident, limit), spec.talker.max_num_seqs or 0)


def codec_resident(spec: PipelineSpec) -> int:
    """Returns the number of requests with state in a codec: in one process with a talker, at least the talker's."""
    needed = [spec.codec.max_num_seqs or 0, *(shape.rows for shape in spec.codec.capture_pairs or ())]
    if spec.topology == "Colocated":
        needed.append(talker_resident(spec))
    default = _DEFAULTS[device_of(codec_process(spec))].max_resident
    return spec.codec.max_resident or max(default, *needed)


def talker_settings(spec: PipelineSpec) -> TalkerSettings:
    """Returns the initial live settings of a talker."""
    talker, defaults = spec.talker, _DEFAULTS[device_of(spec.talker)]
    default = _rows(defaults.talker_rows, talker_resident(spec), spec.tuning.bounds.talker_max_num_seqs)
    return TalkerSettings(max_num_seqs=talker.max_num_seqs or default, lead_limit_seconds=talker.lead_limit_seconds)


def codec_settings(spec: PipelineSpec) -> CodecSettings:
    """Returns the initial live settings of a codec."""
    codec, bounds = spec.codec, spec.tuning.bounds
    defaults = _DEFAULTS[device_of(codec_process(spec))]
    default_rows = _rows(defaults.codec_rows, codec_resident(spec), bounds.codec_max_num_seqs)
    rows, ramp = codec.max_num_seqs or default_rows, codec.chunk_ramp or defaults.chunk_ramp
    if codec.capture_pairs is not None:
        pairs = tuple((shape.rows, shape.frames) for shape in codec.capture_pairs)
    else:
        pairs = capture_grid(rows, ramp, bounds.capture_pairs.max) if defaults.captures else ()
    return CodecSettings(max_num_seqs=rows, chunk_ramp=ramp, capture_pairs=pairs)


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


def _rows(default: int, max_resident: int, bounds: RowBounds) -> int:
    """Returns a default within the bounds of tuning, as far as there are resident requests."""
    return min(max(bounds.min, min(default, bounds.max)), max_resident)
