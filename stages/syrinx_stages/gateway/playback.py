"""What a listener at playback speed would hear: time to first audio, and where playback would have waited. Pure."""

from __future__ import annotations

from syrinx_stages.contract.audio import SAMPLE_RATE, first_audible


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
        self.underruns = 0
        """How often playback would have waited."""
        self.underrun_seconds = 0.0
        """How long it would have waited altogether."""
        self._plays_until = 0.0

    def deliver(self, now: float, pcm: bytes) -> None:
        """Notes that `pcm` (16-bit mono) was handed to the client at `now`."""
        if self.first_byte is None:
            self.first_byte = now - self.accepted
            starts = now
        else:
            starts = max(now, self._plays_until)
            if now > self._plays_until:
                self.underruns += 1
                self.underrun_seconds += now - self._plays_until
        if self.ttfa is None and (at := first_audible(pcm)) is not None:
            self.ttfa = starts + at / SAMPLE_RATE - self.accepted
        self._plays_until = starts + len(pcm) / 2 / SAMPLE_RATE
