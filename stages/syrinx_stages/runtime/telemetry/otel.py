"""Spans, recorded with the OpenTelemetry SDK and exported over OTLP/HTTP. Imported only if tracing is configured.

The standard `OTEL_*` variables configure sampler, endpoint, headers, batches and resource. A thread exports the spans
from a bounded queue: while the collector does not keep up, the oldest spans are dropped.
"""

import asyncio
from collections.abc import Mapping, Sequence
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CLOSE_SECONDS = 2.0
"""How long a stopping process waits for the export of its last spans."""
MAX_TRACE_STATE = 512
"""Characters of a `tracestate` that is propagated, the minimum that W3C Trace Context demands."""

_PROPAGATOR = TraceContextTextMapPropagator()

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class Tracer:
    """The tracer of a process. `resource` holds attributes of all spans, which the environment may override."""

    def __init__(self, version: str, resource: Mapping[str, str]) -> None:
        own = {**resource, "service.version": version}
        merged = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        self._provider = TracerProvider(resource=merged, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("syrinx", version)

    def start(self, name: str, traceparent: str, tracestate: str, attributes: Attributes) -> Span:
        """Starts a server span, in the trace of the headers if they are valid, else in a new one."""
        context = _PROPAGATOR.extract(_carrier(traceparent, tracestate), Context())
        return self._tracer.start_span(name, context, SpanKind.SERVER, attributes)

    def parent(self, traceparent: str, tracestate: str) -> Context | None:
        """Returns the context of a span of another process; None if it is invalid."""
        context = _PROPAGATOR.extract(_carrier(traceparent, tracestate), Context())
        return context if get_current_span(context).get_span_context().is_valid else None

    def record(
        self, name: str, parent: Context, start: int, end: int, attributes: Attributes, error: str | None = None
    ) -> None:
        """Records a span that has ended. Times are Unix nanoseconds; `error` is the type of its error."""
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=start)
        if error is not None:
            self.set_error(span, error)
        span.end(max(start, end))

    @staticmethod
    def headers(span: Span) -> dict[str, str]:
        """Returns the `traceparent` of a span, and the `tracestate` of its trace if there is one."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
        return carrier

    @staticmethod
    def set_error(span: Span, kind: str) -> None:
        """Marks a span as failed. `kind` is one of few constants, and never a text of a client."""
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR))

    async def close(self) -> None:
        """Exports what is queued, for up to `CLOSE_SECONDS`."""
        # A thread of its own: the loop waits for those of its executor.
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)


def _carrier(traceparent: str, tracestate: str) -> dict[str, str]:
    carrier = {"traceparent": traceparent}
    if tracestate and len(tracestate) <= MAX_TRACE_STATE:
        carrier["tracestate"] = tracestate
    return carrier
