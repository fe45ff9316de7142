"""The client of a request: what it has got, how a player would play it, and the metrics of that."""

from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, SpeechRequest
from syrinx_stages.contract.silence import first_audible
from syrinx_stages.gateway.clients.client import count_audio, count_request
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.outcomes import OutcomeTracker, StreamOutcome
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.telemetry.metrics import Metrics


class Playback:
    """Simulates a player that starts with the first delivered chunk and stalls whenever its buffer is empty.

    All times are seconds of one monotonic clock; `accepted` is when the request was accepted. `speed` is the speed at
    which the audio is played.
    """

    def __init__(self, accepted: float, speed: float = 1.0) -> None:
        self.accepted = accepted
        self._rate = speed * FAMILY.sample_rate
        """Samples played per second."""
        self.first_byte: float | None = None
        """Seconds from accepted to the first delivered byte."""
        self.ttfa: float | None = None
        """Seconds from accepted to the moment the player reaches the first audible sample, leading silence included."""
        self._plays_until: float | None = None

    def is_empty(self, now: float) -> bool:
        """Returns whether the player has nothing to play."""
        return self._plays_until is None or self._plays_until <= now

    def stall(self, now: float) -> float:
        """Returns the seconds that the buffer was empty up to `now` and that no earlier call has returned."""
        if self._plays_until is None:
            return 0.0
        stalled = max(0.0, now - self._plays_until)
        self._plays_until += stalled
        return stalled

    def deliver(self, now: float, pcm: bytes, offered: float | None = None) -> float:
        """Adds 16-bit mono PCM that was sent at `now`. Returns the same as `stall`.

        offered: when the gateway began to send it. A player that stalls from then until `now` stalls because the client
        did not read, which is not returned. None: at `now`.
        """
        stalled = self.stall(now if offered is None else offered)
        if self.first_byte is None:
            self.first_byte = now - self.accepted
        starts = now if self._plays_until is None else max(now, self._plays_until)
        if self.ttfa is None and (index := first_audible(pcm)) is not None:
            self.ttfa = starts + index / self._rate - self.accepted
        self._plays_until = starts + len(pcm) / 2 / self._rate
        return stalled


class Listener:
    """The client of one request."""

    def __init__(
        self,
        request: SpeechRequest,
        accepted: float,
        speed: float,
        metrics: Metrics,
        tracker: OutcomeTracker,
        span: SpeechSpan | None = None,
        text: LiveText | None = None,
    ) -> None:
        """`accepted` and `speed`: see `Playback`. span: that of the request, if it is traced.

        text: that of a request with `streams_text`, of which a moment later may count as `accepted`.
        """
        self.tracker = tracker
        self.outcome: EndReason = EndReason.CANCELLED
        """For the metrics: cancelled until delivered or failed."""
        self.frames = 0
        """Frames delivered to the client so far, trimmed silence included."""
        self.reason: EndReason | None = None
        """Why the stages have ended all speech; None until they do."""
        self.lacks_text = False
        """The client has nearly all that its text so far allows: a stall is for want of text."""
        self.served_by: tuple[str, str] | None = None
        """Talker and codec of the first audio."""
        self._request = request
        self._metrics = metrics
        self._span = span
        self._text = text
        self._playback = Playback(accepted, speed)
        self.samples = 0
        """Samples delivered to the client so far."""
        self._withheld = bytearray()
        """PCM of which the client has nothing yet: an encoder returns some input late."""
        self._offered: float | None = None
        """When the gateway began to send what the client has not accepted yet, in monotonic seconds; None if nothing
        is being sent."""
        self._stalled = False
        """Playback has stalled at least once."""

    @property
    def is_starved(self) -> bool:
        """Whether the client of a stream has nothing to play, and not for want of text."""
        return self._request.live and not self.lacks_text and self._playback.is_empty(monotonic())

    @property
    def may_have_audio(self) -> bool:
        """Whether the client may have received audio. A whole response is sent when it is complete."""
        return self._request.live and self.frames > 0

    def offer(self) -> None:
        """Records that the gateway begins to send data to the client, which may not accept it at once."""
        self._offered = monotonic()

    def delivered(self, pcm: bytes, frames: int, *, sent: bool) -> None:
        """Records that PCM up to a frame was passed to the transport, or added to a whole response.

        sent: whether any data was. What an encoder withholds is played with the next data.
        """
        self.frames = frames
        self.samples += len(pcm) // 2
        if self._request.live:
            self._withheld += pcm
            if sent:
                self.flushed()

    def flushed(self) -> None:
        """Records that all data was passed to the transport."""
        offered, self._offered = self._offered, None
        if self._withheld:
            pcm = bytes(self._withheld)
            self._withheld.clear()
            self._play(pcm, offered)

    def _play(self, pcm: bytes, offered: float | None) -> None:
        playback = self._playback
        first, before_ttfa = playback.first_byte is None, playback.ttfa is None
        if first and self._text is not None:
            playback.accepted = self._text.served_from(playback.accepted)
        stalled = playback.deliver(monotonic(), pcm, offered)
        if self.lacks_text:
            stalled = 0.0
        if first:
            self._metrics[m.LIVE_STREAMS].inc()
            assert playback.first_byte is not None
            self._metrics[m.FIRST_BYTE].labels(self._request.task_type).observe(playback.first_byte)
            if self._span is not None:
                self._span.set_first_byte(self._request, playback.first_byte)
        if before_ttfa and playback.ttfa is not None:
            exemplar = None if self._span is None else self._span.exemplar
            self._metrics[m.TTFA].labels(self._request.task_type).observe(playback.ttfa, exemplar)
            self.tracker.first_audible(playback.ttfa)
        if first or stalled:
            self._record_stall(stalled)

    def record_ongoing_stall(self) -> None:
        """Records the stall of a player whose buffer is empty, even if no audio follows."""
        stalled = self._playback.stall(monotonic() if self._offered is None else self._offered)
        if stalled and not self.lacks_text:
            self._record_stall(stalled)

    def _record_stall(self, seconds: float) -> None:
        """Records a stall while the settings that caused it are in force; 0 seconds creates the series at 0."""
        self._metrics[m.UNDERRUNS].labels(self._request.task_type).inc(seconds > 0 and not self._stalled)
        self._metrics[m.UNDERRUN_SECONDS].labels(self._request.task_type).inc(seconds)
        if seconds > 0:
            self._stalled = True
            self.tracker.settle(StreamOutcome.INTERRUPTED)

    def complete(self) -> None:
        """Records that the client has received everything."""
        assert self.reason is not None
        self.outcome = self.reason

    def discard(self) -> None:
        """Records that the client does not get what was added to a whole response."""
        self.frames = self.samples = 0

    def record_outcome(self) -> None:
        """Counts the request. Call it once, when the request is over."""
        if self._span is not None:
            self._span.set_outcome(self.outcome, self.frames, self.served_by)
        count_request(self._metrics, self._request.task_type, self.outcome)
        if self._playback.first_byte is not None:
            self._metrics[m.LIVE_STREAMS].dec()
        if self.reason is None:
            self.record_ongoing_stall()
        self.tracker.ended(self.outcome)
        if not self.frames:
            return
        seconds = self.samples / FAMILY.sample_rate
        self._metrics[m.AUDIO_SECONDS].labels(self._request.task_type).inc(seconds)
        count_audio(self._metrics, seconds)
        if self.outcome in (EndReason.STOP, EndReason.LENGTH, EndReason.INCOMPLETE):
            elapsed = monotonic() - self._playback.accepted
            self._metrics[m.REQUEST_SECONDS].labels(self._request.task_type).observe(elapsed)
