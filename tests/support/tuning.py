"""A pipeline in the middle of a trial, as the tuner remembers it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.tuning_status import Counts, Period, State, Stratum, Trial
from syrinx_operator.tuner.decide import Event
from syrinx_operator.tuner.telemetry import PipelineKey, TunerTelemetry

BASE = Setting(
    talker_max_num_seqs=8,
    codec_max_num_seqs=4,
    chunk_ramp=(2, 4, 8),
    capture_pairs=(CaptureShape(rows=1, frames=4),),
)
STRATA = (
    Stratum(task_type="all", candidate=Counts(requests=40, good=39), baseline=Counts(requests=38, good=30)),
    Stratum(task_type="CustomVoice", candidate=Counts(requests=40, good=39), baseline=Counts(requests=38, good=30)),
)


def in_trial(now: datetime) -> State:
    """Returns a state with a trial of twice the rows that started five minutes ago."""
    trial = Trial(
        id=3,
        knob=Knob.CODEC_ROWS,
        candidate=BASE.with_value(Knob.CODEC_ROWS, 8),
        baseline=BASE,
        design="Parallel",
        rationale="the queue waits for it",
        start_time=now - timedelta(minutes=5),
        period_seconds=30.0,
        period=Period(index=2, start_time=now),
        strata=STRATA,
    )
    return State(mode="Auto", phase="Trial", trial=trial)


def update_telemetry(telemetry: TunerTelemetry, pipeline: PipelineKey = ("voices", "demo"), *verdicts: str) -> None:
    """Updates the telemetry with a trial in progress. `verdicts` are new events."""
    now = datetime.now(UTC)
    events = tuple(Event(reason=verdict, message="") for verdict in verdicts)
    telemetry.update(pipeline, base=BASE, state=in_trial(now), events=events, metrics_until=now - timedelta(seconds=3))
