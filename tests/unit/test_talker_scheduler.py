"""Which rows the talker steps: the stream that would run dry first goes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.talker.scheduler import MARGIN_SECONDS, Row, abandoned, late, margin, schedule

NOW = 100.0


def row(name: str, produced: int = 0, age: float = 1.0, **fields: object) -> Row:
    """A row whose first frame was made `age` seconds ago."""
    first = NOW - age if produced else None
    return Row(id=name, accepted=NOW - age, live=True, produced=produced, first_frame=first, heard=NOW - age, **fields)


def ids(rows: list[Row], max_num_seqs: int = 8, lead_limit: float = 8.0) -> tuple[str, ...]:
    return schedule(rows, NOW, max_num_seqs, lead_limit).ids


def test_a_new_stream_is_already_late_and_goes_first() -> None:
    assert ids([row("playing", produced=20), row("new")], max_num_seqs=1) == ("new",)


def test_among_playing_streams_the_one_that_runs_dry_first_goes_first() -> None:
    rows = [row("rich", produced=50), row("poor", produced=13), row("middle", produced=20)]
    assert ids(rows) == ("poor", "middle", "rich")


def test_among_new_streams_the_oldest_goes_first() -> None:
    assert ids([row("second", age=0.1), row("first", age=0.2)], max_num_seqs=1) == ("first",)


def test_a_stream_too_far_ahead_of_its_listener_yields_and_says_when_to_look_again() -> None:
    ahead = row("ahead", produced=125, delivered=120, first_delivered=NOW - 1.0)
    step = schedule([ahead], NOW, 8, lead_limit=8.0)
    assert step.ids == ()
    assert step.wake == pytest.approx(NOW + 1.0)
    assert schedule([ahead], step.wake + 0.001, 8, lead_limit=8.0).ids == ("ahead",)


def test_a_client_that_takes_nothing_holds_its_stream_back_without_a_timer() -> None:
    stuck = row("stuck", produced=125, delivered=10, first_delivered=NOW - 9.0, age=9.0)
    assert schedule([stuck], NOW, 8, lead_limit=8.0) == schedule([], NOW, 8, lead_limit=8.0)


def test_whole_file_requests_have_no_lead_limit() -> None:
    whole = row("whole", produced=500)
    whole.live = False
    assert ids([whole]) == ("whole",)


def test_listeners_go_before_whole_files_but_no_file_starves() -> None:
    new_file, old_file = row("new file", age=0.1), row("old file", produced=13, age=3.0)
    new_file.live = old_file.live = False
    rows = [new_file, old_file, row("new"), row("dry", produced=13, age=1.0), row("ahead", produced=60, age=1.0)]
    assert ids(rows) == ("new", "old file", "dry", "new file", "ahead")


def test_a_held_back_stream_is_abandoned_when_its_listener_stays_silent() -> None:
    rows = [
        row("silent", produced=125, age=61.0),
        row("fresh", produced=125, age=59.0),
        row("behind", produced=2, age=61.0),
    ]
    assert abandoned(rows, NOW, lead_limit=8.0, patience=60.0) == ["silent"]


def test_a_live_stream_that_is_about_to_run_dry_is_late() -> None:
    assert not late([row("ahead", produced=16, age=1.0), row("new")], NOW, 8.0, 0.25)
    assert late([row("ahead", produced=16, age=1.0), row("dry", produced=15, age=1.0)], NOW, 8.0, 0.25)
    whole = row("whole", produced=1, age=9.0)
    whole.live = False
    assert not late([whole], NOW, 8.0, 0.25), "nobody waits for a file's next second"


def test_a_stream_whose_listener_takes_nothing_is_not_late() -> None:
    """It waits for him, not for the talker: others are welcome."""
    assert not late([row("stuck", produced=125, delivered=25, first_delivered=NOW - 12.0, age=12.0)], NOW, 8.0, 0.25)


def test_with_quick_steps_a_stream_may_be_closer_to_running_dry() -> None:
    """Else every stream would be late with its first frames, and nothing new be claimed meanwhile."""
    new = row("new", produced=1, age=0.002)
    assert late([new], NOW, 8.0, margin(0.020))
    assert not late([new], NOW, 8.0, margin(0.004))
    assert margin(0.020) == margin(1.0) == MARGIN_SECONDS


def test_frames_being_made_count_as_made() -> None:
    """Else a stream would get one frame too many, and the others wait, each time a step is launched ahead."""
    flying = row("flying", produced=13, in_flight=2)
    assert ids([flying, row("same", produced=14)]) == ("same", "flying")
    ahead = row("ahead", produced=11, in_flight=2)
    assert schedule([ahead], NOW, 8, lead_limit=1.0).ids == ()


def test_among_new_streams_those_whose_first_frame_is_not_being_made_go_first() -> None:
    assert ids([row("first", age=0.2, in_flight=1), row("second", age=0.1)], max_num_seqs=1) == ("second",)


rows_strategy = st.lists(
    st.builds(
        lambda produced, age, delivered, heard: (produced, age, min(delivered, produced), heard),
        st.integers(0, 400),
        st.floats(0.01, 60),
        st.integers(0, 400),
        st.floats(0, 60),
    ),
    max_size=20,
)


@given(rows_strategy, st.integers(1, 8), st.floats(0.5, 20))
def test_every_step_is_bounded_holds_no_duplicates_and_never_idles_without_cause(
    drawn: list[tuple[int, float, int, float]], max_num_seqs: int, lead_limit: float
) -> None:
    rows = [
        row(str(index), produced, age, delivered=delivered, first_delivered=NOW - heard if delivered else None)
        for index, (produced, age, delivered, heard) in enumerate(drawn)
    ]
    step = schedule(rows, NOW, max_num_seqs, lead_limit)
    able = [item.id for item in rows if item.lead(NOW) < lead_limit]
    assert len(step.ids) == len(set(step.ids)) == min(max_num_seqs, len(able))
    assert set(step.ids) <= set(able)
    assert step.wake is None or step.wake > NOW


def test_steady_rows_share_the_steps_fairly() -> None:
    """Twice as many streams as rows: after a while all are equally far."""
    rows = [row(str(index), age=0.001 * index) for index in range(8)]
    now = NOW
    for _ in range(200):
        for name in schedule(rows, now, 4, 100.0).ids:
            chosen = rows[int(name)]
            chosen.produced += 1
            chosen.first_frame = chosen.first_frame or now
        now += FAMILY.frame_seconds / 2
    assert max(item.produced for item in rows) - min(item.produced for item in rows) <= 2
