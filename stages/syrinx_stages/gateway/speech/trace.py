"""The server span of a speech request, by OpenTelemetry's conventions for HTTP and generative AI. Without any text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from syrinx_stages.contract.messages import EndReason, SpeechRequest

if TYPE_CHECKING:
    from syrinx_stages.runtime.telemetry.otel import Attributes, Tracer


class SpeechSpan:
    """The span of one request or batch, in the trace of its `traceparent` header if it has one."""

    def __init__(self, tracer: Tracer, scope: Scope) -> None:
        sent = Headers(scope=scope)
        attributes = {
            "http.request.method": scope.get("method", "GET"),
            "http.route": scope["path"],
            "url.path": scope["path"],
            "url.scheme": scope["scheme"],
            "network.protocol.version": scope["http_version"],
            "gen_ai.operation.name": "text_to_speech",
            "gen_ai.provider.name": "syrinx",
            "gen_ai.output.type": "speech",
        }
        self._tracer = tracer
        name = f"{scope.get('method', 'GET')} {scope['path']}"
        self._span = tracer.start(name, sent.get("traceparent", ""), sent.get("tracestate", ""), attributes)
        carrier = tracer.headers(self._span)
        self.traceparent = carrier.get("traceparent", "")
        """Identifies this span, also if it is not sampled."""
        self._tracestate = carrier.get("tracestate", "")

    @property
    def exemplar(self) -> dict[str, str] | None:
        """The trace as the exemplar of an observation; None if it is not sampled."""
        if not self._span.is_recording():
            return None
        return {"trace_id": f"{self._span.get_span_context().trace_id:032x}"}

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a `SpeechRequest` by which the stages continue the trace; none if it is not sampled."""
        if not self._span.is_recording():
            return {}
        return {"traceparent": self.traceparent, "tracestate": self._tracestate}

    def set_request(self, model: str, request: SpeechRequest) -> None:
        """Describes the request."""
        attributes: Attributes = {
            "gen_ai.request.model": model,
            "gen_ai.request.seed": request.seed,
            "syrinx.request.id": request.id,
            "syrinx.task_type": request.task_type,
        }
        self._span.set_attributes(attributes)

    def set_first_byte(self, request: SpeechRequest, seconds: float) -> None:
        """Records the time from the acceptance of a request to its first audio byte."""
        parent = self._tracer.parent(self.traceparent, self._tracestate)
        if parent is not None and self._span.is_recording():
            start = round(request.accepted_at * 1e9)
            attributes = {"syrinx.request.id": request.id}
            self._tracer.record("gateway.first_byte", parent, start, start + round(seconds * 1e9), attributes)

    def set_outcome(self, outcome: EndReason, frames: int, served_by: tuple[str, str] | None) -> None:
        """Describes how the stream ended. `served_by`: talker and codec, if audio has arrived."""
        self._span.set_attributes({"syrinx.outcome": outcome, "syrinx.frames": frames})
        if served_by is not None:
            self._span.set_attributes({"syrinx.talker": served_by[0], "syrinx.codec": served_by[1]})
        if outcome in (EndReason.STOP, EndReason.LENGTH, EndReason.INCOMPLETE):
            self._span.set_attribute("gen_ai.response.finish_reasons", [outcome.value])
        elif outcome is EndReason.ERROR:
            self._tracer.set_error(self._span, "stage_failed")

    def set_status(self, status: int) -> None:
        """Records the status of the response."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._tracer.set_error(self._span, str(status))

    def end(self) -> None:
        """Ends the span. Call it once, when the exchange is over."""
        self._span.end()
