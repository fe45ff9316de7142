"""Simulates the playback of a stream from the arrival times of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import first_audible

PREROLL_SECONDS = 0.1
"""A player starts when it has buffered this much audio, or all of it."""

SAMPLE_BYTES = 2


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
