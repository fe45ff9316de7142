"""What the resource asks of tuning, in the tuner's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from syrinx_operator.resource.knobs import RAMP_LADDER, ROWS_LADDER, Knob, Mode, Setting, setting_of
from syrinx_operator.resource.spec import PipelineSpec, RowBounds


class Objective(Struct, frozen=True):
    """How soon requests of a task type shall be heard."""

    seconds: float
    target: float
    """Share of them that shall be."""


class CaptureBudget(Struct, frozen=True, kw_only=True):
    """What captured shapes may cost a codec."""

    count: int
    seconds: float
    """To capture them all."""
    bytes: int


class Policy(Struct, frozen=True, kw_only=True):
    """What a pipeline's tuning may do, and what for."""

    mode: Mode
    paused: bool
    interval: float
    """Seconds between two looks."""
    requested: Setting
    """What the resource asks for: where tuning starts, and what an edit of it returns to."""
    objectives: Mapping[str, Objective]
    """By task type."""
    max_underrun_ratio: float
    """Share of streams whose playback may have to wait."""
    rows: Mapping[Knob, tuple[int, ...]]
    """Rungs that may be chosen, by knob; the initial value is one, unless it is out of bounds."""
    ramps: tuple[tuple[int, ...], ...]
    """Chunk ramps that may be chosen, from the earliest first audio to the least work."""
    budget: CaptureBudget


def policy_of(spec: PipelineSpec) -> Policy:
    """The policy of a resource without rule violations."""
    tuning, bounds = spec.tuning, spec.tuning.bounds
    initial = setting_of(spec)
    rows = {
        Knob.TALKER_ROWS: _rungs(bounds.talker_max_num_seqs, spec.talker.max_resident, initial.talker_max_num_seqs),
        Knob.CODEC_ROWS: _rungs(bounds.codec_max_num_seqs, spec.codec.max_resident, initial.codec_max_num_seqs),
    }
    return Policy(
        mode=tuning.mode,
        paused=tuning.paused,
        interval=float(tuning.interval_seconds),
        requested=initial,
        objectives={each.task_type: Objective(each.ttfa_p95_ms / 1000, each.target) for each in spec.slo.ttfa},
        max_underrun_ratio=spec.slo.underrun_ratio,
        rows=rows,
        ramps=_ramps(bounds.chunk_ramps, initial.chunk_ramp),
        budget=CaptureBudget(
            count=bounds.capture_pairs.max,
            seconds=float(bounds.capture_pairs.seconds),
            bytes=bounds.capture_pairs.memory_mi_b << 20,
        ),
    )


def _rungs(bounds: RowBounds, resident: int, initial: int) -> tuple[int, ...]:
    """The ladder within bounds, with the bounds and the initial value as rungs of their own."""
    lowest, highest = min(bounds.min, resident), min(bounds.max, resident)
    return tuple(sorted({rung for rung in (*ROWS_LADDER, lowest, highest, initial) if lowest <= rung <= highest}))


def _ramps(given: tuple[tuple[int, ...], ...] | None, initial: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What may be chosen, with the initial one: an empty list leaves the ramp alone."""
    ladder = RAMP_LADDER if given is None else given
    return tuple(sorted({*ladder, initial}, key=lambda ramp: (ramp[0], sum(ramp) / len(ramp), ramp)))
