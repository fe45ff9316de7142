"""The rows of a talker, and what they are made of: a claim, and what previous owners have written."""

import functools
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from syrinx_stages.connector.base import Claim, StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import split_frames
from syrinx_stages.contract.keys import Position
from syrinx_stages.contract.messages import Codes, EndReason, Reference, Segment
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.talker.holding import Holder
from syrinx_stages.talker.prompt import Prepared
from syrinx_stages.talker.speech import BEGINNING, Speech, Take, after
from syrinx_stages.talker.text import RowText

_FRAME_BYTES = 2 * FAMILY.code_groups
"""Bytes of the codes of a frame."""


class Stream(Holder, kw_only=True):
    """A row with the state that the scheduler does not need."""

    claim: Claim
    speech: Speech
    text: RowText | None
    """None if the text was complete from the start."""
    reference: bytes | None
    """The voice to clone, as engines take it."""
    checksum: int
    """Of the frames that are published."""
    segment: Segment | None = None
    """The segment of the open take, until its first entry names it."""
    prompt: Prepared | None = None
    """Of the open take, while it waits for prefill."""
    ended: EndReason | None = None
    """Why the open take has ended, until it is closed."""
    resident: str = ""
    """The id of the take that the engine has."""
    is_new: bool = True
    """The engine has not had it yet."""
    names_talker: bool = True
    """Its next entry names this replica."""

    @property
    def take(self) -> Take:
        """The attempt that is being generated."""
        assert self.speech.take is not None
        return self.speech.take

    @property
    def lacks_text(self) -> bool:
        """Whether the open segment, or else the next one, is not complete."""
        return self.text is not None and not self.speech.is_limited and not self.text.has(self.speech.number)

    def complete_first(self, reading: Reading) -> None:
        """Completes the first segment of text that streams in, once its end is known."""
        if self.text is not None and self.text.tokens.ended and self.speech.is_open:
            tokens = self.text.tokens
            self.speech.complete(self.text.first, reading.bounds(self.claim.request, tokens.spoken), len(tokens.ids))


class Opening(NamedTuple):
    """A take that is prefilled."""

    row: Stream
    prompt: Prepared


class Written(Struct, frozen=True):
    """What previous owners have written of a request."""

    position: Segment = BEGINNING
    """Where the next segment, or the one that `frames` begin, is."""
    frames: Sequence[bytes] = ()
    """Of a segment that may go on."""
    total: int = 0
    checksum: int = 0
    """The number of all frames, and their checksum."""
    has_reference: bool = False


def written_of(entries: Sequence[StreamEntry], beginning: Written) -> Written:
    """Returns what the entries of a request say about its speech so far."""
    position, total, written = beginning.position, beginning.total, beginning.checksum
    frames: list[bytes] = []
    for item in entries:
        if not isinstance(entry := item.entry, Codes):
            continue
        size = len(entry.codes) // _FRAME_BYTES
        if entry.segment is not None:
            position, frames = entry.segment, []
        if position.is_whole:
            position = after(position, size)
        else:
            frames += split_frames(entry.codes, _FRAME_BYTES)
        total, written = item.position.frames, entry.checksum
    has_reference = any(isinstance(item.entry, Reference) for item in entries)
    return Written(position, frames, total, written, has_reference)


def new_row(
    claim: Claim,
    reading: Reading,
    text: RowText | None,
    reference: bytes | None,
    written: Written,
    delivered: Position,
) -> Stream:
    """Returns the row of a request with what previous owners have written, and what its client has got."""
    # The segments before those of a request that was queued again were heard.
    request, at = claim.request, written.position
    pieces = reading.segments(request, at.start) if text is None else text.segments(at.number)
    # The next segment of text that streams in is opened when it has arrived.
    is_between = text is not None and at.number > 0 and not written.frames
    now, frames = monotonic(), max(delivered.frames, 0 if request.resumes is None else request.resumes.frames)
    # After a takeover, assume that everything delivered has been played, so that the lead is not overestimated.
    playback_start = now - frames * FAMILY.frame_seconds
    return Stream(
        id=request.id,
        claim=claim,
        accepted_at=now - max(0.0, time.time() - request.accepted_at),
        live=request.live,
        produced=written.total,
        first_frame_at=playback_start if written.total else None,
        last_feedback_at=now,
        delivered=frames,
        first_delivered_at=playback_start if frames else None,
        held=[],
        speech=Speech(request, pieces, functools.partial(reading.bounds, request), at),
        text=text,
        reference=reference,
        checksum=written.checksum,
        is_new=not is_between,
        is_opening=is_between,
        text_frames=math.inf if text is None else text.given_frames,
        last_text_at=now,
    )
