"""The outcome of each streamed request: exactly one, counted as soon as it is known."""

import asyncio
from collections.abc import Callable
from enum import StrEnum

from msgspec import UNSET

from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.messages import EndReason, SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.metrics import Metrics


class StreamOutcome(StrEnum):
    """How a streamed request was served."""

    WELL = "well"
    """Heard in time and never interrupted, to its end or until the client left."""
    LATE = "late"
    """Not heard within the TTFA objective."""
    INTERRUPTED = "interrupted"
    """Playback underran."""
    INCOMPLETE = "incomplete"
    """No attempt at a segment of the text succeeded."""
    FAILED = "failed"
    """An error after admission; the audio is incomplete or missing."""
    REFUSED = "refused"
    """Not admitted, or removed from the queue."""
    VOID = "void"
    """Says nothing about the service: the client left before it heard anything, or the request was invalid."""


_OF_END = {
    EndReason.STOP: StreamOutcome.WELL,
    EndReason.LENGTH: StreamOutcome.WELL,
    EndReason.INCOMPLETE: StreamOutcome.INCOMPLETE,
    EndReason.REFUSED: StreamOutcome.REFUSED,
    EndReason.ERROR: StreamOutcome.FAILED,
}


class OutcomeTracker:
    """Finds the outcome of one request from its events. The first outcome that is known stands."""

    def __init__(self, objective: float | None, count: Callable[[StreamOutcome], None]) -> None:
        """`objective` is the TTFA in seconds; None if the request cannot be late. `count(outcome)` is called once."""
        self.outcome: StreamOutcome | None = None
        """None while it is not known."""
        self._objective = objective
        self._count = count
        self._is_audible = False

    def settle(self, outcome: StreamOutcome) -> None:
        """Counts an outcome, unless another one is known."""
        if self.outcome is None:
            self.outcome = outcome
            self._count(outcome)

    def first_audible(self, ttfa: float) -> None:
        """Records the first audible sample, `ttfa` seconds after the request was accepted."""
        self._is_audible = True
        if self._objective is not None and ttfa > self._objective:
            self.settle(StreamOutcome.LATE)

    def objective_passed(self) -> None:
        """Records that the TTFA objective has passed since the request was accepted."""
        if not self._is_audible:
            self.settle(StreamOutcome.LATE)

    def generated(self, reason: EndReason) -> None:
        """Records that the stages have generated all audio of a text."""
        if reason is EndReason.INCOMPLETE:
            self.settle(StreamOutcome.INCOMPLETE)

    def ended(self, reason: EndReason) -> None:
        """Records the end of the request. `CANCELLED`: the client has left."""
        left = StreamOutcome.WELL if self._is_audible else StreamOutcome.VOID
        self.settle(_OF_END.get(reason, left))


class StreamOutcomes:
    """Counts the streamed requests of a gateway and their outcomes."""

    def __init__(self, metrics: Metrics, live: LiveSettings[GatewaySettings], task_type: TaskType) -> None:
        self._metrics = metrics
        self._live = live
        self._task_type = task_type
        self._second, self._arrived = 0, 0
        """The last second with an arrival, and its arrivals."""

    def start(self) -> None:
        """Exports zeros, because `rate` ignores the first value of a series."""
        self._metrics[m.STREAMS_ACCEPTED].labels(self._task_type, "")
        self._metrics[m.STREAM_CHARACTERS].labels(self._task_type)
        for outcome in StreamOutcome:
            self._metrics[m.STREAM_OUTCOMES].labels(self._task_type, "", outcome)

    def open(self, request: SpeechRequest, accepted: float, text: LiveText | None = None) -> OutcomeTracker:
        """Returns the tracker of a request that was accepted at `accepted`, in monotonic seconds.

        text: that of a request with `streams_text`.

        A request for a whole file has an outcome too, but it is not counted.
        """
        if not request.live:
            return OutcomeTracker(None, lambda outcome: None)
        objective = self._live.current.ttfa_seconds.get(request.task_type)
        tracker = OutcomeTracker(objective, self._accept())
        if not request.streams_text:
            self.count_text(request.text)
        if objective is not None:
            self._check_later(tracker, objective, accepted, text)
        return tracker

    def _check_later(self, tracker: OutcomeTracker, objective: float, accepted: float, text: LiveText | None) -> None:
        """Checks the tracker when the objective has passed, which may be later than it seems now."""

        def check() -> None:
            if tracker.outcome is None:
                if text is None or text.served_from(accepted) + objective <= monotonic():
                    tracker.objective_passed()
                else:
                    self._check_later(tracker, objective, accepted, text)

        started = accepted if text is None else text.served_from(accepted)
        asyncio.get_running_loop().call_later(started + objective - monotonic(), check)

    def count_text(self, text: str) -> None:
        """Counts the characters of a complete text."""
        self._metrics[m.STREAM_CHARACTERS].labels(self._task_type).observe(len(text))

    def refuse(self) -> None:
        """Counts a streamed request that is refused before its body is known."""
        self._accept()(StreamOutcome.REFUSED)

    def _accept(self) -> Callable[[StreamOutcome], None]:
        """Counts a request as accepted under the arm in force. Returns what counts its outcome."""
        if (second := int(monotonic())) != self._second:
            if self._arrived:
                self._metrics[m.STREAM_ARRIVALS].observe(self._arrived)
            self._second, self._arrived = second, 0
        self._arrived += 1
        arm = self._live.current.arm
        labels = self._task_type, "" if arm is UNSET else arm
        self._metrics[m.STREAMS_ACCEPTED].labels(*labels).inc()
        return lambda outcome: self._metrics[m.STREAM_OUTCOMES].labels(*labels, outcome).inc()
