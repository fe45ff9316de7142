"""What a listener at playback speed would hear: time to first audio, and where playback would have waited. Pure."""

from __future__ import annotations

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import first_audible


class Playback:
    """A virtual player: it starts with the first delivered chunk and waits only when it has nothing to play.

    All times are seconds of one monotonic clock; `accepted` is when the request was.
    """

    def __init__(self, accepted: float) -> None:
        self.accepted = accepted
        self.first_byte: float | None = None
        """Seconds from accepted to the first delivered byte."""
        self.ttfa: float | None = None
        """Seconds from accepted to the moment the player reaches the first audible sample: leading silence counts."""
        self._plays_until: float | None = None

    def wait(self, now: float) -> float:
        """Seconds that playback had nothing to play up to `now`; each is told once."""
        if self._plays_until is None:
            return 0.0
        waited = max(0.0, now - self._plays_until)
        self._plays_until += waited
        return waited

    def deliver(self, now: float, pcm: bytes) -> float:
        """Notes that `pcm` (16-bit mono) was handed to the client at `now`; returns what `wait` would have."""
        waited = self.wait(now)
        if self.first_byte is None:
            self.first_byte = now - self.accepted
        starts = now if self._plays_until is None else self._plays_until
        if self.ttfa is None and (at := first_audible(pcm)) is not None:
            self.ttfa = starts + at / FAMILY.sample_rate - self.accepted
        self._plays_until = starts + len(pcm) / 2 / FAMILY.sample_rate
        return waited
