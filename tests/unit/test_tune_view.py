"""The text of `syrinx tune`: settings in force, objectives, the trial, and the decisions."""

from datetime import UTC, datetime, timedelta

import msgspec

from syrinx_operator.commands.tune.view import View, changes, format_knob, lines
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import TtfaObjective
from syrinx_operator.resource.tuning_status import (
    Counts,
    PairedTest,
    Period,
    QuarantinedSetting,
    Recommendation,
    State,
    Stratum,
    Trial,
    TrialRecord,
    Workload,
)

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
INITIAL = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 4))
CHOSEN = INITIAL.with_value(Knob.TALKER_ROWS, 4)
OVERALL = Stratum(
    task_type="all",
    candidate=Counts(requests=200, good=190),
    baseline=Counts(requests=210, good=105),
    test=PairedTest(pairs=5, mean=0.45, mean_square=0.21),
)
TRIAL = Trial(
    id=3,
    knob=Knob.CODEC_ROWS,
    candidate=CHOSEN.with_value(Knob.CODEC_ROWS, 2),
    baseline=CHOSEN,
    design="Switchback",
    rationale="the queue is long",
    period_seconds=20,
    start_time=NOW - timedelta(minutes=4),
    period=Period(index=11, start_time=NOW, all_replicas=True),
    strata=(OVERALL,),
    discarded_periods=1,
)
RECORD = TrialRecord(
    id=2,
    time=NOW,
    start_time=NOW - timedelta(minutes=9),
    knob=Knob.TALKER_ROWS,
    before="1",
    after="4",
    verdict="Promoted",
    reason="good requests better",
)


def view(state, **fields):
    return View(name="demo", location="http://127.0.0.1:1", state=state, requested=INITIAL, **fields)


def text(state, **fields):
    return "\n".join(lines(view(state, **fields), NOW))


def test_starts_with_the_phase_and_the_time_of_the_evaluation():
    state = State(mode="Auto", phase="Watching", message="the objectives are met")
    assert lines(view(state, observed_at=NOW - timedelta(seconds=3)), NOW)[:2] == [
        "pipeline demo (http://127.0.0.1:1): tuning Auto, phase Watching; evaluated 3 s ago",
        "  the objectives are met",
    ]


def test_shows_the_chosen_knobs_and_the_requested_ones():
    shown = text(State(chosen=CHOSEN))
    assert "  talker.maxNumSeqs   4   (spec: 1)\n" in shown
    assert "  codec.chunkRamp     2,2,4\n" in shown
    assert "  codec.capturePairs  none\n" in shown
    assert format_knob((CaptureShape(rows=1, frames=2), CaptureShape(rows=4, frames=8))) == "1x2,4x8"


def test_shows_whether_the_objectives_are_met():
    objective = TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300)
    report = SloStatus(task_type="CustomVoice", requests=120, within=0.8123, ttfa_p95_ms=612, met="False")
    assert (
        "  CustomVoice  TTFA within 300 ms for 0.95 of the requests: missed; 120 recent requests, 81.2% within, "
        "p95 612 ms" in text(State(), objectives=(objective,), slo=(report,))
    )
    assert "of the requests: no recent requests" in text(State(), objectives=(objective,))
    assert "none; set spec.slo.ttfa" in text(State())


def test_shows_the_arms_of_a_trial():
    shown = text(State(phase="Trial", chosen=CHOSEN, trial=TRIAL))
    assert "trial 3: codec.maxNumSeqs 1 -> 2: the queue is long" in shown
    assert "Switchback, compares good requests; 5 pairs of periods, 1 periods discarded" in shown
    assert "now: all replicas run the candidate; waiting for confirmation" in shown
    assert "candidate 190 of 200 good (95%), baseline 105 of 210 good (50%)" in shown
    assert "good requests: +45.0 points (95 %: " in shown
    saving = msgspec.structs.replace(TRIAL, goal="EngineTime")
    assert "engine time per frame: 0.55 times the baseline (95 %: " in text(State(trial=saving))


def test_names_the_replicas_of_a_parallel_trial():
    period = Period(
        index=0, start_time=NOW, counting_since=NOW, candidate_replicas=("codec-1",), baseline_replicas=("codec-0",)
    )
    trial = msgspec.structs.replace(TRIAL, design="Parallel", period=period)
    assert "now: candidate on codec-1, compared with codec-0\n" in text(State(trial=trial))


def test_shows_the_reasons_of_decisions_recommendation_and_quarantine():
    state = State(
        chosen=CHOSEN,
        history=(RECORD,),
        recommendation=Recommendation(
            knob=Knob.CODEC_ROWS, setting=TRIAL.candidate, rationale="calls wait for each other"
        ),
        quarantine=(
            QuarantinedSetting(
                setting=CHOSEN.with_value(Knob.TALKER_ROWS, 16),
                workload=Workload(mix="CustomVoice:4", rate_bucket=2),
                reason="fewer good requests",
                failures=2,
                until=NOW + timedelta(hours=1),
            ),
        ),
    )
    shown = text(state)
    assert "trial 2: talker.maxNumSeqs 1 -> 4: Promoted: good requests better" in shown
    assert "recommendation: codec.maxNumSeqs 1 -> 2: calls wait for each other" in shown
    assert "  talker.maxNumSeqs 16, until " in shown and "(2 failures): fewer good requests" in shown


def test_lists_only_changes():
    quiet = view(State(phase="Watching", message="the objectives are met", chosen=INITIAL))
    assert changes(None, quiet) == ["Watching: the objectives are met"]
    assert changes(quiet, quiet) == []
    trying = view(State(phase="Trial", message="1 -> 2", chosen=INITIAL, trial=TRIAL))
    assert changes(quiet, trying) == [
        "Trial: 1 -> 2",
        "trial 3: codec.maxNumSeqs 1 -> 2: the queue is long",
    ]
    done = view(State(phase="Trial", message="1 -> 2", chosen=CHOSEN, trial=TRIAL, history=(RECORD,)))
    decided, knobs = changes(trying, done)
    assert decided.endswith("trial 2: talker.maxNumSeqs 1 -> 4: Promoted: good requests better")
    assert knobs == "settings in force: talker.maxNumSeqs 4"
