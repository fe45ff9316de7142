"""Tests of the journal: what it keeps, for how long, and what it returns for a stream that is behind."""

import pytest

from syrinx_stages.connector.base import Append, Claim, Fence, StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, REFERENCE_POSITION, STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import (
    Audio,
    Codes,
    End,
    EndReason,
    Reference,
    Segment,
    SpeechRequest,
    StreamCreated,
    TaskType,
)
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.requests import journal
from syrinx_stages.runtime.requests.journal import KEEP_SECONDS, Journal

CODES, AUDIO = StreamKind.CODES, StreamKind.AUDIO


def claimed(
    kind: StreamKind, request_id: str = "one", start: Position = STREAM_CREATED, epoch: int = 1, entry_id: str = "1-0"
) -> Claim:
    group = Stage.TALKER if kind is CODES else Stage.CODEC
    request = SpeechRequest(id=request_id, accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE)
    return Claim(entry_id, request, fence=Fence(group, f"{epoch}:0:{start}:{start}"))


def add(written: Journal, claim: Claim, kind: StreamKind, *frames: int, accepted_at: float | None = None) -> Append:
    """Adds frames; `accepted_at` None leaves them without a reply. Returns the last one."""
    for number in frames:
        entry = Codes(b"x") if kind is CODES else Audio(bytes(100))
        append = Append("one", kind, Position(number), entry, claim.fence, written.last_position(claim))
        written.add(append)
        if accepted_at is not None:
            assert written.accept(append, accepted_at)
    return append


def end(written: Journal, claim: Claim, kind: StreamKind, accepted_at: float) -> Append:
    after = written.last_position(claim)
    at = Position(after.frames, END_SEQUENCE)
    append = Append(claim.request.id, kind, at, End(EndReason.STOP), claim.fence, after, claim.entry_id)
    written.add(append)
    assert written.accept(append, accepted_at)
    assert not written.accept(append, accepted_at), "it is reported as written once"
    return append


def missing(written: Journal, append: Append, at: int | Position) -> list[int] | None:
    found = written.missing(append, at if isinstance(at, Position) else Position(at))
    return None if found is None else [entry.position.frames for entry in found]


def test_returns_what_follows_the_position_of_a_stream_that_is_behind() -> None:
    written, claim = Journal(CODES), claimed(CODES)
    add(written, claim, CODES, 1, 2, 3, accepted_at=0.0)
    third = add(written, claim, CODES, 4)
    add(written, claim, CODES, 5)
    assert missing(written, third, 2) == [3, 4], "later entries wait in the publisher"
    assert missing(written, third, STREAM_CREATED) == [1, 2, 3, 4]


def test_a_position_that_the_writer_never_had_cannot_be_continued() -> None:
    written, claim = Journal(CODES), claimed(CODES, start=Position(4))
    last = add(written, claim, CODES, 5, 6)
    assert missing(written, last, 4) == [5, 6]
    assert missing(written, last, 3) is None, "it is before the claim"
    other = Append("one", CODES, Position(9), Codes(b""), claimed(CODES, epoch=2).fence, Position(8))
    assert missing(written, other, 4) is None, "it is of another claim"


def test_the_codes_of_earlier_owners_are_kept_too() -> None:
    written, claim = Journal(CODES), claimed(CODES, start=Position(2), epoch=2)
    entries = [(STREAM_CREATED, StreamCreated()), (Position(1), Codes(b"a")), (Position(2), Codes(b"b"))]
    written.restore(claim, [StreamEntry("one", CODES, position, entry) for position, entry in entries])
    last = add(written, claim, CODES, 3)
    assert missing(written, last, STREAM_CREATED) == [1, 2, 3]
    assert [entry.position for entry in written.last_written()] == [Position(2)]


def test_codes_before_a_segment_may_be_deleted() -> None:
    """Then what a fail-over has lost before it cannot be written again."""
    written, claim = Journal(CODES), claimed(CODES, start=Position(8), epoch=2)
    entries = [(REFERENCE_POSITION, Reference(b"v")), (Position(8), Codes(b"a", segment=Segment(1, 9, 20, frames=6)))]
    written.restore(claim, [StreamEntry("one", CODES, position, entry) for position, entry in entries])
    last = add(written, claim, CODES, 9)
    assert missing(written, last, 6) == [8, 9]
    assert missing(written, last, 0) is None


@pytest.mark.parametrize("kind", [CODES, AUDIO])
def test_entries_are_kept_for_a_time(kind: StreamKind) -> None:
    written, claim = Journal(kind), claimed(kind)
    add(written, claim, kind, 1, 2, accepted_at=0.0)
    last = add(written, claim, kind, 3, accepted_at=KEEP_SECONDS)
    assert missing(written, last, STREAM_CREATED) is None
    assert missing(written, last, 2) == [3]
    end(written, claimed(kind, "other"), kind, accepted_at=3 * KEEP_SECONDS)
    assert last in written.last_written(), "the last entry of an idle stream"
    assert missing(written, last, 2) == [3]
    written.forget("one")
    assert last not in written.last_written(), "a stream without an end is dropped with its request"
    assert missing(written, last, STREAM_CREATED) is None


def test_entries_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 250)
    written, claim = Journal(AUDIO), claimed(AUDIO)
    last = add(written, claim, AUDIO, 1, 2, 3, 4, accepted_at=0.0)
    assert missing(written, last, 2) == [3, 4]
    assert missing(written, last, 1) is None


@pytest.mark.parametrize("kind", [CODES, AUDIO])
def test_an_ended_stream_is_kept_for_a_time_and_then_dropped(kind: StreamKind) -> None:
    written, claim = Journal(kind), claimed(kind)
    add(written, claim, kind, 1, accepted_at=0.0)
    last = end(written, claim, kind, accepted_at=1.0)
    written.forget("one")
    assert [entry.position for entry in written.last_written()] == [last.position]
    assert written.ended() == {"1-0"}
    assert missing(written, last, STREAM_CREATED) == [1, 1]
    end(written, claimed(kind, "other", entry_id="2-0"), kind, accepted_at=1.0 + KEEP_SECONDS)
    assert [entry.request_id for entry in written.last_written()] == ["other"]
    assert written.ended() == {"2-0"}


def test_a_claim_that_another_one_has_replaced_or_that_was_refused_has_not_ended() -> None:
    written, claim = Journal(CODES), claimed(CODES)
    end(written, claim, CODES, accepted_at=0.0)
    add(written, claimed(CODES, epoch=2), CODES, 1, accepted_at=0.0)
    assert not written.ended()
    last = end(written, claimed(CODES, epoch=2), CODES, accepted_at=0.0)
    assert written.ended()
    written.discard(last)
    assert not written.ended()


def test_a_later_claim_goes_on_where_the_stream_stood_at_the_claim() -> None:
    written, claim = Journal(CODES), claimed(CODES)
    add(written, claim, CODES, 1, 2)
    assert written.last_position(claim) == Position(2)
    assert written.last_position(claimed(CODES, start=Position(1), epoch=2)) == Position(1)
