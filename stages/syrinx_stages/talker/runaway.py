"""Detects clips that will not end or have gone wrong, frame by frame. Pure: the verdict follows from the frames alone.

An owner that takes a request over feeds the detector the frames in Redis and comes to the same verdict. A frame costs
a few microseconds: rules that need more run only while codes repeat or a clip is long.
"""

import math
from enum import StrEnum

from syrinx_stages.contract.frames import Mark, MarkedFrame, decode_mark
from syrinx_stages.contract.messages import RunawayGuard

MAX_PERIOD = 25
"""Frames of the longest loop: two seconds."""
LOOP_FRAMES = 20
"""Frames that repeat the ones a period before are a loop; at least a period. Pauses within speech are shorter."""
SUSPECT_FRAMES = 8
"""From this many on the loop is suspected."""
SILENT_CODES = 3
"""Speech of `MAX_PERIOD` frames has more different codes 0."""

MAX_HAZARD = 14.0
"""The chance that a healthy request survives more end hazard in all is exp(-14), one in a million."""
END_HAZARD = 1.0
"""A frame before which the end was this likely is where the clip should have ended."""
MISSED_HAZARD = 3.0
"""A clip that has survived this much (one in 20) has missed its end if none follows for `QUIET_FRAMES`..."""
QUIET_FRAMES = 12
MIN_PART = 0.5
"""...and at least this part of the expected frames was generated. The end of a sentence within a text looks similar."""

BABBLE_WINDOW = 16
MAX_IMPLAUSIBLE = 7
"""More implausible codes among `BABBLE_WINDOW` frames are babble; from `SUSPECT_IMPLAUSIBLE` on it is suspected."""
SUSPECT_IMPLAUSIBLE = 3

MIN_BASELINE = 12
"""The model's usual uncertainty is its mean entropy in the first half of the expected frames; at least in so many..."""
MIN_ENTROPY = 0.6
"""...and at least this, in nats."""
OVER_RATIO = 3.0
"""After the text half of the frames are as uncertain as usual, the others this many times as much."""
MAX_SURPRISE, MAX_DOUBT = 2.0, 2.0
"""Nats that the uncertainty of one frame and of all counts at most: words that the model does not know are uncertain,
too. So only a clip that is longer than six of seven of such texts is a runaway by that."""
LATE_ODDS, MAX_ODDS = 2.7, 8.0
"""Logarithm of the odds that a text is over by its duration alone: when it is late, and at most."""
OVER_ODDS = 4.0
"""The same by duration and uncertainty: with more, the text is over."""

_LAGS = (1 << MAX_PERIOD + 1) - 2
_SHORT_LAGS = (1 << LOOP_FRAMES + 1) - 2
_STANDSTILL = 1 << 1
_WINDOW = (1 << BABBLE_WINDOW) - 1
_NEVER = 1 << 30


class Signal(StrEnum):
    """What shows that a clip is a runaway."""

    END = "end"
    """The model would have ended it, or its probability of the end has collapsed."""
    LOOP = "loop"
    """Codes repeat with a period of up to two seconds."""
    SILENCE = "silence"
    """Codes stand still or alternate between a few values."""
    BABBLE = "babble"
    """Codes are not those that the model predicts."""
    DURATION = "duration"
    """It is longer than any clip of such a text."""


class RunawayDetector:
    """The state of one request. Feed it every frame in order."""

    def __init__(self, guard: RunawayGuard) -> None:
        self.frames = 0
        self.good_frames = 1
        """Frames before those under suspicion; at least 1. Never less than before: the others may be published."""
        self._guard = guard
        self._max_frames = guard.max_frames or _NEVER
        self._late = guard.late_frames or _NEVER
        self._recent: dict[int, tuple[int, int]] = {}
        """By code 0: its last frame, and a bit set of the distances from there to earlier ones with the same code 0."""
        self._lags: list[int] = []
        """For each frame, the bit set of the distances to earlier frames with the same code 0."""
        self._codes: list[int] = []
        self._periods = _STANDSTILL if guard.repeats else _LAGS
        """Those of loops, as a bit set."""
        self._repeated = 0
        """How many of the last frames have a code 0 of the frames before."""
        self._repeating_from = _NEVER
        """Frames before a suspected loop."""
        self._hazard = 0.0
        """End hazard that the request has survived."""
        self._pending_hazard = 0.0
        """The part of it after the last `QUIET_FRAMES` frames without any."""
        self._quiet = 0
        self._end_at = _NEVER
        """Frames before the suspected end."""
        self._implausible = 0
        """Bit set of the last frames, the newest in bit 0."""
        self._babbling_from = _NEVER
        """Frames before suspected babble."""
        self._expected = guard.expected_frames
        self._spread = max(1.0, (self._late - guard.expected_frames) / LATE_ODDS)
        """Scale in frames of the logistic distribution of the text's duration."""
        self._log_spread = math.log(self._spread)
        self._baseline_frames = max(MIN_BASELINE, guard.expected_frames // 2)
        self._marked = 0
        """Marked frames, up to `_baseline_frames`: a talker of an earlier version does not mark any."""
        self._usual_entropy = 0.0
        """Their mean."""
        self._over = -math.inf
        """Logarithm of the likelihood that the text ended at one of these frames, relative to that it goes on."""
        self._over_at = _NEVER
        """Frames before it was more likely than not that the text is over."""

    @property
    def is_suspicious(self) -> bool:
        """Whether the last frames are under suspicion."""
        return self.good_frames < self.frames

    def add(self, frame: bytes) -> Signal | None:
        """Adds a frame ([16] int16, little-endian). Returns what shows that the clip is a runaway, or None."""
        self.frames += 1
        signal = self._add_code(frame[0] | frame[1] << 8)
        if isinstance(frame, MarkedFrame):
            signal = self._add_mark(decode_mark(frame.mark)) or signal
        if self.frames > self._max_frames:
            signal = signal or Signal.DURATION
        if signal is None:
            suspected = min(self._repeating_from, self._end_at, self._babbling_from, self._over_at, self._late)
            self.good_frames = max(self.good_frames, min(self.frames, suspected))
        return signal

    def _add_mark(self, mark: Mark) -> Signal | None:
        is_over = self._add_entropy(mark.entropy)
        ended = self._add_hazard(mark.end_hazard)
        babbles = self._add_plausibility(mark.is_implausible) if mark.is_implausible or self._implausible else False
        if ended:
            return Signal.END
        return Signal.BABBLE if babbles or is_over else None

    def _add_code(self, code: int) -> Signal | None:
        at = self.frames
        last, lags = self._recent.get(code, (0, 0))
        lags = lags << at - last & _LAGS if at - last <= MAX_PERIOD else 0
        self._recent[code] = at, lags | 1
        self._lags.append(lags)
        self._codes.append(code)
        self._repeated = self._repeated + 1 if lags else 0
        if self._repeated < SUSPECT_FRAMES:
            self._repeating_from = _NEVER
            return None
        return self._repetition()

    def _repetition(self) -> Signal | None:
        """Examines the last frames, all of which have a code 0 of the frames before."""
        suspected = self._common_lags(SUSPECT_FRAMES) & self._periods
        self._repeating_from = self._first_with(suspected) if suspected else _NEVER
        if self._repeated < LOOP_FRAMES:
            return None
        periods = self._common_lags(LOOP_FRAMES) & _SHORT_LAGS
        if self._repeated >= MAX_PERIOD:
            periods |= self._common_lags(MAX_PERIOD)
            if len(set(self._codes[-MAX_PERIOD:])) <= SILENT_CODES:
                return Signal.SILENCE
        if periods & _STANDSTILL:
            return Signal.SILENCE
        return Signal.LOOP if periods & self._periods else None

    def _common_lags(self, count: int) -> int:
        """Returns the distances at which each of the last `count` frames repeats an earlier one, as a bit set."""
        common = _LAGS
        for lags in self._lags[-count:]:
            common &= lags
        return common

    def _first_with(self, periods: int) -> int:
        """Returns the number of frames before the last ones that all repeat at one of `periods`."""
        first = self.frames - SUSPECT_FRAMES
        while first and (common := periods & self._lags[first - 1]):
            periods, first = common, first - 1
        return first

    def _add_hazard(self, hazard: float) -> bool:
        """Adds the newest frame's end hazard. Returns whether the clip should have ended."""
        if hazard:
            self._quiet = 0
            self._hazard += hazard
            self._pending_hazard += hazard
            if self._pending_hazard >= END_HAZARD and self._end_at == _NEVER:
                self._end_at = self.frames - 1
            return self._hazard > MAX_HAZARD
        self._quiet += 1
        if self._quiet == QUIET_FRAMES and self._pending_hazard:
            if self._pending_hazard >= MISSED_HAZARD and self._end_at >= MIN_PART * self._guard.expected_frames:
                return True
            self._pending_hazard, self._end_at = 0.0, _NEVER
        return False

    def _add_plausibility(self, is_implausible: bool) -> bool:
        """Adds whether the newest frame is implausible. Returns whether too many are."""
        window = self._implausible = (self._implausible << 1 | is_implausible) & _WINDOW
        count = window.bit_count()
        if count < SUSPECT_IMPLAUSIBLE:
            self._babbling_from = _NEVER
        else:
            self._babbling_from = min(self._babbling_from, self.frames - window.bit_length())
        return count > MAX_IMPLAUSIBLE

    def _add_entropy(self, entropy: float) -> bool:
        """Adds the model's uncertainty about the newest frame. Returns whether the text is over.

        A sequential test for a change (Shiryaev, 1963). Before it the entropy is taken as exponentially distributed,
        the widest distribution with a given mean; when the text ends is known from its duration.
        """
        if self._marked < self._baseline_frames:
            self._marked += 1
            self._usual_entropy += entropy / self._baseline_frames
            return False
        overdue = (self.frames - 1 - self._expected) / self._spread
        if overdue < -MAX_ODDS:
            return False
        tail = math.log1p(math.exp(-abs(overdue)))
        ends_now = -abs(overdue) - 2 * tail - self._log_spread
        relative = entropy / max(MIN_ENTROPY, self._usual_entropy)
        surprise = math.log((1 + math.exp(relative * (1 - 1 / OVER_RATIO)) / OVER_RATIO) / 2)
        self._over = min(max(self._over, ends_now) + min(surprise, MAX_SURPRISE), MAX_DOUBT)
        odds = self._over + min(max(overdue, 0.0) + tail, MAX_ODDS)
        self._over_at = min(self._over_at, self.frames - 1) if odds > 0 else _NEVER
        return odds > OVER_ODDS
