"""A pipeline in the middle of a trial, as the tuner remembers it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from syrinx_operator.cluster.objects.tuner_telemetry import PipelineKey, TunerTelemetry
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state.tuning_status import (
    LOG_WORTHS,
    Capacity,
    Curve,
    Forecast,
    Guard,
    Replicas,
    Served,
    StageReplicas,
    State,
    Trial,
    Worth,
)
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.trial import runs_candidate
from syrinx_stages.contract.stages import WORKERS, Stage

BASE = Setting(
    talker_max_num_seqs=8,
    codec_max_num_seqs=4,
    chunk_ramp=(2, 4, 8),
    capture_pairs=(CaptureShape(rows=1, frames=4),),
)


def trial(candidate: Setting, baseline: Setting, start: datetime, *, of_candidate: bool = True, **fields: Any) -> Trial:
    """Returns trial 3 of a pipeline with a talker and a codec, in a period of the candidate or of the baseline."""
    found = Trial(
        id=3,
        candidate=candidate,
        baseline=baseline,
        why="the decoder waits",
        start_time=start,
        period_seconds=30.0,
        period_time=start,
        replicas=tuple(f"demo-{stage}-0" for stage in WORKERS),
        guard=Guard(expected_bad=0.2),
    )
    # A coin decides which period of the first pair is the candidate's.
    period = next(n for n in range(2) if runs_candidate(replace(found, period=n)) is of_candidate)
    return replace(found, period=period, **fields)


def in_trial(now: datetime) -> State:
    """Returns a state with a trial of twice the rows that started five minutes ago."""
    served = {"candidate_served": Served(requests=40, bad=1), "baseline_served": Served(requests=38, bad=8)}
    twice = BASE.with_value(Knob.CODEC_ROWS, 8)
    forecast = Forecast(time=now, rate=2.0, observed=0.93, current=0.92, best=0.985, setting=twice)
    started = trial(twice, BASE, now - timedelta(minutes=5), **served)
    return State(mode="Auto", phase="Trial", trial=started, forecast=forecast, replicas=scaled(now))


AS_PREDICTED = Worth(tuple(float(each == 0) for each in LOG_WORTHS))


def scaled(now: datetime, talkers: int = 3, codecs: int = 2, **fields: Any) -> Replicas:
    """Returns what is known of ready replicas, each of which serves two requests a second."""
    stages = {
        stage: StageReplicas(count=count, ready=count, wanted=count, worth=AS_PREDICTED)
        for stage, count in ((Stage.TALKER, talkers), (Stage.CODEC, codecs))
    }
    capacity = Capacity(
        setting=BASE, shares={"CustomVoice": 1.0}, frames=50.0, curves=dict.fromkeys(WORKERS, Curve(2.0))
    )
    known: dict[str, Any] = {"ready_time": now - timedelta(hours=1), "judged_time": now, "capacity": capacity}
    return Replicas(stages=stages, **(known | fields))


def update_telemetry(telemetry: TunerTelemetry, pipeline: PipelineKey = ("voices", "demo"), *verdicts: str) -> None:
    """Updates the telemetry with a trial in progress. `verdicts` are new events."""
    now = datetime.now(UTC)
    events = tuple(Event(reason=verdict, message="") for verdict in verdicts)
    telemetry.update(pipeline, base=BASE, state=in_trial(now), events=events, metrics_until=now - timedelta(seconds=3))
