"""Measurements: the playback of a stream, simulated from the arrival times of its chunks, and statistics of a load."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import first_audible

PREROLL_SECONDS = 0.1
"""A player starts when it has buffered this much audio, or all of it."""

SAMPLE_BYTES = 2

Loop = Literal["open", "closed", "live", "burst"]
"""Poisson arrivals at a given rate; a fixed number of clients, each of which sends its next request when the last one
has ended; listeners that play one utterance after the other in real time; or requests that all arrive at once."""


class Arrival(Struct, frozen=True):
    """A chunk of audio: its arrival time in seconds from the request, and its number of samples."""

    at: float
    samples: int


class Playback(Struct, frozen=True):
    """Timing of a stream in seconds. Times count from the request."""

    first_byte: float
    first_playable: float
    """When a player can start: `PREROLL_SECONDS` of audio are buffered, or all of it."""
    ttfa: float | None
    """Time to the first audible sample, including leading silence and stalls. None without an audible sample."""
    end: float
    """Arrival of the last chunk."""
    duration: float
    """Duration of the audio."""
    underruns: int
    """Number of times that playback stalled."""
    underrun_seconds: float
    """Total duration of the stalls."""
    longest_underrun: float
    """Duration of the longest stall."""
    gaps: tuple[float, ...]
    """Times between consecutive chunks."""

    @property
    def rtf(self) -> float:
        """Real-time factor: wall time per second of audio."""
        return self.end / self.duration

    @property
    def playback_end(self) -> float:
        """When a player that plays everything ends."""
        return self.first_playable + self.underrun_seconds + self.duration


def simulate(arrivals: Sequence[Arrival], audible: int | None) -> Playback:
    """Simulates playback in real time; `audible` is the index of the first audible sample.

    A chunk that arrives after its first sample is due stalls playback. Raises IndexError without arrivals.
    """
    buffered = accumulate(arrival.samples for arrival in arrivals)
    preroll = PREROLL_SECONDS * FAMILY.sample_rate
    start = next((each.at for each, held in zip(arrivals, buffered, strict=True) if held >= preroll), arrivals[-1].at)
    stalls: list[tuple[int, float]] = []
    waited, position = 0.0, 0
    for arrival in arrivals:
        late = arrival.at - (start + position / FAMILY.sample_rate + waited)
        if late > 0:
            stalls.append((position, late))
            waited += late
        position += arrival.samples
    ttfa = None
    if audible is not None:
        ttfa = start + audible / FAMILY.sample_rate + sum(late for at, late in stalls if at <= audible)
    return Playback(
        first_byte=arrivals[0].at,
        first_playable=start,
        ttfa=ttfa,
        end=arrivals[-1].at,
        duration=position / FAMILY.sample_rate,
        underruns=len(stalls),
        underrun_seconds=waited,
        longest_underrun=max((late for _, late in stalls), default=0.0),
        gaps=tuple(after.at - before.at for before, after in pairwise(arrivals)),
    )


class PlaybackRecorder:
    """Records the arrival of a PCM stream's bytes, in chunks of any size."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._samples = 0
        self._odd = b""
        self._audible: int | None = None

    def add(self, at: float, data: bytes) -> None:
        """Records `data` (16-bit little-endian mono PCM), which arrived `at` seconds after the request."""
        data = self._odd + data
        whole = len(data) - len(data) % SAMPLE_BYTES
        self._odd = data[whole:]
        if not whole:
            return
        if self._audible is None:
            first = first_audible(data[:whole])
            self._audible = None if first is None else self._samples + first
        self._arrivals.append(Arrival(at, whole // SAMPLE_BYTES))
        self._samples += whole // SAMPLE_BYTES

    def playback(self) -> Playback | None:
        """Returns the simulated playback; None if no audio arrived."""
        return simulate(self._arrivals, self._audible) if self._arrivals else None


class Outcome(Struct, frozen=True):
    """The outcome of a request: its playback, or the kind of its failure."""

    playback: Playback | None = None
    error: str | None = None
    due: float = 0.0
    """When the request was due, by the monotonic clock."""
    seconds: float = 0.0
    """From then to the end of the response."""


class Spread(Struct, frozen=True):
    """A distribution, in the unit of its values."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Point(Struct, frozen=True):
    """A load and its measurements. Times in seconds; None if no request has a value."""

    loop: Loop
    load: float
    """Concurrent clients (closed loop), or requests per second (open loop)."""
    requests: int
    errors: dict[str, int]
    """Failed requests by kind."""
    wall_seconds: float
    """From the first request to the last byte."""
    audio_seconds: float
    audio_seconds_per_second: float
    requests_per_second: float
    """Completed requests per second."""
    first_byte: Spread | None
    first_playable: Spread | None
    ttfa: Spread | None
    gap: Spread | None
    """Times between chunks of a stream."""
    rtf: Spread | None
    silent: int
    """Completed requests without an audible sample."""
    underrun_share: float | None
    """Share of completed requests with underruns."""
    underrun_seconds: float
    """Total duration of underruns."""


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the summary of a distribution; None without values."""
    if not values:
        return None
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
    return Spread(math.fsum(values) / len(values), p50, p95, p99, max(values))


def summarize(loop: Loop, load: float, outcomes: Sequence[Outcome], wall_seconds: float) -> Point:
    """Returns the measurements of a load point."""
    played = [outcome.playback for outcome in outcomes if outcome.playback is not None]
    audio = math.fsum(playback.duration for playback in played)
    return Point(
        loop=loop,
        load=load,
        requests=len(outcomes),
        errors=dict(sorted(Counter(outcome.error for outcome in outcomes if outcome.error is not None).items())),
        wall_seconds=wall_seconds,
        audio_seconds=audio,
        audio_seconds_per_second=audio / wall_seconds,
        requests_per_second=len(played) / wall_seconds,
        first_byte=spread([playback.first_byte for playback in played]),
        first_playable=spread([playback.first_playable for playback in played]),
        ttfa=spread([playback.ttfa for playback in played if playback.ttfa is not None]),
        gap=spread([gap for playback in played for gap in playback.gaps]),
        rtf=spread([playback.rtf for playback in played]),
        silent=sum(playback.ttfa is None for playback in played),
        underrun_share=sum(playback.underruns > 0 for playback in played) / len(played) if played else None,
        underrun_seconds=math.fsum(playback.underrun_seconds for playback in played),
    )
