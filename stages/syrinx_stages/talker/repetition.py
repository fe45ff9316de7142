"""Finds the frame from which on speech repeats itself or stands still. Pure."""

from enum import StrEnum

MAX_PERIOD = 25
"""Frames of the longest loop: two seconds."""
LOOP_FRAMES = 20
"""Frames that repeat the ones a period before are a loop; at least a period. Pauses within speech are shorter."""
SUSPECT_FRAMES = 8
"""From this many on the loop is suspected."""
SILENT_CODES = 3
"""Speech of `MAX_PERIOD` frames has more different codes 0."""

_LAGS = (1 << MAX_PERIOD + 1) - 2
_SHORT_LAGS = (1 << LOOP_FRAMES + 1) - 2
_STANDSTILL = 1 << 1
_UNKNOWN = 0, 0


class Repetition(StrEnum):
    """What was found."""

    LOOP = "loop"
    """Codes repeat with a period of up to two seconds."""
    SILENCE = "silence"
    """Codes stand still or alternate between a few values."""


class RepetitionDetector:
    """The frames of one attempt, of which it knows the codes 0. Feed it each in order.

    A loop is frames each of which has the code 0 of the frame a period before.
    """

    def __init__(self, may_loop: bool) -> None:
        """may_loop: the text repeats itself, so that only a standstill is wrong."""
        self.good_frames = 0
        """Frames that no later one can make part of a repetition. Never decreases."""
        self._recent: dict[int, tuple[int, int]] = {}
        """By code 0: its last frame, and a bit set of the distances from there to earlier ones with the same code 0."""
        self._lags: list[int] = []
        """For each frame, the bit set of the distances to earlier frames with the same code 0."""
        self._codes: list[int] = []
        self._periods = _STANDSTILL if may_loop else _LAGS
        """Those of loops, as a bit set."""
        self._repeated = 0
        """How many of the last frames have a code 0 of the frames before."""

    def add(self, code: int) -> Repetition | None:
        """Adds the code 0 of a frame. Returns what is wrong with the frames after the good ones, or None."""
        codes = self._codes
        codes.append(code)
        at = len(codes)
        last, lags = self._recent.get(code, _UNKNOWN)
        lags = lags << at - last & _LAGS if at - last <= MAX_PERIOD else 0
        self._recent[code] = at, lags | 1
        self._lags.append(lags)
        if not lags:
            self._repeated = 0
            self.good_frames = at
            return None
        self._repeated += 1
        if self._repeated < SUSPECT_FRAMES:
            self.good_frames = at
            return None
        return self._checked(at)

    def _checked(self, at: int) -> Repetition | None:
        if (found := self._found()) is None:
            suspected = self._common_lags(SUSPECT_FRAMES) & self._periods
            self.good_frames = max(self.good_frames, self._first_with(suspected) if suspected else at)
        return found

    def _found(self) -> Repetition | None:
        if self._repeated < LOOP_FRAMES:
            return None
        periods = self._common_lags(LOOP_FRAMES) & _SHORT_LAGS
        if self._repeated >= MAX_PERIOD:
            periods |= self._common_lags(MAX_PERIOD)
            if len(set(self._codes[-MAX_PERIOD:])) <= SILENT_CODES:
                return Repetition.SILENCE
        if periods & _STANDSTILL:
            return Repetition.SILENCE
        return Repetition.LOOP if periods & self._periods else None

    def _common_lags(self, count: int) -> int:
        """Returns the distances at which each of the last `count` frames repeats an earlier one, as a bit set."""
        common = _LAGS
        for lags in self._lags[-count:]:
            common &= lags
        return common

    def _first_with(self, periods: int) -> int:
        """Returns the number of frames before the last ones that all repeat at one of `periods`."""
        first = len(self._codes) - SUSPECT_FRAMES
        while first and (common := periods & self._lags[first - 1]):
            periods, first = common, first - 1
        return first
