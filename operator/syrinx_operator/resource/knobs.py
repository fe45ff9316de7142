"""What is tuned: settings, single knobs of them, and the bounded ladders that they move on. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from syrinx_operator.resource.spec import CaptureShape, CodecSpec, PipelineSpec, TalkerSpec
from syrinx_stages.contract.settings import Frames, Rows

Mode = Literal["Off", "Recommend", "Auto"]


class StatusStruct(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all parts of the tuner's state share: it is a status, in camelCase, without what is as by default."""


class Identity(StatusStruct, frozen=True, kw_only=True):
    """What knowledge holds for: with another one, all that was learned is forgotten."""

    model: Annotated[str, Meta(max_length=64, description="Model generation.")]
    image: Annotated[str, Meta(max_length=512, description="Image of the stages, or the version of Syrinx.")]
    device: Annotated[
        str,
        Meta(
            max_length=256,
            description="Where talker and codec compute, as far as it is known, and an engine that is not torch.",
        ),
    ]


class Stage(StrEnum):
    """The stages whose settings are tuned."""

    TALKER = "talker"
    CODEC = "codec"


class Knob(StrEnum):
    """One thing that a trial changes, by its name in the resource."""

    TALKER_ROWS = "talker.maxNumSeqs"
    CODEC_ROWS = "codec.maxNumSeqs"
    RAMP = "codec.chunkRamp"
    PAIRS = "codec.capturePairs"

    @property
    def stage(self) -> Stage:
        """The stage that has it."""
        return Stage.TALKER if self is Knob.TALKER_ROWS else Stage.CODEC


class Setting(StatusStruct, frozen=True, kw_only=True):
    """A value for each knob."""

    talker_max_num_seqs: Annotated[Rows, Meta(description="Requests per talker step at most.")]
    codec_max_num_seqs: Annotated[Rows, Meta(description="Requests per decoder call at most.")]
    chunk_ramp: Annotated[
        tuple[Frames, ...], Meta(max_length=16, description="Frames of a stream's first, second, ... chunk.")
    ]
    capture_pairs: Annotated[
        tuple[CaptureShape, ...], Meta(max_length=64, description="Decoder shapes kept ready.")
    ] = ()

    def value(self, knob: Knob) -> Any:
        """What it has for a knob."""
        return getattr(self, _FIELDS[knob])

    def with_value(self, knob: Knob, value: Any) -> Setting:
        """The same but for one knob."""
        return msgspec.structs.replace(self, **{_FIELDS[knob]: value})

    def differing_knobs(self, other: Setting) -> tuple[Knob, ...]:
        """The knobs in which two settings differ."""
        return tuple(knob for knob in Knob if self.value(knob) != other.value(knob))


_FIELDS = {
    Knob.TALKER_ROWS: "talker_max_num_seqs",
    Knob.CODEC_ROWS: "codec_max_num_seqs",
    Knob.RAMP: "chunk_ramp",
    Knob.PAIRS: "capture_pairs",
}

ROWS_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Rungs of `maxNumSeqs`: a factor of two is the least that a trial of some minutes can tell apart."""

RAMP_LADDER = (
    (1, 2, 4, 8, 12),
    (2, 2, 4, 8, 12),
    (4, 4, 8, 12),
    (8, 8, 12, 16),
    (16, 16, 25),
)
"""From the earliest first audio to the least work; one frame is 80 ms. Published ramps lie between its ends."""


def setting_of(spec: PipelineSpec) -> Setting:
    """What the resource asks for."""
    return Setting(
        talker_max_num_seqs=spec.talker.max_num_seqs,
        codec_max_num_seqs=spec.codec.max_num_seqs,
        chunk_ramp=spec.codec.chunk_ramp,
        capture_pairs=spec.codec.capture_pairs,
    )


def with_setting(spec: PipelineSpec, setting: Setting) -> PipelineSpec:
    """The resource as if it asked for a setting."""
    talker: TalkerSpec = msgspec.structs.replace(spec.talker, max_num_seqs=setting.talker_max_num_seqs)
    codec: CodecSpec = msgspec.structs.replace(
        spec.codec,
        max_num_seqs=setting.codec_max_num_seqs,
        chunk_ramp=setting.chunk_ramp,
        capture_pairs=setting.capture_pairs,
    )
    return msgspec.structs.replace(spec, talker=talker, codec=codec)


def live_settings(setting: Setting, stage: Stage) -> dict[str, Any]:
    """A stage's part, as the body of `PUT /settings` names and encodes it."""
    if stage is Stage.TALKER:
        return {"max_num_seqs": setting.talker_max_num_seqs}
    return {
        "max_num_seqs": setting.codec_max_num_seqs,
        "chunk_ramp": list(setting.chunk_ramp),
        "capture_pairs": [[shape.rows, shape.frames] for shape in setting.capture_pairs],
    }
