"""The text of `syrinx tune`: settings in force, objectives, what is in progress, what is known, and the decisions.

After an intended change, write the golden text anew and review the diff: `GOLDEN=write` with this test.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.tuning import scaled
from syrinx_operator.commands.tune.view import View, changes, lines
from syrinx_operator.resource.fields.tuning import TtfaObjective
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.status import SloStatus
from syrinx_operator.resource.state.tuning_status import (
    Bet,
    CallPoint,
    Forecast,
    Guard,
    Measured,
    Recommendation,
    Served,
    Soak,
    State,
    StepPoint,
    Trial,
    TrialRecord,
    Tried,
)
from syrinx_operator.tuner.betting import CERTAIN

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
INITIAL = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 4))
CHOSEN = INITIAL.with_value(Knob.TALKER_ROWS, 4)
TRIAL = Trial(
    id=3,
    candidate=CHOSEN.with_value(Knob.CODEC_ROWS, 2).with_value(Knob.RAMP, (1, 2)),
    baseline=CHOSEN,
    why="20.0% of the requests are bad; the model says 3.0%",
    period_seconds=20,
    start_time=NOW - timedelta(minutes=4),
    period=11,
    period_time=NOW,
    discarded=1,
    candidate_served=Served(requests=200, bad=10),
    baseline_served=Served(requests=210, bad=105),
    better=Bet(count=5, mean=0.45, mean_square=0.21, log_wealth=CERTAIN / 2),
    worse=Bet(count=5, mean=-0.45, mean_square=0.21, log_wealth=-1.0),
    guard=Guard(expected_bad=0.5),
)
RECORD = TrialRecord(
    id=2,
    time=NOW,
    start_time=NOW - timedelta(minutes=9),
    before="talker.maxNumSeqs 1",
    after="talker.maxNumSeqs 4",
    verdict="Promoted",
    reason="+21.0 points of requests served well",
    difference=0.21,
    forecast=0.25,
)
REGRESSED = replace(RECORD, id=3, verdict="Regressed", difference=None, forecast=None, reason="worse")
TRIED = Tried(
    setting=CHOSEN.with_value(Knob.TALKER_ROWS, 16),
    baseline=CHOSEN,
    difference=-0.031,
    error=0.01,
    rate=4.1,
    until=NOW + timedelta(hours=1),
)
MEASURED = Measured(
    steps=(StepPoint(1, 100, 0.5), StepPoint(2, 100, 0.6)),
    calls=(CallPoint(1, 2, False, 10, 0.04), CallPoint(2, 4, False, 10, 0.1)),
    prefills=10,
    prefill_seconds=0.12,
)
GUARD = Guard(expected_bad=0.02, seen=Served(requests=50, bad=5), bet=Bet(log_wealth=CERTAIN / 4))
EVERYTHING = State(
    mode="Auto",
    phase="Trial",
    message="99.8% of the requests are served well",
    chosen=CHOSEN,
    trial=TRIAL,
    soak=Soak(id=3, before=INITIAL, start_time=NOW - timedelta(seconds=100), rate=2.0, guard=GUARD),
    forecast=Forecast(time=NOW, rate=3.21, observed=0.8, current=0.82, best=0.97, setting=TRIAL.candidate),
    replicas=replace(scaled(NOW), why="talker: 2 -> 3 replicas: 5 requests/s are expected"),
    measured=MEASURED,
    history=(RECORD, REGRESSED),
    recommendation=Recommendation(setting=TRIAL.candidate, rationale="calls wait for each other"),
    tried=(TRIED, replace(TRIED, until=NOW - timedelta(hours=1))),
)
OBJECTIVES = tuple(TtfaObjective(task_type=name, ttfa_p95_ms=300) for name in ("CustomVoice", "Base"))
SLO = SloStatus(task_type="CustomVoice", requests=120, within=0.8123, ttfa_p95_ms=612, met="False")
GOLDEN = Path(__file__).parent / "golden" / "tune.txt"


def view(state, **fields):
    return View(name="demo", location="http://127.0.0.1:1", state=state, requested=INITIAL, **fields)


def text(state, **fields):
    return "\n".join(lines(view(state, **fields), NOW))


@pytest.fixture
def utc(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_golden(utc):
    """The view of a pipeline of which everything is known."""
    shown = text(EVERYTHING, objectives=OBJECTIVES, slo=(SLO,), observed_at=NOW - timedelta(seconds=3)) + "\n"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()


def test_of_a_new_pipeline_only_the_settings_and_the_lack_of_objectives_are_shown():
    shown = text(State())
    assert "none; set spec.slo.ttfa" in shown
    assert [each.split()[0] for each in shown.split("\n\n")] == ["pipeline", "settings", "objectives"]
    forecast = replace(EVERYTHING.forecast, setting=INITIAL)
    assert "with the setting in force" in text(State(forecast=forecast))


def test_lists_only_changes():
    quiet = view(State(phase="Watching", message="served well", chosen=INITIAL))
    assert changes(None, quiet) == ["Watching: served well"]
    assert changes(quiet, quiet) == []
    trying = view(State(phase="Trial", message="1 -> 2", chosen=INITIAL, trial=TRIAL))
    assert changes(quiet, trying) == [
        "Trial: 1 -> 2",
        "trial 3: codec.maxNumSeqs 1 -> 2, codec.chunkRamp [2, 2, 4] -> [1, 2]: "
        "20.0% of the requests are bad; the model says 3.0%",
    ]
    done = view(State(phase="Trial", message="1 -> 2", chosen=CHOSEN, trial=TRIAL, history=(RECORD,)))
    decided, knobs = changes(trying, done)
    assert "Promoted: +21.0 points" in decided
    assert knobs == "settings in force: talker.maxNumSeqs 1 -> 4"
