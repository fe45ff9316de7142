"""The talker's scheduler orders rows by deadline: the stream that underruns first goes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.scheduling.admission import LATE_MARGIN_SECONDS, late_margin
from syrinx_stages.scheduling.speed import HEADROOM
from syrinx_stages.scheduling.talker import AHEAD_SECONDS, LISTENER_TIMEOUT, TEXT_TIMEOUT, Row, schedule

NOW = 100.0


def row(name: str, produced: int = 0, age: float = 1.0, **fields: object) -> Row:
    """Returns a row whose first frame was generated `age` seconds ago."""
    times = {"accepted_at": NOW - age, "first_frame_at": NOW - age if produced else None, "last_feedback_at": NOW - age}
    return Row(**{"id": name, "live": True, "produced": produced, **times, **fields})


def ids(rows: list[Row], max_num_seqs: int = 8, lead_limit: float = 8.0) -> tuple[str, ...]:
    return tuple(schedule(rows, NOW, max_num_seqs, lead_limit).ids)


def late(rows: list[Row], margin: float) -> list[str]:
    return schedule(rows, NOW, 8, 8.0, margin=margin).late


def test_streams_are_ordered_by_underrun_time_and_a_new_one_is_already_late() -> None:
    rows = [row("far ahead", produced=50), row("new"), row("close", produced=13), row("middle", produced=20)]
    assert ids(rows) == ("new", "close", "middle", "far ahead")
    assert ids(rows, max_num_seqs=1) == ("new",)


def test_streams_that_are_ahead_wait_for_steps_of_others() -> None:
    """They have 16 frames to deliver, and 2 s until they underrun."""
    ahead = [row(name, produced=25, age=0.0, delivered=9) for name in "ab"]
    found = schedule(ahead, NOW, 8, 8.0, ahead_frames=16)
    assert (found.ids, found.wake_at) == ([], NOW + 25 * FAMILY.frame_seconds - AHEAD_SECONDS)
    assert schedule([*ahead, row("new")], NOW, 8, 8.0, ahead_frames=16).ids == ["new", "a", "b"]
    assert schedule(ahead[:1], NOW, 8, 8.0, ahead_frames=16).ids == ["a"], "there is no other"


def test_a_stream_needs_frames_if_few_are_to_be_delivered_or_it_underruns_soon_or_is_not_live() -> None:
    def is_due(stream: Row) -> bool:
        return bool(schedule([stream, row("ahead", produced=25, age=0.0)], NOW, 8, 8.0, ahead_frames=16).ids)

    assert not is_due(row("ahead, too", produced=25, age=0.0, delivered=9))
    assert is_due(row("delivered", produced=25, age=0.0, delivered=10))
    assert is_due(row("slow codec", produced=25, age=0.6))
    assert is_due(row("file", produced=25, age=0.0, live=False))


def test_a_stream_at_the_lead_limit_waits_until_its_client_takes_more() -> None:
    ahead = row("ahead", produced=150, delivered=50, first_delivered_at=NOW - 3.0)
    found = schedule([ahead], NOW, 8, 8.0)
    assert (found.ids, found.wake_at) == ([], pytest.approx(ahead.last_feedback_at + LISTENER_TIMEOUT, abs=0.01))
    ahead.delivered = 51
    assert ids([ahead]) == ("ahead",)


def test_a_client_that_takes_all_at_once_gets_the_steps_that_no_other_row_needs() -> None:
    saved = row("saved", produced=500, delivered=490, first_delivered_at=NOW - 1.0)
    assert ids([saved]) == ("saved",)
    assert ids([saved, row("played", produced=20, delivered=20, first_delivered_at=NOW - 1.0)]) == ("played",)
    saved.delivered = 400
    assert ids([saved]) == (), "it takes its audio more slowly"


def test_on_a_shared_processor_a_step_of_a_saved_stream_takes_the_others_along() -> None:
    saved = row("saved", produced=500, delivered=490, first_delivered_at=NOW - 1.0)
    played = [row(name, produced=80, delivered=60, first_delivered_at=NOW - 1.0) for name in "ab"]
    assert schedule(played, NOW, 8, 8.0, 16.0).ids == []
    assert schedule([saved, *played], NOW, 8, 8.0, 16.0).ids == ["a", "b", "saved"]


def test_a_client_that_does_not_read_blocks_its_stream_until_it_is_abandoned() -> None:
    stuck = row("stuck", produced=125, delivered=10, first_delivered_at=NOW - 9.0, age=9.0)
    found = schedule([stuck], NOW, 8, 8.0)
    assert (found.ids, found.demands) == ([], [])
    assert found.wake_at == pytest.approx(NOW - 9.0 + LISTENER_TIMEOUT, abs=0.01)
    assert schedule([stuck], found.wake_at, 8, 8.0).abandoned == ["stuck"]


def test_frames_that_are_withheld_are_no_lead() -> None:
    """Nobody can listen to them before the steps that complete their segment: a row that waited would wait forever."""
    stuck = row("stuck", produced=120, delivered=120, first_delivered_at=NOW - 2.0, age=2.0, withheld=60)
    assert schedule([stuck], NOW, 8, 8.0).ids == ["stuck"]
    stuck.produced, stuck.withheld = 220, 0
    assert schedule([stuck], NOW, 8, 8.0).ids == []


def test_a_segment_that_is_checked_must_be_complete_when_playback_needs_it() -> None:
    rows = [row("spoken at once", produced=30), row("checked", produced=60, expected=50, withheld=10)]
    assert ids(rows) == ("checked", "spoken at once")
    rows[1].withheld = 25
    assert ids(rows) == ("spoken at once", "checked")
    assert late([row("nearly complete", produced=13, expected=50, withheld=49)], margin=0.05) == ["nearly complete"]


def test_a_row_whose_next_segment_is_prefilled_keeps_its_place_without_steps() -> None:
    found = schedule([row("opening", produced=10, is_opening=True)], NOW, 8, 8.0)
    assert (found.ids, found.late, found.demands) == ([], [], [1.0])


def test_live_streams_go_before_files_but_no_file_starves() -> None:
    files = [row("new file", age=0.1, live=False), row("old file", produced=13, age=3.0, live=False)]
    rows = [row("new"), row("underrunning", produced=13, age=1.0), row("ahead", produced=60, age=1.0)]
    assert ids(files + rows) == ("new", "old file", "underrunning", "new file", "ahead")


def test_a_stream_at_the_lead_limit_is_abandoned_when_its_listener_stays_inactive() -> None:
    rows = [row("silent", 125, age=61.0), row("fresh", 125, age=59.0), row("behind", 2, age=61.0)]
    assert schedule(rows, NOW, 8, 8.0).abandoned == ["silent"]


def test_a_live_stream_close_to_underrun_is_late() -> None:
    assert not late([row("ahead", produced=16, age=1.0), row("new")], 0.25)
    assert late([row("ahead", produced=16, age=1.0), row("close", produced=15, age=1.0)], 0.25) == ["close"]
    assert not late([row("file", produced=1, age=9.0, live=False)], 0.25), "files have no playback to interrupt"


def test_short_steps_allow_a_smaller_margin() -> None:
    """Otherwise every stream would count as late at its first frames, and block admission."""
    new = row("new", produced=1, age=0.002)
    assert late([new], late_margin(0.020))
    assert not late([new], late_margin(0.004))
    assert late_margin(0.020) == late_margin(1.0) == LATE_MARGIN_SECONDS


def test_frames_in_flight_count_as_generated() -> None:
    """Otherwise a stream would get an extra frame each time a step is launched ahead, and others would wait."""
    flying = row("flying", produced=13, in_flight=2)
    assert ids([flying, row("same", produced=14)]) == ("same", "flying")
    ahead = row("ahead", produced=11, in_flight=2)
    assert not schedule([ahead], NOW, 8, 1.0).ids


def test_new_streams_without_a_step_in_flight_go_first() -> None:
    assert ids([row("first", age=0.2, in_flight=1), row("second", age=0.1)], max_num_seqs=1) == ("second",)


DRAWN = st.tuples(st.integers(0, 400), st.floats(0.01, 60), st.integers(0, 400), st.floats(0, 60))


@given(st.lists(DRAWN, max_size=20), st.integers(1, 8), st.floats(0.5, 20))
def test_a_step_is_bounded_without_duplicates_and_uses_all_eligible_rows(
    drawn: list[tuple[int, float, int, float]], max_num_seqs: int, lead_limit: float
) -> None:
    rows = []
    for produced, age, delivered, elapsed in drawn:
        fields = {"delivered": min(delivered, produced), "first_delivered_at": NOW - elapsed}
        rows.append(row(str(len(rows)), produced, age, **fields if fields["delivered"] else {}))
    found = schedule(rows, NOW, max_num_seqs, lead_limit)
    chosen = found.ids
    eligible = [item.id for item in rows if _lead(item) < lead_limit] or [
        item.id for item in rows if (item.frames - item.delivered) * FAMILY.frame_seconds < lead_limit
    ]
    assert len(chosen) == len(set(chosen)) == min(max_num_seqs, len(eligible))
    assert set(chosen) <= set(eligible)
    assert found.wake_at > NOW


def _lead(item: Row) -> float:
    """Returns the seconds of audio generated beyond what has been played."""
    played = 0.0
    if item.first_delivered_at is not None:
        played = min(item.delivered * FAMILY.frame_seconds, NOW - item.first_delivered_at)
    return item.frames * FAMILY.frame_seconds - played


def test_steady_rows_share_the_steps_fairly() -> None:
    """With twice as many streams as rows, all streams progress equally."""
    rows = [row(str(index), age=0.001 * index) for index in range(8)]
    now = NOW
    for _ in range(200):
        for name in schedule(rows, now, 4, 100.0).ids:
            chosen = rows[int(name)]
            chosen.produced += 1
            chosen.first_frame_at = chosen.first_frame_at or now
        now += FAMILY.frame_seconds / 2
    assert max(item.produced for item in rows) - min(item.produced for item in rows) <= 2


def test_demand_follows_the_lead_over_playback() -> None:
    """A new stream and one with a short lead need more than real time, a paused listener nothing."""
    file = row("file", produced=5, live=False)
    ahead = row("ahead", produced=50, age=1.0, delivered=13, first_delivered_at=NOW - 1.0)
    at_limit = row("at its limit", produced=125, delivered=120, first_delivered_at=NOW - 1.0)
    paused = row("paused", produced=125, delivered=10, first_delivered_at=NOW - 9.0, age=9.0)
    found = schedule([row("new"), row("short lead", produced=20), ahead, file, at_limit, paused], NOW, 8, 8.0)
    assert found.demands == [HEADROOM, HEADROOM, 1.0, 1.0, 1.0]


def test_a_stream_that_waits_for_text_is_neither_due_nor_late_and_keeps_its_place() -> None:
    held = row("held", produced=5, age=3.0, text_frames=5, last_text_at=NOW - 1)
    found = schedule([held, row("other", produced=20)], NOW, 8, 8.0, margin=0.25)
    assert (found.ids, found.late) == (["other"], [])
    assert found.demands[0] == 1.0
    assert found.wake_at == pytest.approx(NOW - 1 + TEXT_TIMEOUT, abs=0.01)
    assert schedule([row("new", text_frames=0)], NOW, 8, 8.0).ids == []
    assert ids([row("in flight", produced=4, in_flight=1, text_frames=5)]) == ()
    assert ids([row("allowed", produced=4, text_frames=5)]) == ("allowed",)
    forgotten = row("without text for a minute", produced=5, text_frames=5, last_text_at=NOW - TEXT_TIMEOUT - 1)
    assert schedule([forgotten], NOW, 8, 8.0).abandoned == [forgotten.id]


def test_playback_that_ran_out_of_text_goes_on_when_text_arrives() -> None:
    held = row("held", produced=5, age=3.0, text_frames=5)
    held.add_text(9, NOW)
    assert held.underrun_at() == pytest.approx(NOW)
    assert late([held], margin=0.25) == ["held"]
    playing = row("playing", produced=5, age=0.1, text_frames=9)
    before = playing.underrun_at()
    playing.add_text(12, NOW)
    assert playing.underrun_at() == before, "it did not run out"
