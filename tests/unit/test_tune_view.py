"""The text of `syrinx tune`: settings in force, objectives, what is in progress, what is known, and the decisions."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from support.tuning import scaled
from syrinx_operator.commands.tune.view import View, changes, lines
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import TtfaObjective
from syrinx_operator.resource.tuning_status import (
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
MEASURED = Measured(
    steps=(StepPoint(1, 100, 0.5), StepPoint(2, 100, 0.6)),
    calls=(CallPoint(1, 2, False, 10, 0.04), CallPoint(2, 4, False, 10, 0.1)),
    prefills=10,
    prefill_seconds=0.12,
)


def view(state, **fields):
    return View(name="demo", location="http://127.0.0.1:1", state=state, requested=INITIAL, **fields)


def text(state, **fields):
    return "\n".join(lines(view(state, **fields), NOW))


def test_starts_with_the_phase_and_the_time_of_the_evaluation():
    state = State(mode="Auto", phase="Watching", message="99.8% of the requests are served well")
    assert lines(view(state, observed_at=NOW - timedelta(seconds=3)), NOW)[:2] == [
        "pipeline demo (http://127.0.0.1:1): tuning Auto, phase Watching; evaluated 3 s ago",
        "  99.8% of the requests are served well",
    ]


def test_shows_the_chosen_knobs_and_the_requested_ones():
    shown = text(State(chosen=CHOSEN))
    assert "  talker.maxNumSeqs   4   (spec: 1)\n" in shown
    assert "  codec.chunkRamp     [2, 2, 4]\n" in shown
    assert "  codec.capturePairs  []\n" in shown


def test_shows_whether_the_objectives_are_met():
    objective = TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300)
    report = SloStatus(task_type="CustomVoice", requests=120, within=0.8123, ttfa_p95_ms=612, met="False")
    assert (
        "  CustomVoice  TTFA within 300 ms for 0.95 of the requests: missed; 120 recent requests, 81.2% within, "
        "p95 612 ms" in text(State(), objectives=(objective,), slo=(report,))
    )
    assert "of the requests: no recent requests" in text(State(), objectives=(objective,))
    assert "none; set spec.slo.ttfa" in text(State())


def test_shows_what_a_trial_has_shown_so_far():
    shown = text(State(phase="Trial", chosen=CHOSEN, trial=TRIAL))
    assert "trial 3: codec.maxNumSeqs 1 -> 2, codec.chunkRamp [2, 2, 4] -> [1, 2]: 20.0% of the requests are" in shown
    assert "(4 min): 5 pairs of periods of 20 s, 1 discarded; now the " in shown
    assert "candidate 95.0% of 200 served well, baseline 50.0% of 210 served well; mean difference +45.0 p" in shown
    assert "evidence: better 50%, worse 0%, harm 0%; 100% ends the trial" in shown


def test_shows_the_watch_over_a_change():
    guard = Guard(expected_bad=0.02, seen=Served(requests=50, bad=5), bet=Bet(log_wealth=CERTAIN / 4))
    soak = Soak(id=3, before=INITIAL, start_time=NOW - timedelta(seconds=100), rate=2.0, guard=guard)
    shown = text(State(phase="Soaking", chosen=CHOSEN, soak=soak))
    assert "change 3 is in force since " in shown and "(100 s) and watched\n" in shown
    assert "90.0% of 50 served well, expected 98.0%; evidence of harm 25%; 100% takes it back" in shown


def test_shows_the_forecast_beside_what_was_observed():
    forecast = Forecast(time=NOW, rate=3.21, observed=0.8, current=0.82, best=0.97, setting=TRIAL.candidate)
    shown = text(State(chosen=CHOSEN, forecast=forecast))
    assert "for 3.21 requests/s\n  served well: 80.0% observed, 82.0% according to the model\n" in shown
    assert "  best: 97.0% with codec.maxNumSeqs 1 -> 2, codec.chunkRamp [2, 2, 4] -> [1, 2]" in shown
    assert "with the setting in force" in text(State(forecast=replace(forecast, setting=INITIAL)))


def test_shows_the_engine_times_by_rows():
    shown = text(State(chosen=CHOSEN, measured=MEASURED)).splitlines()
    first = shown.index("engine times in ms; steps of more than 2 rows are extrapolated")
    table = {line[:24].strip(): line[24:].split() for line in shown[first + 1 :]}
    assert table["rows"] == ["1", "2", "4"]
    assert table["talker step"][:2] == ["5", "6"] and float(table["talker step"][2]) > 6
    assert table["codec call, 2 frames"][0] == "4"
    assert float(table["codec call, 4 frames"][1]) > float(table["codec call, 2 frames"][1])
    assert table["prefill"] == ["12"]
    assert "engine times" not in text(State(measured=Measured()))


def test_shows_the_reasons_of_decisions_recommendation_and_what_is_not_tried():
    tried = Tried(
        setting=CHOSEN.with_value(Knob.TALKER_ROWS, 16),
        baseline=CHOSEN,
        difference=-0.031,
        rate=4.1,
        until=NOW + timedelta(hours=1),
    )
    over = replace(tried, setting=CHOSEN.with_value(Knob.TALKER_ROWS, 32), until=NOW - timedelta(hours=1))
    state = State(
        chosen=CHOSEN,
        history=(RECORD, replace(RECORD, id=3, verdict="Regressed", difference=None, forecast=None, reason="worse")),
        recommendation=Recommendation(setting=TRIAL.candidate, rationale="calls wait for each other"),
        tried=(tried, over),
    )
    shown = text(state)
    assert (
        "change 2: talker.maxNumSeqs 1 -> talker.maxNumSeqs 4: Promoted: +21.0 points of requests served well "
        "(forecast +25.0 points, measured +21.0 points)\n" in shown
    )
    assert "change 3: talker.maxNumSeqs 1 -> talker.maxNumSeqs 4: Regressed: worse\n" in shown
    assert "recommendation: codec.maxNumSeqs 1 -> 2, codec.chunkRamp [2, 2, 4] -> [1, 2]: calls wait for" in shown
    assert "  talker.maxNumSeqs 4 -> 16, until " in shown and ": -3.1 points at 4.1 requests/s" in shown
    assert "4 -> 32" not in shown


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


def test_shows_the_replicas_and_what_they_can_serve():
    memory = replace(scaled(NOW, talkers=3, codecs=2), why="talker: 2 -> 3 replicas: 5 requests/s are expected")
    shown = text(State(replicas=memory))
    assert "replicas: talker 3, codec 2; talker: 2 -> 3 replicas" in shown
    assert "talker: 3 serve 6 requests/s, 3 are needed; used are 100% of the predicted capacity" in shown
    assert "replicas" not in text(State())
