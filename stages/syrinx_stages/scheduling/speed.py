"""How fast an engine serves, measured from its steps: the basis of admission. Pure."""

import math
from collections.abc import Sequence

from syrinx_stages.contract.family import FAMILY

WINDOW_SECONDS = 5.0
"""Steps count less the longer ago they were: the time constant, in seconds of the engine's busy time."""
KNOWN_SECONDS, KNOWN_STEPS = 0.2, 8
"""Busy time, or number of steps, after which the measurement counts: the first steps of a process are slower."""
FIXED_SHARE = 0.9
"""Part of a step's time that does not depend on its frames, as long as all steps had equally many."""
PRIOR_SPREAD = 8.0
"""It counts as much as steps whose frames differ by this part of their mean."""
LENGTHS = 20
"""Number of finished requests over which their length is averaged."""
TYPICAL_SECONDS = 4.0
"""Seconds of audio of a request, until the first one has finished."""

HEADROOM = 2.0
"""Seconds of audio per second that a live stream needs until it has a comfortable lead: its chunks become longer, and
each is decoded only when it is complete."""
UTILIZATION = 0.92
"""Part of the capacity that live streams may need: at more, chance alone makes some of them late."""
COMFORTABLE_SECONDS = 1.5
"""A live stream with this lead needs only real time: more than the longest chunk of the default ramp."""


def live_demand(lead_seconds: float) -> float:
    """Returns the seconds of audio per second that a live stream needs, by its lead over playback."""
    return HEADROOM if lead_seconds < COMFORTABLE_SECONDS else 1.0


class EngineSpeed:
    """The time of a step as a linear function of its frames, fitted to recent steps, and the length of requests.

    The throughput of recent steps would not show what an engine can do that had little work.
    """

    def __init__(self) -> None:
        self._sums = _Sums()
        self._mean_seconds = TYPICAL_SECONDS
        self.max_num_seqs = 1
        """Rows of a step at most; at least 1."""
        self.full_step_frames: int | None = None
        """Frames of a step under full load; None: those of `max_num_seqs` rows, as many each as in recent steps."""

    def add_step(self, rows: int, frames: int, seconds: float) -> None:
        """Adds a step of `rows` rows with `frames` frames in total."""
        self._sums.add(rows, frames, seconds)

    def add_request(self, frames: int) -> None:
        """Adds a request that has ended after `frames` frames."""
        self._mean_seconds += (frames * FAMILY.frame_seconds - self._mean_seconds) / LENGTHS

    @property
    def capacity(self) -> float:
        """Seconds of audio per second under full load; infinite until measured."""
        per_frame = self._seconds_per_frame(self.full_step_frames or self.max_num_seqs * self._sums.row_frames)
        return FAMILY.frame_seconds / per_frame if per_frame else math.inf

    @property
    def seconds_per_frame(self) -> float:
        """Busy seconds for a frame in steps of one row; 0 until measured."""
        return self._seconds_per_frame(self._sums.row_frames)

    @property
    def real_time(self) -> bool:
        """Whether one live stream alone is generated at least as fast as it plays; assumed until measured."""
        return self.seconds_per_frame <= FAMILY.frame_seconds

    @property
    def requests_per_second(self) -> float:
        """Requests served per second under full load; 0 if unknown."""
        capacity = self.capacity
        return 0.0 if math.isinf(capacity) else capacity / max(self._mean_seconds, FAMILY.frame_seconds)

    def _seconds_per_frame(self, frames: float) -> float:
        """Returns the time of a step of `frames` frames, divided by these; 0 until measured."""
        is_known = self._sums.seconds >= KNOWN_SECONDS or self._sums.steps >= KNOWN_STEPS
        return self._sums.step_seconds(frames) / frames if frames and is_known else 0.0

    def spare_requests(self, demands: Sequence[float]) -> float:
        """Returns how many more live streams can be served in time, given the demand of each of the present ones.

        A fraction shows that there will be room for another one soon, a negative number that there are too many. One is
        always possible. If even one alone would be slower than real time, streams share the batch.
        """
        if not self.real_time:
            return self.max_num_seqs - len(demands)
        capacity = UTILIZATION * self.capacity
        if math.isinf(capacity):
            return self.max_num_seqs
        return (capacity - sum(demands)) / HEADROOM if demands else max(capacity / HEADROOM, 1.0)


class _Sums:
    """Sums over steps, weighted by their age, for a linear fit of their seconds to their frames."""

    def __init__(self) -> None:
        self.steps = self.rows = self.frames = self.seconds = 0.0
        self._squares = self._products = 0.0

    def add(self, rows: int, frames: int, seconds: float) -> None:
        """Adds a step."""
        keep = math.exp(-seconds / WINDOW_SECONDS)
        self.steps = self.steps * keep + 1
        self.rows = self.rows * keep + rows
        self.frames = self.frames * keep + frames
        self.seconds = self.seconds * keep + seconds
        self._squares = self._squares * keep + frames**2
        self._products = self._products * keep + frames * seconds

    @property
    def row_frames(self) -> float:
        """Mean number of frames of a row in a step; 0 without any."""
        return self.frames / self.rows if self.rows else 0.0

    def step_seconds(self, frames: float) -> float:
        """Returns the fitted time of a step with `frames` frames.

        Ridge regression: the less the steps differed in their frames, the closer is the slope to that of `FIXED_SHARE`.
        """
        mean, seconds = self.frames / self.steps, self.seconds / self.steps
        variance, covariance = self._squares / self.steps - mean**2, self._products / self.steps - mean * seconds
        proportional, prior_weight = seconds / mean, (mean / PRIOR_SPREAD) ** 2
        slope = (covariance + prior_weight * (1 - FIXED_SHARE) * proportional) / (variance + prior_weight)
        return seconds + min(max(slope, 0.0), proportional) * (frames - mean)
