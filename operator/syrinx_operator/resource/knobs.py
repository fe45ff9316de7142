"""The tuned settings, their knobs, and the ladders of values that a knob may take. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_operator.resource.spec import CaptureShape, PipelineSpec
from syrinx_stages.contract.settings import Frames, Rows
from syrinx_stages.contract.stages import Stage

Mode = Literal["Off", "Recommend", "Auto"]


class StatusStruct(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the types of the status and of the tuner's state: camelCase names, defaults omitted."""


class Identity(StatusStruct, frozen=True, kw_only=True):
    """Model, image and device that tuning results hold for. A change discards the results."""

    model: Annotated[str, Meta(max_length=64)]
    """Model generation."""
    image: Annotated[str, Meta(max_length=512)]
    """Image of the stages, or the version of Syrinx."""
    device: Annotated[str, Meta(max_length=256)]
    """Devices of talker and codec as far as known, and the engine if it is not torch."""


class Knob(StrEnum):
    """A tuned field, named by its path in `spec`."""

    TALKER_ROWS = "talker.maxNumSeqs"
    CODEC_ROWS = "codec.maxNumSeqs"
    RAMP = "codec.chunkRamp"
    PAIRS = "codec.capturePairs"

    @property
    def stage(self) -> Stage:
        """The stage that the knob belongs to."""
        return Stage.TALKER if self is Knob.TALKER_ROWS else Stage.CODEC


class Setting(StatusStruct, frozen=True, kw_only=True):
    """A value for each knob."""

    talker_max_num_seqs: Rows
    """Maximum number of requests per talker step."""
    codec_max_num_seqs: Rows
    """Maximum number of requests per decoder call."""
    chunk_ramp: Annotated[tuple[Frames, ...], Meta(max_length=16)]
    """Frames of the first, second, ... chunk of a stream."""
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64)] = ()
    """Captured decoder shapes."""

    def value(self, knob: Knob) -> Any:
        """Returns the value of a knob."""
        return getattr(self, _FIELDS[knob])

    def with_value(self, knob: Knob, value: Any) -> Setting:
        """Returns a copy with another value of one knob."""
        return structs.replace(self, **{_FIELDS[knob]: value})

    def differing_knobs(self, other: Setting) -> tuple[Knob, ...]:
        """Returns the knobs in which two settings differ."""
        return tuple(knob for knob in Knob if self.value(knob) != other.value(knob))


_FIELDS = dict(zip(Knob, Setting.__struct_fields__, strict=True))  # Both are in the same order.

ROWS_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Values of `maxNumSeqs`. A trial of some minutes cannot distinguish factors below two."""

RAMP_LADDER = ((1, 2, 4, 8, 12), (2, 2, 3, 4, 5, 7, 9, 12), (4, 4, 8, 12), (8, 8, 12, 16), (16, 16, 25))
"""From the lowest TTFA to the least engine time. A frame is 80 ms. Published ramps lie in this range."""


def setting_of(pipeline: ResolvedPipeline) -> Setting:
    """Returns the setting that a resource requests."""
    codec = pipeline.codec.settings
    return Setting(
        talker_max_num_seqs=pipeline.talker.settings.max_num_seqs,
        codec_max_num_seqs=codec.max_num_seqs,
        chunk_ramp=codec.chunk_ramp,
        capture_pairs=tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in codec.capture_pairs),
    )


def with_setting(spec: PipelineSpec, setting: Setting) -> PipelineSpec:
    """Returns the spec with its tuned fields replaced by a setting."""
    shapes = {"chunk_ramp": setting.chunk_ramp, "capture_pairs": setting.capture_pairs}
    talker = structs.replace(spec.talker, max_num_seqs=setting.talker_max_num_seqs)
    codec = structs.replace(spec.codec, max_num_seqs=setting.codec_max_num_seqs, **shapes)
    return structs.replace(spec, talker=talker, codec=codec)


def live_settings(setting: Setting, stage: Stage) -> dict[str, Any]:
    """Returns the part of a setting for one stage, as the body of `PUT /settings/STAGE`."""
    if stage is Stage.TALKER:
        return {"max_num_seqs": setting.talker_max_num_seqs}
    return {
        "max_num_seqs": setting.codec_max_num_seqs,
        "chunk_ramp": list(setting.chunk_ramp),
        "capture_pairs": [[shape.rows, shape.frames] for shape in setting.capture_pairs],
    }


def format_value(setting: Setting, knob: Knob) -> str:
    """Returns a knob's value as text."""
    value = setting.value(knob)
    if knob is Knob.PAIRS:
        return "[" + ", ".join(f"{shape.rows}x{shape.frames}" for shape in value) + "]"
    return str(list(value) if isinstance(value, tuple) else value)


def format_setting(setting: Setting, knobs: tuple[Knob, ...] = tuple(Knob)) -> str:
    """Returns knobs and their values as text."""
    return ", ".join(f"{knob} {format_value(setting, knob)}" for knob in knobs)


def format_change(before: Setting, after: Setting) -> str:
    """Returns the knobs that differ, with both values, as text."""
    knobs = before.differing_knobs(after)
    return ", ".join(f"{knob} {format_value(before, knob)} -> {format_value(after, knob)}" for knob in knobs)
