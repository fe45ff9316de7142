"""`syrinx tune` in words: what is in force, how listeners fare, what is tried, and why it was decided."""

from datetime import UTC, datetime, timedelta

import msgspec

from syrinx_operator.commands.tune.view import View, changes, lines, words
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape, TtfaObjective
from syrinx_operator.resource.status import SloStatus
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
CELL = Stratum(
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
    strata=(CELL,),
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
    reason="served better",
)


def view(state, **fields):
    return View(name="demo", location="http://127.0.0.1:1", state=state, requested=INITIAL, **fields)


def text(state, **fields):
    return "\n".join(lines(view(state, **fields), NOW))


def test_it_begins_with_what_is_done_and_when_it_was_looked_at():
    state = State(mode="Auto", phase="Watching", message="the objectives are met")
    assert lines(view(state, observed_at=NOW - timedelta(seconds=3)), NOW)[:2] == [
        "pipeline demo (http://127.0.0.1:1): tuning Auto, phase Watching; looked at 3 s ago",
        "  the objectives are met",
    ]


def test_knobs_are_as_chosen_beside_what_the_resource_asks_for():
    shown = text(State(chosen=CHOSEN))
    assert "  talker.maxNumSeqs   4   (the resource asks for 1)\n" in shown
    assert "  codec.chunkRamp     2,2,4\n" in shown
    assert "  codec.capturePairs  none\n" in shown
    assert words((CaptureShape(rows=1, frames=2), CaptureShape(rows=4, frames=8))) == "1x2,4x8"


def test_objectives_are_told_with_how_they_are_met():
    objective = TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300)
    report = SloStatus(task_type="CustomVoice", requests=120, within=0.8123, ttfa_p95_ms=612, met="False")
    assert (
        "  CustomVoice  0.95 of the requests heard within 300 ms: missed lately, 120 requests, 81.2% within, "
        "95th percentile 612 ms" in text(State(), objectives=(objective,), slo=(report,))
    )
    assert "heard within 300 ms: no request lately" in text(State(), objectives=(objective,))
    assert "none; spec.slo.ttfa gives some" in text(State())


def test_a_trial_is_told_with_its_arms():
    shown = text(State(phase="Trial", chosen=CHOSEN, trial=TRIAL))
    assert "trial 3: codec.maxNumSeqs 2 against 1: the queue is long" in shown
    assert "in turns on every replica; 5 pairs of periods compared, 1 periods of no use" in shown
    assert "now: every replica has the candidate; not counted yet" in shown
    assert "candidate 190 of 200 served well (95%), baseline 105 of 210 served well (50%)" in shown
    assert "difference in points: +45.0 (" in shown
    work = msgspec.structs.replace(TRIAL, goal="Work")
    assert "less work for a frame, in %: +45.0 (" in text(State(trial=work))


def test_replicas_of_a_parallel_trial_are_named():
    period = Period(
        index=0, start_time=NOW, counting_since=NOW, candidate_replicas=("codec-1",), baseline_replicas=("codec-0",)
    )
    trial = msgspec.structs.replace(TRIAL, design="Parallel", period=period)
    assert "now: the candidate on codec-1, compared with codec-0\n" in text(State(trial=trial))


def test_decisions_recommendation_and_quarantine_come_with_their_reasons():
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
                reason="served worse",
                failures=2,
                until=NOW + timedelta(hours=1),
            ),
        ),
    )
    shown = text(state)
    assert "trial 2: talker.maxNumSeqs 1 -> 4: Promoted: served better" in shown
    assert "recommendation: codec.maxNumSeqs 1 -> 2: calls wait for each other" in shown
    assert "  talker.maxNumSeqs 16, until " in shown and "(failed 2 times): served worse" in shown


def test_without_a_terminal_only_what_is_new_is_told():
    quiet = view(State(phase="Watching", message="the objectives are met", chosen=INITIAL))
    assert changes(None, quiet) == ["Watching: the objectives are met"]
    assert changes(quiet, quiet) == []
    trying = view(State(phase="Trial", message="2 against 1", chosen=INITIAL, trial=TRIAL))
    assert changes(quiet, trying) == [
        "Trial: 2 against 1",
        "trial 3: codec.maxNumSeqs 2 against 1: the queue is long",
    ]
    done = view(State(phase="Trial", message="2 against 1", chosen=CHOSEN, trial=TRIAL, history=(RECORD,)))
    decided, knobs = changes(trying, done)
    assert decided.endswith("trial 2: talker.maxNumSeqs 1 -> 4: Promoted: served better")
    assert knobs == "knobs now: talker.maxNumSeqs 4"
