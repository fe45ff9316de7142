"""What a recorder hears of a stream, from when its pieces arrived. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import first_audible

PREROLL_SECONDS = 0.1
"""A player starts once it holds this much audio, or all of it."""

SAMPLE_BYTES = 2


class Arrival(Struct, frozen=True):
    """A piece of audio: when it came (seconds from the request) and how many samples it brought."""

    at: float
    samples: int


class Playback(Struct, frozen=True):
    """What was heard. All in seconds; times count from the request."""

    first_byte: float
    first_playable: float
    """When a player could start: `PREROLL_SECONDS` of audio were there, or all of it."""
    ttfa: float | None
    """When the first audible sample is heard: leading silence and stalls before it count. None: never."""
    end: float
    """When the last piece came."""
    duration: float
    """Of the audio."""
    underruns: int
    """Times playback had to wait."""
    underrun_seconds: float
    """How long it waited, in all."""
    gaps: tuple[float, ...]
    """Between one piece and the next."""

    @property
    def rtf(self) -> float:
        """Wall seconds per audio second."""
        return self.end / self.duration


def simulate(arrivals: Sequence[Arrival], audible: int | None) -> Playback:
    """Plays a stream at its own speed from the moment it is playable; `audible` is its first audible sample.

    A piece that comes after its first sample was due stalls playback until it is there.
    """
    if not arrivals:
        raise ValueError("no audio arrived")
    start = _playable(arrivals)
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


def _playable(arrivals: Sequence[Arrival]) -> float:
    held = 0
    for arrival in arrivals:
        held += arrival.samples
        if held >= PREROLL_SECONDS * FAMILY.sample_rate:
            return arrival.at
    return arrivals[-1].at


class PlaybackRecorder:
    """Takes a PCM stream's bytes as they come, however they are cut, and remembers what playback needs."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._samples = 0
        self._odd = b""
        self._audible: int | None = None

    def add(self, at: float, data: bytes) -> None:
        """`data` (16-bit little-endian mono PCM) came `at` seconds after the request."""
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

    @property
    def has_audio(self) -> bool:
        """Whether any audio came."""
        return bool(self._arrivals)

    def playback(self) -> Playback:
        """What was heard."""
        return simulate(self._arrivals, self._audible)
