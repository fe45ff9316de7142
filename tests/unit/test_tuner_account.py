"""The sentence in which the tuner says what is known, what was tried, what it brought, and what comes next."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.tuning_status import Guard, Recommendation, Soak, State, Trial, TrialRecord
from syrinx_operator.tuner.account import account

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
INITIAL = Setting(talker_max_num_seqs=4, codec_max_num_seqs=1, chunk_ramp=(2, 4))
OTHER = INITIAL.with_value(Knob.TALKER_ROWS, 8)
WATCHING = State(phase="Watching", message="12.0% of the requests are bad")
RECORD = TrialRecord(
    id=2,
    time=NOW,
    start_time=NOW,
    before="talker.maxNumSeqs 1",
    after="talker.maxNumSeqs 4",
    verdict="Promoted",
    reason="it is better",
    difference=0.214,
)
TRIAL = Trial(
    id=3,
    candidate=OTHER,
    baseline=INITIAL,
    why="",
    start_time=NOW,
    period_time=NOW,
    period_seconds=10.0,
    guard=Guard(expected_bad=0.1),
)
SOAK = Soak(id=3, before=INITIAL, start_time=NOW, rate=1.0, guard=Guard(expected_bad=0.1))


def test_the_whole_sentence():
    assert account(replace(WATCHING, history=(RECORD,), trial=TRIAL)) == (
        "12.0% of the requests are bad; "
        "change 2 (talker.maxNumSeqs 1 -> talker.maxNumSeqs 4) brought +21.4 points; "
        "trial 3 (talker.maxNumSeqs 4 -> 8) goes on until it is decided, at most until 13:00 UTC"
    )


@pytest.mark.parametrize(
    ("fields", "following"),
    [
        ({}, "the model looks for a better setting once more than 1% of the requests are bad"),
        ({"next_plan_time": NOW}, "the model looks for a better setting from 12:00 UTC on, if more than 1% are bad"),
        ({"recommendation": Recommendation(setting=OTHER, rationale="")}, "the recommended change waits for mode Auto"),
        ({"soak": SOAK}, "change 3 is in force, and is watched until 12:05 UTC"),
    ],
)
def test_what_comes_next(fields, following):
    sentence = f"12.0% of the requests are bad; nothing was tried yet; {following}"
    assert account(replace(WATCHING, **fields)) == sentence


def test_what_was_tried():
    worse = replace(RECORD, verdict="Regressed", reason="9 of 20 requests were not served well")
    _, tried, _ = account(replace(WATCHING, history=(RECORD, worse))).split("; ")
    assert tried.endswith("was rolled back: 9 of 20 requests were not served well")


def test_without_tuning_there_is_only_the_reason():
    assert account(State(phase="Paused", message="tuning is paused", history=(RECORD,))) == "tuning is paused"
