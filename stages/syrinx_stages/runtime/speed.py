"""How fast an engine serves, measured from its steps: the basis of admission. Pure."""

import math
from collections.abc import Sequence

from syrinx_stages.contract.family import FAMILY

WINDOW_SECONDS = 5.0
"""Steps count less the longer ago they were: the time constant, in seconds of the engine's busy time."""
LENGTHS = 20
"""Number of finished requests over which their length is averaged."""
TYPICAL_SECONDS = 4.0
"""Seconds of audio of a request, until the first one has finished."""

HEADROOM = 2.0
"""Seconds of audio per second that a live stream needs until it has a comfortable lead: its chunks become longer, and
each is decoded only when it is complete."""
COMFORTABLE_SECONDS = 1.5
"""A live stream with this lead needs only real time: more than the longest chunk of the default ramp."""


def live_demand(lead_seconds: float) -> float:
    """Returns the seconds of audio per second that a live stream needs, by its lead over playback."""
    return HEADROOM if lead_seconds < COMFORTABLE_SECONDS else 1.0


class _Rate:
    """Audio frames per busy second of the engine, averaged over about `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._frames = self._seconds = 0.0

    def add(self, frames: int, seconds: float) -> None:
        keep = math.exp(-seconds / WINDOW_SECONDS)
        self._frames = self._frames * keep + frames
        self._seconds = self._seconds * keep + seconds

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio per second; infinite without a measurement."""
        return self._frames * FAMILY.frame_seconds / self._seconds if self._seconds else math.inf


class EngineSpeed:
    """The throughput of one engine: of full steps, and of a single request alone."""

    def __init__(self) -> None:
        self._full, self._alone = _Rate(), _Rate()
        self._mean_seconds = TYPICAL_SECONDS

    def add_step(self, rows: int, frames: int, seconds: float, full: bool) -> None:
        """Adds a step of `rows` rows. `full`: more rows were due than it could hold, or just as many."""
        if full:
            self._full.add(frames, seconds)
        if rows == 1:
            self._alone.add(frames, seconds)

    def add_request(self, frames: int) -> None:
        """Adds a request that has ended after `frames` frames."""
        self._mean_seconds += (frames * FAMILY.frame_seconds - self._mean_seconds) / LENGTHS

    @property
    def capacity(self) -> float:
        """Seconds of audio per second with as many requests as a step holds; infinite until there were as many."""
        return self._full.audio_seconds

    @property
    def seconds_per_frame(self) -> float:
        """Busy seconds for a frame in steps of one row; 0 until measured."""
        return FAMILY.frame_seconds / self._alone.audio_seconds

    @property
    def real_time(self) -> bool:
        """Whether one live stream alone is generated at least as fast as it plays; assumed until measured."""
        return self._alone.audio_seconds >= 1.0

    @property
    def requests_per_second(self) -> float:
        """Requests served per second with as many as a step holds; 0 if unknown."""
        return 0.0 if math.isinf(self.capacity) else self.capacity / max(self._mean_seconds, FAMILY.frame_seconds)

    def spare_requests(self, demands: Sequence[float], max_num_seqs: int) -> int:
        """Returns how many more live streams can be served in time, given the demand of each of the present ones.

        One is always possible. If even one alone would be slower than real time, streams share the batch.
        """
        if not self.real_time:
            return max_num_seqs - len(demands)
        if math.isinf(self.capacity):
            return max(1, max_num_seqs)
        return max(int((self.capacity - sum(demands)) / HEADROOM), 0 if demands else 1)
