"""Tests of the choice of the codec's next decoder call."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.scheduling.codec import (
    PREFILL_FRAMES,
    UNDERRUN_MARGIN_SECONDS,
    Call,
    Schedule,
    cheapest_shape,
    schedule,
)
from syrinx_stages.scheduling.codec_rows import STALLED_SECONDS, Row, Rows, frames_to_chunk_end
from syrinx_stages.scheduling.speed import HEADROOM

NOW = 100.0
RAMP = (2, 2, 4, 8, 12)
SETTINGS = CodecSettings(max_num_seqs=4, chunk_ramp=RAMP)


def row(name: str, pending: int, decoded: int = 0, age: float = 0.1, **fields: object) -> Row:
    """Returns a live row whose first audio was published `age` seconds ago."""
    first = NOW - age if decoded else None
    fields = {"live": True, "first_codes_at": NOW, "codes_at": NOW, **fields}
    return Row(id=name, accepted_at=NOW - age, pending=pending, decoded=decoded, first_audio_at=first, **fields)


def call(rows: list[Row], settings: CodecSettings = SETTINGS, overhead: int = 0) -> Call | None:
    return schedule(Rows(rows), NOW, settings, settings.capture_pairs, overhead).call


WHOLE_CHUNKS = [(0, 2), (1, 1), (2, 2), (4, 4), (8, 8), (12, 4), (16, 12), (22, 6), (28, 12), (40, 12)]
WITH_THE_NEXT = [(5, 3), (7, 1 + 4), (14, 2 + 6), (26, 2 + 6), (39, 1 + 6)]
"""The rest of a partial chunk is not decoded alone."""


@pytest.mark.parametrize(("position", "frames"), WHOLE_CHUNKS + WITH_THE_NEXT)
def test_chunk_end_depends_on_the_position_only(position: int, frames: int) -> None:
    assert frames_to_chunk_end(RAMP, position) == frames


@pytest.mark.parametrize(
    ("ready", "frames"),
    [
        (row("of a new stream without a chunk", pending=1), None),
        (row("of a new stream with a chunk", pending=2), 2),
        (row("with a part of a chunk", pending=3, decoded=4), None),
        (row("whose segment ended", pending=3, decoded=4, segment_ended=True), 3),
        (row("with less than a chunk in all", pending=1, segment_ended=True), 1),
        (row("about to underrun", pending=5, decoded=8, age=8 * 0.08 - UNDERRUN_MARGIN_SECONDS / 2), 5),
        (row("about to underrun with less than half a chunk", pending=3, decoded=8, age=2.0), 3),
        (row("of a talker that is quick enough", pending=3, first_codes_at=NOW - 2 * 0.08), 2),
        (row("of a talker that is too slow", pending=3, first_codes_at=NOW - 2 * 0.10), None),
        (row("whose context is decoded in the largest chunk", pending=30, context=25), 12),
        (row("whose context is decoded first", pending=6, context=1), 1),
        (row("of a file without the largest chunk", pending=11, live=False), None),
        (row("of a file with the largest chunk", pending=12, live=False), 12),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
def test_a_row_alone_waits_for_a_complete_chunk_unless_it_needs_less(ready: Row, frames: int | None) -> None:
    assert call([ready]) == (frames and Call((ready.id,), (frames,), (1, frames), "eager"))


def test_the_first_audio_waits_until_it_lasts_to_the_second_chunk() -> None:
    """The talker needs 20 ms a frame, and the codec 5 ms: the second chunk takes 40 ms, and the margin is 100 ms."""

    def started(pending: int, *others: Row) -> tuple[int, ...] | None:
        new = row("new", pending=pending, first_codes_at=NOW - 0.02 * (pending - 1), codes_at=NOW)
        chosen = schedule(Rows([new, *others]), NOW, SETTINGS, (), 0, seconds_per_frame=0.005).call
        return chosen and chosen.frames

    assert started(2) == (2,)
    far_ahead = row("far ahead", pending=2, decoded=40, age=0.5)
    assert started(2, far_ahead) is None, "a chunk of 12 frames may be in progress"
    assert started(3, far_ahead) == (2,)
    assert started(5, far_ahead) == (4,)
    soon = [row(f"soon {index}", pending=0, decoded=4, age=0.1) for index in range(4)]
    assert started(3, *soon) is None, "four chunks of 4 frames come first, and one may be in progress"
    assert started(6, *soon) == (4,), "two chunks, so that the next one is not late"


def test_a_row_whose_codes_stall_before_the_first_audio_decodes_a_partial_chunk() -> None:
    """A talker at a lead limit below the first chunk generates no more codes until the stream plays."""
    settings = CodecSettings(chunk_ramp=(8,))
    stalled = row("a", pending=3, codes_at=NOW - STALLED_SECONDS / 2)
    assert schedule(Rows([stalled]), NOW, settings, (), 0) == Schedule(None, NOW + STALLED_SECONDS / 2)
    stalled.codes_at = NOW - STALLED_SECONDS
    others = row("whole", pending=8, decoded=8, age=2.0)
    assert call([stalled, others], settings) == Call(("a",), (3,), (1, 3), "eager")


def test_the_first_audio_does_not_wait_for_frames_whose_text_is_not_written() -> None:
    """Nor for so many that slow text would last."""
    writing = row("writing", pending=1, waits_for_text=True)
    assert call([writing]) == Call(("writing",), (1,), (1, 1), "eager")
    slow = row("slow", pending=3, first_codes_at=NOW - 0.3, codes_at=NOW, waits_for_text=True)
    assert call([slow], CodecSettings(chunk_ramp=(2,))) == Call(("slow",), (2,), (1, 2), "eager")


def test_a_partial_chunk_is_decoded_early_enough_on_a_slow_engine() -> None:
    """Five frames take 0.1 s, with a margin 0.15 s."""
    early = row("a", pending=5, decoded=8, age=8 * 0.08 - UNDERRUN_MARGIN_SECONDS - 0.14)
    slow, fast = (schedule(Rows([early]), NOW, SETTINGS, (), 0, seconds_per_frame=each) for each in (0.02, 0.01))
    assert slow.call == Call(("a",), (5,), (1, 5), "eager")
    assert (fast.call, fast.wake_at) == (None, pytest.approx(NOW + 0.14 - 0.075))


def test_withheld_silence_makes_the_underrun_earlier() -> None:
    dry = row("a", pending=5, decoded=8, age=7 * 0.08 - UNDERRUN_MARGIN_SECONDS / 2)
    assert call([dry]) is None
    dry.withheld_seconds = 0.08
    assert call([dry]) == Call(("a",), (5,), (1, 5), "eager")


def test_the_most_urgent_row_sets_the_frames_and_rows_with_as_many_join() -> None:
    rows = [row("late", pending=4, decoded=4, age=0.3), row("new", pending=2), row("also new", pending=6, age=0.05)]
    assert call(rows) == Call(("new", "also new"), (2, 2), (2, 2), "eager")
    many = [row(str(index), pending=2, age=1 - 0.1 * index) for index in range(9)]
    assert call(many) == Call(("0", "1", "2", "3"), (2, 2, 2, 2), (4, 2), "eager"), "at most max_num_seqs"


def test_no_small_partial_chunk_while_other_rows_have_complete_chunks() -> None:
    """Under overload every row is about to underrun, and many small calls would delay all of them further."""
    dry = row("dry", pending=3, decoded=8, age=2.0)
    whole = row("whole", pending=12, decoded=16, age=0.1)
    assert call([dry, whole]) == Call(("whole",), (12,), (1, 12), "eager")
    dry.pending = 4
    assert call([dry, whole]) == Call(("dry",), (4,), (1, 4), "eager"), "half a chunk is large enough"


def test_a_call_takes_all_complete_chunks_for_which_there_is_time() -> None:
    def frames(pending: int, *others: Row, settings: CodecSettings = SETTINGS) -> int:
        ahead = row("ahead", pending=pending, decoded=4, age=-10.0)
        pairs = settings.capture_pairs
        chosen = schedule(Rows([ahead, *others]), NOW, settings, pairs, 0, seconds_per_frame=0.01).call
        assert chosen is not None and chosen.ids[0] == "ahead"
        return chosen.frames[0]

    assert [frames(pending) for pending in (4, 11, 12, 30)] == [4, 4, 12, 12], "at most the longest chunk"
    soon = row("soon", pending=0, decoded=10, age=10 * 0.08 - 0.2)
    assert frames(12, soon) == 4, "another stream underruns in 0.2 s, and needs a call of its own until then"
    captured = CodecSettings(max_num_seqs=4, chunk_ramp=RAMP, capture_pairs=((1, 4),))
    assert frames(12, settings=captured) == 4


def test_an_engine_prefills_context_but_for_its_last_frames() -> None:
    def prefilled(*rows: Row, frames: int = 10) -> Call | None:
        return schedule(Rows(rows), NOW, SETTINGS, (), 0, context_frames=frames).call

    assert prefilled(row("a", pending=30, context=25)) == Call(("a",), (15,), (1, 15), "eager", prefill=True)
    # Of the published frames, 20 have not arrived yet: they include the last ones.
    waiting = row("a", pending=25, context=25, skip=20)
    assert prefilled(waiting) == Call(("a",), (25,), (1, 25), "eager", prefill=True)
    assert prefilled(row("a", pending=15, context=10)) == Call(("a",), (10,), (1, 10), "eager")
    long = row("a", pending=300, context=300)
    assert prefilled(long) == Call(("a",), (PREFILL_FRAMES,), (1, PREFILL_FRAMES), "eager", prefill=True)


def test_a_stream_without_a_lead_is_prefilled_first_and_alone() -> None:
    rows = [row("a", 40, context=40, decoded=40, age=3.2), row("b", 40, context=40, decoded=40, age=3.1)]
    playing = row("c", pending=12, decoded=28, age=1.0)
    plan = schedule(Rows([playing, *rows]), NOW, SETTINGS, (), 0, context_frames=28)
    assert plan.call == Call(("a",), (12,), (1, 12), "eager", prefill=True)
    # A call of as many frames does not decode what can be prefilled.
    rows[0].context = 0
    plan = schedule(Rows([playing, *rows]), NOW, SETTINGS, (), 0, context_frames=28)
    assert plan.call == Call(("a", "c"), (12, 12), (2, 12), "eager")


def test_a_call_hits_or_is_padded_to_a_captured_shape_or_runs_eagerly() -> None:
    pairs = ((1, 2), (2, 4), (4, 2), (4, 4))
    settings = CodecSettings(max_num_seqs=4, chunk_ramp=RAMP, capture_pairs=pairs)
    assert call([row("a", pending=2)], settings) == Call(("a",), (2,), (1, 2), "hit")
    two = [row("a", pending=2), row("b", pending=2)]
    assert call(two, settings) == Call(("a", "b"), (2, 2), (2, 4), "padded")
    assert call([row("a", pending=8, decoded=8)], settings) == Call(("a",), (8,), (1, 8), "eager")


# Engines on which a call costs more than padding -----------------------------------------------------------------


def test_rows_with_fewer_frames_join_a_call_on_an_engine_where_calls_cost() -> None:
    rows = [row("late", 4, decoded=4, age=0.4), row("tail", 1, decoded=4, segment_ended=True), row("new", 9, decoded=8)]
    rows.append(row("other", 3, decoded=4, age=0.05, segment_ended=True))
    assert call(rows, overhead=0) == Call(("late",), (4,), (1, 4), "eager")
    assert call(rows, overhead=1) == Call(("late", "tail", "other"), (4, 1, 3), (3, 4), "eager")
    assert call(rows, CodecSettings(max_num_seqs=2, chunk_ramp=RAMP), 1) == Call(
        ("late", "tail"), (4, 1), (2, 4), "eager"
    )


def test_rows_that_join_leave_a_call_within_its_captured_shapes() -> None:
    rows = [row(f"{index}", 4, decoded=4, age=0.4) for index in range(3)]
    tails = [row(f"tail {index}", 1, decoded=4, age=0.1, segment_ended=True) for index in range(2)]
    pairs = ((1, 4), (4, 4), (8, 2))
    settings = CodecSettings(max_num_seqs=8, chunk_ramp=RAMP, capture_pairs=pairs)
    assert call(rows + tails, settings, overhead=1) == Call(("0", "1", "2", "tail 0"), (4, 4, 4, 1), (4, 4), "hit")
    settings = CodecSettings(max_num_seqs=8, chunk_ramp=RAMP, capture_pairs=(*pairs[:2], (8, 4)))
    many = Call(("0", "1", "2", "tail 0", "tail 1"), (4, 4, 4, 1, 1), (8, 4), "padded")
    assert call(rows + tails, settings, overhead=1) == many
    # Where nothing is captured, everything joins.
    settings = CodecSettings(max_num_seqs=8, chunk_ramp=RAMP, capture_pairs=((1, 4),))
    alone = Call(many.ids, many.frames, (5, 4), "eager")
    assert call(rows + tails, settings, overhead=1) == alone


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), max_size=8), st.integers(1, 16), st.integers(1, 16))
def test_the_cheapest_shape_holds_the_call_with_the_fewest_frames(
    pairs: list[tuple[int, int]], rows: int, frames: int
) -> None:
    best = cheapest_shape(pairs, rows, frames)
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
def test_a_call_never_exceeds_the_pending_frames(
    drawn: list[tuple[int, int, bool]], ramp: list[int], overhead: int
) -> None:
    rows = [row(str(i), pending, decoded, segment_ended=ended) for i, (pending, decoded, ended) in enumerate(drawn)]
    chosen = call(rows, CodecSettings(max_num_seqs=4, chunk_ramp=tuple(ramp)), overhead)
    # Two frames last for `START_MARGIN_SECONDS`.
    able = [item for item in rows if item.pending and (item.segment_ended or item.pending >= max(*ramp, 2))]
    if chosen is None:
        assert not able
        return
    assert 1 <= len(chosen.ids) <= 4
    assert max(chosen.frames) <= max(ramp)
    assert all(rows[int(name)].pending >= frames for name, frames in zip(chosen.ids, chosen.frames, strict=True))


def test_a_call_leaves_time_for_a_stream_that_underruns_soon() -> None:
    """The other stream has 0.16 s of audio; a frame takes 4 ms."""
    rows = [row(f"far{index}", pending=12, decoded=40, age=1.0) for index in range(4)]
    rows.append(row("new", pending=0, decoded=2, age=0.0))

    def ids(seconds_per_frame: float) -> tuple[str, ...]:
        return schedule(Rows(rows), NOW, SETTINGS, (), 0, seconds_per_frame).call.ids

    assert ids(0.0) == ("far0", "far1", "far2", "far3")
    assert ids(0.001) == ("far0", "far1", "far2", "far3"), "all of them take 48 ms"
    assert ids(0.004) == ("far0",), "two of them take 96 ms"
    rows[-1].input_ended = rows[-1].segment_ended = True
    assert ids(0.004) == ("far0", "far1", "far2", "far3"), "it needs no further call"


def test_demand_counts_streams_that_have_codes_to_come_or_to_decode() -> None:
    waiting = row("in the queue", pending=0)
    started = row("started", pending=1)
    young = row("young", pending=0, decoded=10, age=0.1)
    ahead = row("ahead", pending=3, decoded=40, age=0.1)
    done = row("done", pending=0, decoded=10, segment_ended=True, input_ended=True)
    orphan = row("its talker died", pending=0, decoded=10, age=5.0)
    assert Rows([waiting, started, young, ahead, done, orphan]).demands(NOW) == [HEADROOM, HEADROOM, 1.0]


def test_a_stream_is_late_only_if_the_codec_has_its_codes() -> None:
    assert Rows([row("late", pending=4, decoded=10, age=0.75)]).is_late(NOW)
    assert not Rows([row("its talker is late", pending=0, decoded=10, age=0.75)]).is_late(NOW)
    assert not Rows([row("new", pending=4), row("ahead", pending=4, decoded=10, age=0.5)]).is_late(NOW)


def test_playback_that_ran_out_of_text_goes_on_when_codes_arrive() -> None:
    waiting = row("a", pending=0, decoded=5, age=10.0)
    waiting.resume(NOW)
    assert waiting.underrun_at() == pytest.approx(NOW)
    playing = row("b", pending=0, decoded=50, age=1.0)
    before = playing.underrun_at()
    playing.resume(NOW)
    assert playing.underrun_at() == before
    new = row("c", pending=0)
    new.resume(NOW)
    assert new.underrun_at() == -math.inf


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(("set", "change", "remove")), st.integers(0, 30))))
def test_rows_answer_as_if_they_had_always_been_there(steps: list[tuple[int, str, int]]) -> None:
    rows = Rows[Row]()
    for number, step, frames in steps:
        name = str(number)
        if step == "remove":
            rows.pop(name, None)
        elif step == "set":
            rows[name] = row(name, pending=frames, decoded=number, age=number / 3)
        elif name in rows:
            rows[name].pending, rows[name].decoded = frames, 2 * frames
            rows.changed(rows[name])
        rows.use_ramp(RAMP if frames % 2 else (4, 8))
    fresh = Rows(rows.values())
    fresh.use_ramp(rows.ramp)
    assert sorted(rows.demands(NOW)) == sorted(fresh.demands(NOW))
    for ask in (Rows.is_late, Rows.slack, Rows.frames_before):
        assert ask(rows, NOW) == ask(fresh, NOW)
    assert rows.company() == fresh.company()
    found, expected = rows.due(NOW, 0.1, 0.01), fresh.due(NOW, 0.1, 0.01)
    assert {each.id: frames for each, frames in found[0]} == {each.id: frames for each, frames in expected[0]}
    assert found[1] == expected[1]


def test_a_stream_that_is_late_already_shortens_no_call() -> None:
    late = row("late", pending=0, decoded=4, age=2.0)
    rows = Rows([late, *(row(name, pending=2, decoded=2) for name in ("a", "b"))])
    chosen = schedule(rows, NOW, SETTINGS, (), 0, seconds_per_frame=0.01).call
    assert chosen is not None and chosen.ids == ("a", "b")
