"""Which generated frames are published, and with which others."""

from __future__ import annotations

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.talker.holding import CHECK_SECONDS, HELD_FRAMES, HELD_LEAD_SECONDS, MAX_BATCH, Holder, Holding

NOW = 1000.0
FRAME = FAMILY.frame_seconds


def row(name: str, *, lead: float = 60.0, held: int = 1, **fields) -> Holder:
    """A row whose published audio ends `lead` seconds from now."""
    started = {"first_frame_at": NOW + lead - 100 * FRAME, "produced": 100 + held, "held": [b""] * held}
    return Holder(**{"id": name, "accepted_at": 0.0, "live": True, "last_feedback_at": NOW, **started, **fields})


def take(found: Holding[Holder], *stepped: Holder, now: float = NOW) -> list[str]:
    return [each.id for each in found.take(stepped, now)]


def test_a_stream_with_a_short_lead_gets_each_frame_at_once() -> None:
    late, ahead = row("late", lead=HELD_LEAD_SECONDS - 0.01), row("ahead", lead=HELD_LEAD_SECONDS + 0.01)
    assert take(Holding({"late": late, "ahead": ahead}), late, ahead) == ["late"]


def test_the_lead_does_not_include_what_is_held() -> None:
    ahead = row("ahead", lead=HELD_LEAD_SECONDS - 0.01, held=HELD_FRAMES - 1)
    assert ahead.underrun_at() > NOW + HELD_LEAD_SECONDS
    assert take(Holding({"ahead": ahead}), ahead) == ["ahead"]


def test_nothing_is_held_while_no_step_is_due() -> None:
    """A codec that needs more frames for its chunk would wait for them, and the talker for the codec."""
    few, none = row("few", held=2), row("none", held=0)
    found = Holding({"few": few, "none": none})
    assert take(found, few, none) == []
    assert [each.id for each in found.flush()] == ["few"]
    assert (found.flush(), found.check_at) == ([], float("inf"))


def test_frames_of_a_stream_that_is_ahead_share_an_entry() -> None:
    full, other = row("full", held=HELD_FRAMES), row("other", held=HELD_FRAMES - 1)
    found = Holding({"full": full, "other": other})
    assert take(found, other) == []
    full.held.pop()
    assert take(found, full) == []
    full.held.append(b"")
    assert take(found, full) == ["full", "other"], "half an entry joins a batch that is written anyway"
    full.held.clear()
    other.held.clear()
    assert found.check_at == float("inf")
    little, full = row("few frames do not join", held=HELD_FRAMES // 2 - 1), row("full", held=HELD_FRAMES)
    found = Holding({each.id: each for each in (little, full)})
    assert (take(found, little), take(found, full)) == ([], ["full"])


def test_a_batch_is_bounded_and_those_that_hold_longest_go_first() -> None:
    rows = [row(f"{number:03}", held=HELD_FRAMES - 1) for number in range(2 * MAX_BATCH)]
    full = row("full", held=HELD_FRAMES)
    found = Holding({each.id: each for each in [*rows, full]})
    for each in rows:
        assert take(found, each) == []
    assert take(found, full) == ["full", *(each.id for each in rows[: MAX_BATCH - 1])]


def test_frames_that_the_client_needs_are_published_without_a_further_one() -> None:
    waits, ahead = row("waits", lead=HELD_LEAD_SECONDS + 1), row("ahead", lead=HELD_LEAD_SECONDS + 9)
    found = Holding({"waits": waits, "ahead": ahead})
    assert take(found, waits, ahead) == []
    assert found.check_at == NOW + CHECK_SECONDS
    assert take(found, now=NOW + 0.9) == []
    assert take(found, now=NOW + 1.2) == ["waits"]
    assert found.check_at == NOW + 1.2 + CHECK_SECONDS


def test_frames_before_a_text_that_is_missing_are_published() -> None:
    waits = row("waits", text_frames=101)
    assert take(Holding({"waits": waits}), waits) == ["waits"]


def test_rows_that_are_gone_or_hold_nothing_are_forgotten() -> None:
    gone, empty, full = row("gone", held=9), row("empty", held=9), row("full", held=HELD_FRAMES)
    rows = {each.id: each for each in (gone, empty, full)}
    found = Holding(rows)
    assert take(found, gone, empty) == []
    del rows["gone"]
    empty.held.clear()
    assert take(found, full) == ["full"]
    assert take(found, now=NOW + CHECK_SECONDS) == []
    assert found.check_at == float("inf")
