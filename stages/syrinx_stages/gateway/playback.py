"""Simulates a client that plays a stream as it arrives. Pure."""

from __future__ import annotations

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import first_audible


class Playback:
    """A virtual player that starts with the first delivered chunk and stalls whenever its buffer is empty.

    All times are seconds of one monotonic clock; `accepted` is when the request was accepted.
    """

    def __init__(self, accepted: float) -> None:
        self.accepted = accepted
        self.first_byte: float | None = None
        """Seconds from accepted to the first delivered byte."""
        self.ttfa: float | None = None
        """Seconds from accepted to the moment the player reaches the first audible sample, leading silence included."""
        self._plays_until: float | None = None

    def stall(self, now: float) -> float:
        """Returns the seconds that the buffer was empty up to `now` and that no earlier call has returned."""
        if self._plays_until is None:
            return 0.0
        stalled = max(0.0, now - self._plays_until)
        self._plays_until += stalled
        return stalled

    def deliver(self, now: float, pcm: bytes) -> float:
        """Adds 16-bit mono PCM that was sent at `now`. Returns the same as `stall`."""
        stalled = self.stall(now)
        if self.first_byte is None:
            self.first_byte = now - self.accepted
        starts = now if self._plays_until is None else self._plays_until
        if self.ttfa is None and (index := first_audible(pcm)) is not None:
            self.ttfa = starts + index / FAMILY.sample_rate - self.accepted
        self._plays_until = starts + len(pcm) / 2 / FAMILY.sample_rate
        return stalled
