"""Which frames the codec decodes, and in which shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.codec.scheduler import RESERVE_SECONDS, Call, Row, cheapest, schedule, to_boundary
from syrinx_stages.contract.settings import CodecSettings

NOW = 100.0
SETTINGS = CodecSettings(max_num_seqs=4, chunk_ramp=(2, 2, 4, 8, 12))


def row(name: str, pending: int, emitted: int = 0, age: float = 0.1, **fields: object) -> Row:
    """A live row whose first audio left `age` seconds ago."""
    first = NOW - age if emitted else None
    return Row(id=name, accepted=NOW - age, live=True, pending=pending, emitted=emitted, first_audio=first, **fields)


def call(rows: list[Row], settings: CodecSettings = SETTINGS, overhead: int = 0) -> Call | None:
    return schedule(rows, NOW, settings, settings.capture_pairs, overhead).call


@pytest.mark.parametrize(
    ("emitted", "frames"), [(0, 2), (1, 1), (2, 2), (4, 4), (8, 8), (16, 12), (28, 12), (30, 10), (40, 12)]
)
def test_the_ramp_depends_on_the_position_alone(emitted: int, frames: int) -> None:
    assert to_boundary(SETTINGS.chunk_ramp, emitted) == frames


def test_a_stream_waits_for_its_whole_chunk() -> None:
    assert call([row("a", pending=1)]) is None
    assert call([row("a", pending=2)]) == Call(ids=("a",), frames=(2,), shape=(1, 2), result="eager")
    assert call([row("a", pending=3, emitted=4)]) is None


def test_an_ended_stream_is_flushed() -> None:
    assert call([row("a", pending=3, emitted=4, ended=True)]) == Call(("a",), (3,), (1, 3), "eager")


def test_a_stream_about_to_run_dry_gets_what_there_is() -> None:
    dry = row("a", pending=5, emitted=8, age=8 * 0.08 - RESERVE_SECONDS / 2)
    assert call([dry]) == Call(("a",), (5,), (1, 5), "eager")


def test_what_the_listener_is_not_sent_does_not_keep_playback_from_running_dry() -> None:
    rows = {"a": row("a", pending=5, emitted=8), "b": row("b", pending=5, emitted=8, withheld=0.075)}
    assert rows["b"].underrun_at() == pytest.approx(rows["a"].underrun_at() - 0.075)
    dry = row("a", pending=5, emitted=8, age=7 * 0.08 - RESERVE_SECONDS / 2)
    assert call([dry]) is None
    dry.withheld = 0.08
    assert call([dry]) == Call(("a",), (5,), (1, 5), "eager")


def test_but_not_while_others_have_whole_chunks() -> None:
    """Under overload every stream is about to run dry: many small calls would make all of them later still."""
    dry = row("dry", pending=5, emitted=8, age=2.0)
    assert call([dry, row("whole", pending=12, emitted=16, age=0.1)]) == Call(("whole",), (12,), (1, 12), "eager")


def test_otherwise_the_plan_says_when_it_would() -> None:
    plan = schedule([row("a", pending=5, emitted=8, age=0.1)], NOW, SETTINGS, (), 0)
    assert plan.call is None
    assert plan.wake == pytest.approx(NOW - 0.1 + 8 * 0.08 - RESERVE_SECONDS)


def test_the_most_urgent_stream_sets_the_frames_and_equals_join() -> None:
    rows = [row("late", pending=4, emitted=4, age=0.3), row("new", pending=2), row("also new", pending=6, age=0.05)]
    assert call(rows) == Call(("new", "also new"), (2, 2), (2, 2), "eager")


def test_rows_of_a_call_are_bounded() -> None:
    rows = [row(str(index), pending=2, age=1 - 0.1 * index) for index in range(9)]
    assert call(rows) == Call(("0", "1", "2", "3"), (2, 2, 2, 2), (4, 2), "eager")


def test_reference_frames_are_decoded_silently_in_large_chunks_first() -> None:
    assert call([row("a", pending=30, silent=25)]) == Call(("a",), (12,), (1, 12), "eager")
    assert call([row("a", pending=6, silent=1)]) == Call(("a",), (1,), (1, 1), "eager")


def test_whole_file_requests_take_the_largest_chunk() -> None:
    whole = row("a", pending=11)
    whole.live = False
    assert call([whole]) is None
    whole.pending = 12
    assert call([whole]) == Call(("a",), (12,), (1, 12), "eager")


def test_captured_shapes_are_hit_or_padded_to_or_missed() -> None:
    pairs = ((1, 2), (2, 4), (4, 2), (4, 4))
    settings = CodecSettings(max_num_seqs=4, capture_pairs=pairs)
    assert call([row("a", pending=2)], settings) == Call(("a",), (2,), (1, 2), "hit")
    two = [row("a", pending=2), row("b", pending=2)]
    assert call(two, settings) == Call(("a", "b"), (2, 2), (2, 4), "padded")
    assert call([row("a", pending=8, emitted=8)], settings) == Call(("a",), (8,), (1, 8), "eager")


# Where padding costs less than a call ---------------------------------------------------------------------------


def test_streams_with_fewer_frames_come_along_while_their_padding_costs_less_than_a_call() -> None:
    rows = [row("late", 4, emitted=4, age=0.4), row("tail", 1, emitted=4, ended=True), row("new", 9, emitted=8)]
    rows.append(row("other", 3, emitted=4, age=0.05, ended=True))
    assert call(rows, overhead=0) == Call(("late",), (4,), (1, 4), "eager")
    assert call(rows, overhead=2) == Call(("late",), (4,), (1, 4), "eager")
    assert call(rows, overhead=3) == Call(("late", "tail"), (4, 1), (2, 4), "eager")
    assert call(rows, overhead=4) == Call(("late", "tail", "other"), (4, 1, 3), (3, 4), "eager")


def test_streams_with_more_frames_never_make_an_urgent_call_longer() -> None:
    rows = [row("new", 2), row("playing", 12, emitted=16, age=0.1)]
    assert call(rows, overhead=100) == Call(("new",), (2,), (1, 2), "eager")


def test_rows_that_would_be_padding_are_given_to_others_for_nothing() -> None:
    settings = CodecSettings(max_num_seqs=8, capture_pairs=((1, 4), (4, 4), (8, 4)))
    rows = [row(f"{index}", 4, emitted=4, age=0.4) for index in range(3)]
    tails = [row(f"tail {index}", 1, emitted=4, age=0.1, ended=True) for index in range(2)]
    assert call(rows + tails, settings, overhead=1) == Call(("0", "1", "2", "tail 0"), (4, 4, 4, 1), (4, 4), "hit")
    many = call(rows + tails, settings, overhead=15)
    assert many == Call(("0", "1", "2", "tail 0", "tail 1"), (4, 4, 4, 1, 1), (8, 4), "padded")
    assert (many.wanted, many.padding) == ((5, 4), 18)


def test_nobody_comes_along_into_a_shape_that_is_not_captured() -> None:
    settings = CodecSettings(max_num_seqs=8, capture_pairs=((1, 4),))
    rows = [row("a", 4, emitted=4, age=0.4), row("tail", 3, emitted=4, ended=True)]
    assert call(rows, settings, overhead=100) == Call(("a",), (4,), (1, 4), "hit")


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), max_size=8), st.integers(1, 16), st.integers(1, 16))
def test_the_cheapest_captured_shape_holds_the_call_with_least_work(
    pairs: list[tuple[int, int]], rows: int, frames: int
) -> None:
    best = cheapest(pairs, rows, frames)
    fitting = [pair for pair in pairs if pair[0] >= rows and pair[1] >= frames]
    assert (best is None) == (not fitting)
    if best is not None:
        assert best in fitting
        assert best[0] * best[1] == min(pair[0] * pair[1] for pair in fitting)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.booleans()), max_size=12),
    st.lists(st.integers(1, 16), min_size=1, max_size=5),
    st.integers(0, 40),
)
def test_a_call_never_asks_for_more_than_is_pending(
    drawn: list[tuple[int, int, bool]], ramp: list[int], overhead: int
) -> None:
    rows = [row(str(i), pending, emitted, ended=ended) for i, (pending, emitted, ended) in enumerate(drawn)]
    chosen = call(rows, CodecSettings(max_num_seqs=4, chunk_ramp=tuple(ramp)), overhead)
    able = [item for item in rows if item.pending and (item.ended or item.pending >= max(ramp))]
    if chosen is None:
        assert not able
        return
    assert 1 <= len(chosen.ids) <= 4
    assert max(chosen.frames) <= max(ramp)
    assert all(rows[int(name)].pending >= frames for name, frames in zip(chosen.ids, chosen.frames, strict=True))
