"""What a request says: its text segment by segment, each checked, and retried if it has a fault. Pure.

What is released is a function of the request's frames alone, whoever asks and whenever: a listener gets the same audio
in any company and after any takeover. The first segment of a stream is released as it is generated, so that its audio
comes early; all others once they are complete.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct, structs

from syrinx_stages.contract.messages import End, EndReason, Segment, SpeechRequest
from syrinx_stages.normalization.durations import Bounds, repeats_itself
from syrinx_stages.normalization.segments import Divided
from syrinx_stages.talker.repetition import RepetitionDetector

ATTEMPTS = 3
"""Attempts at a segment, with a seed each. The best one is taken if none is complete."""
_SEGMENT_STEP, _ATTEMPT_STEP = 0xD1B54A32D192ED03, 0x9E3779B97F4A7C15
_SEEDS = 1 << 63


BEGINNING = Segment(0, 0, 0)
"""The position of a request of which nothing is spoken."""
OPEN = Divided("", 0, 0)
"""The first segment of a text that streams in, while it arrives."""


class Fault(StrEnum):
    """Why an attempt is not complete."""

    SHORT = "short"
    """It has fewer frames than its text needs."""
    LONG = "long"
    """It has more, or the model has no room for more."""
    LOOP = "loop"
    """It repeats itself."""
    SILENCE = "silence"
    """It stands still."""


class Take:
    """One attempt at a segment."""

    def __init__(self, request: SpeechRequest, bounds: Bounds | None, streams: bool) -> None:
        """request: for the engine. bounds: None if the text may go on, or is not checked."""
        self.request = request
        self.bounds: Bounds | None = None
        self.streams = streams
        """Its frames are released as they are generated."""
        self.frames: list[bytes] = []
        """Those that are not released."""
        self.released = 0
        self.fault: Fault | None = None
        self._repetition = None
        if bounds is not None:
            self._repetition = RepetitionDetector(repeats_itself(request.text))
            self.bound(bounds)

    @property
    def id(self) -> str:
        """The engine knows the attempt by it."""
        return self.request.id

    @property
    def length(self) -> int:
        """Frames so far."""
        return self.released + len(self.frames)

    def bound(self, bounds: Bounds, frames: int = 0) -> None:
        """Sets the bounds: of text that streams in once it is complete, and has allowed so many frames.

        These are not withheld, so that it makes no difference when its end was known.
        """
        most = max(bounds.most, frames + bounds.expected)
        self.bounds, self._usual = structs.replace(bounds, most=most), max(bounds.usual, frames)

    def add(self, frame: bytes) -> list[bytes]:
        """Adds a frame ([16] int16, little-endian). Returns those that are released. With a `fault` it is over."""
        self.frames.append(frame)
        if self.bounds is None:
            return self.release() if self.streams else []
        # Further frames are released with the end only: speech without one is cut here.
        good = self._usual
        if self._repetition is not None:
            if (found := self._repetition.add(frame[0] | frame[1] << 8)) is not None:
                self.fault = Fault(found)
            good = min(good, self._repetition.good_frames)
        if self.fault is None and self.released + len(self.frames) > self.bounds.most:
            self.fault = Fault.LONG
        if self.fault is not None:
            del self.frames[max(good - self.released, 0) :]
        return self.release(good) if self.streams else []

    def replay(self, frames: Sequence[bytes]) -> None:
        """Adds frames that were released before."""
        for frame in frames:
            self.add(frame)
        self.frames.clear()
        self.released = len(frames)

    def end(self, reason: EndReason) -> None:
        """Records why the engine has ended it, unless it had a fault before."""
        if self.fault is not None:
            return
        if reason is EndReason.LENGTH:
            self.fault = Fault.LONG
        elif self.bounds is not None and self.length < self.bounds.least:
            self.fault = Fault.SHORT

    def release(self, good: int | None = None) -> list[bytes]:
        """Releases the frames up to the first `good` ones, by default all."""
        released = self.frames
        if good is None or good - self.released >= len(released):
            self.frames = []
        else:
            released = released[: max(good - self.released, 0)]
            del self.frames[: len(released)]
        self.released += len(released)
        return released

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """What to compare attempts by, the best one has the least: complete, ended by itself, near to what is usual."""
        usual = self.length if self.bounds is None else self.bounds.expected
        distance = abs(math.log((self.length + 1) / (usual + 1)))
        return self.fault is not None, self.fault not in (None, Fault.SHORT), distance


class Closed(Struct, frozen=True):
    """What was released at the end of a segment."""

    frames: list[bytes]
    whole: Segment | None
    """The segment, if these are all of its frames."""


class Speech:
    """The segments of a request, of which one has an open take. `begin` may be slow: call it in a thread."""

    def __init__(
        self,
        request: SpeechRequest,
        pieces: Iterator[Divided],
        bounds: Callable[[str], Bounds],
        position: Segment = BEGINNING,
    ) -> None:
        """pieces: the segments from the next one on. position: its number, and what is known of those before."""
        self.take: Take | None = None
        """None before the first one, and when the text is over."""
        self._request = request
        self._pieces = pieces
        self._bounds = bounds
        self._position = position
        self._piece: Divided | None = None
        self._dropped: list[Take] = []
        """Attempts at this segment with a fault."""
        self.is_limited = False
        """The client's limit ends the request."""

    @property
    def number(self) -> int:
        """The number of the open segment, or of the next one."""
        return self._position.number

    @property
    def is_open(self) -> bool:
        """Whether the text of the open take still arrives."""
        return self._piece is OPEN

    def complete(self, piece: Divided, bounds: Bounds, tokens: int) -> None:
        """Completes the open segment, whose text has so many tokens."""
        self._piece = piece
        if self._request.checks and self.take is not None:
            self.take.bound(bounds, tokens)

    def begin(self) -> Take | None:
        """Opens the next take: another attempt, or the first one at the next segment. Returns None if all is said."""
        if not self._dropped:
            self._piece = None if self.is_limited else next(self._pieces, None)
            self.is_limited = self.is_limited or (self._piece is not None and self._left <= 0)
        self.take = None if self._piece is None or self.is_limited else self._open(self._piece, len(self._dropped))
        return self.take

    def use_prepared_voice(self) -> None:
        """Lets further takes clone the voice that the engine has prepared for the first one."""
        self._request = structs.replace(self._request, reference_prepared=True)

    @property
    def _left(self) -> float:
        """Frames that the client's limit leaves."""
        total = self._request.total_frames
        return math.inf if total is None else total - self._position.frames

    def _open(self, piece: Divided, attempt: int) -> Take:
        request, number = self._request, self._position.number
        bounds = self._bounds(piece.text) if request.checks and piece is not OPEN else None
        limit = min(request.max_frames, self._left, math.inf if bounds is None else bounds.most + 1)
        own = structs.replace(
            request,
            id=f"{request.id}/{number}.{attempt}" if number or attempt else request.id,
            text=piece.text,
            seed=take_seed(request.seed, number, attempt),
            max_frames=int(limit),
        )
        return Take(own, bounds, not request.checks or (request.live and number == 0))

    @property
    def segment(self) -> Segment:
        """The segment of the open take, as the entry with its first frames names it, without a checksum."""
        assert self._piece is not None
        piece = self._piece
        return structs.replace(self._position, start=piece.start, end=piece.end, pause=piece.pause, is_whole=False)

    def close(self, reason: EndReason) -> Closed | None:
        """Closes a take that has a fault, or that the engine has ended. Returns None if it is retried."""
        take = self.take
        assert take is not None
        if reason is EndReason.LENGTH and take.length >= self._left:
            self.is_limited = True
        else:
            take.end(reason)
        if take.streams:
            closed = Closed(take.release(), None)
            self._advance(take, 0)
            return closed
        if take.fault is not None and len(self._dropped) + 1 < ATTEMPTS and not _is_greedy(self._request):
            self._dropped.append(take)
            return None
        best = min((*self._dropped, take), key=lambda each: each.rank)
        segment, frames = self.segment, best.release()
        self._advance(best, len(self._dropped))
        retries, incomplete = self._position.retries, self._position.incomplete
        return Closed(frames, structs.replace(segment, is_whole=True, retries=retries, incomplete=incomplete))

    def _advance(self, take: Take, retries: int) -> None:
        segment, self._dropped = self.segment, []
        place = () if take.fault is None else ((segment.start, segment.end),)
        incomplete, retries = (*segment.incomplete, *place), segment.retries + retries
        self._position = after(structs.replace(segment, incomplete=incomplete, retries=retries), take.length)

    def end(self) -> End:
        """Returns the end of the request after its last segment, without a checksum."""
        at = self._position
        reason = EndReason.INCOMPLETE if at.incomplete else EndReason.STOP
        return End(EndReason.LENGTH if self.is_limited else reason, retries=at.retries, incomplete=at.incomplete)


def take_seed(seed: int, segment: int, attempt: int) -> int:
    """Returns the seed of an attempt at a segment of a request with a seed."""
    return (seed + segment * _SEGMENT_STEP + attempt * _ATTEMPT_STEP) % _SEEDS


def after(segment: Segment, frames: int) -> Segment:
    """Returns the position after a segment of so many frames."""
    return structs.replace(segment, number=segment.number + 1, frames=segment.frames + frames, start=segment.end)


def _is_greedy(request: SpeechRequest) -> bool:
    """Returns whether every seed gives the same speech."""
    return request.sampling.temperature == 0 and request.sampling.residual_temperature == 0
