"""The constraints and objectives of tuning, derived from the resource. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.fields.tuning import CaptureBounds, RowBounds
from syrinx_operator.resource.knobs import RAMP_LADDER, ROWS_LADDER, Knob, Mode, Setting, setting_of
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import Stage
from syrinx_stages.scheduling.traits import CPU, GPU, Traits


class Scale(Struct, frozen=True, kw_only=True):
    """Bounds of a stage's replicas."""

    mode: Literal["Auto", "Recommend"]
    minimum: int
    maximum: int


class Policy(Struct, frozen=True, kw_only=True):
    """Constraints and objectives of a pipeline's tuning."""

    mode: Mode
    paused: bool
    interval: float
    """Seconds between two evaluations while there are requests."""
    requested: Setting
    """Setting in `spec`: the starting point, and what an edit returns to."""
    objectives: Mapping[str, Objective]
    """By task type."""
    max_underrun_ratio: float
    """Allowed ratio of streams whose playback underruns."""
    rows: Mapping[Knob, tuple[int, ...]]
    """Allowed values by knob. They include the requested value unless it is out of bounds."""
    ramps: tuple[tuple[int, ...], ...]
    """Allowed chunk ramps, from the lowest TTFA to the least engine time."""
    budget: CaptureBounds
    residents: Mapping[Stage, int]
    """Most requests of a replica at the same time."""
    max_queue_seconds: float
    """How long a request may wait for a talker."""
    lead_limit: float
    """Seconds of codes ahead of playback at which a stream yields its row."""
    traits: Traits
    """How the engines want to be called."""
    scales: Mapping[Stage, Scale] = {}
    """Stages whose number of replicas is decided."""
    colocated: bool = False
    """Whether each talker has a codec in its process."""


def policy_of(pipeline: ResolvedPipeline) -> Policy:
    """Returns the policy of a pipeline."""
    spec, talker, codec = pipeline.spec, pipeline.talker, pipeline.codec
    tuning, bounds = spec.tuning, spec.tuning.bounds
    requested = setting_of(pipeline)
    ramps = RAMP_LADDER if bounds.chunk_ramps is None else bounds.chunk_ramps
    return Policy(
        mode=tuning.mode,
        paused=tuning.paused,
        interval=float(tuning.interval_seconds),
        requested=requested,
        objectives={each.task_type: Objective(each.ttfa_p95_ms / 1000, each.target) for each in spec.slo.ttfa},
        max_underrun_ratio=spec.slo.underrun_ratio,
        rows={
            Knob.TALKER_ROWS: _rows(bounds.talker_max_num_seqs, talker.max_resident, requested.talker_max_num_seqs),
            Knob.CODEC_ROWS: _rows(bounds.codec_max_num_seqs, codec.max_resident, requested.codec_max_num_seqs),
        },
        # An empty list fixes the ramp; None is the default ladder.
        ramps=tuple(sorted({*ramps, requested.chunk_ramp}, key=lambda ramp: (ramp[0], sum(ramp) / len(ramp), ramp))),
        budget=bounds.capture_pairs,
        residents={Stage.TALKER: talker.max_resident, Stage.CODEC: codec.max_resident},
        max_queue_seconds=spec.gateway.max_queue_seconds,
        lead_limit=talker.settings.lead_limit_seconds,
        traits=CPU if talker.device == "cpu" else GPU,
        scales=_scales(pipeline),
        colocated=Stage.CODEC not in pipeline.workloads,
    )


def _scales(pipeline: ResolvedPipeline) -> Mapping[Stage, Scale]:
    """Returns the bounds of the stages that Syrinx scales. A colocated codec follows its talker."""
    parts = {Stage.TALKER: pipeline.talker.spec.autoscaling, Stage.CODEC: pipeline.codec.spec.autoscaling}
    return {
        stage: Scale(mode=part.mode or "Auto", minimum=part.min_replicas, maximum=part.max_replicas)
        for stage, part in parts.items()
        if part is not None and part.by == "Syrinx"
    }


def _rows(bounds: RowBounds, max_resident: int, requested: int) -> tuple[int, ...]:
    """Returns the ladder within the bounds, plus the bounds themselves and the requested value."""
    lowest, highest = min(bounds.min, max_resident), min(bounds.max, max_resident)
    return tuple(sorted({rows for rows in (*ROWS_LADDER, lowest, highest, requested) if lowest <= rows <= highest}))
