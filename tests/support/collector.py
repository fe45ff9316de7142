"""A collector of OpenTelemetry's protocol over HTTP on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from support.http_server import serve
from support.waiting import until


@dataclass
class ReceivedSpan:
    """A span as it was exported."""

    name: str
    trace: str
    id: str
    parent: str
    """Empty if it has none."""
    failed: bool
    state: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What was received so far."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def until(self, holds: Callable[[list[ReceivedSpan]], object], what: str) -> list[ReceivedSpan]:
        """Waits until `holds(spans)` is true and returns the spans."""
        await until(lambda: holds(self.spans), what)
        return self.spans


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Runs a collector for the duration of the block."""
    running = Collector()

    async def export(http: Request) -> Response:
        assert http.headers["content-type"] == "application/x-protobuf"
        running.headers.append(dict(http.headers))
        running.spans += _spans(ExportTraceServiceRequest.FromString(await http.body()))
        return Response(b"", media_type="application/x-protobuf")

    async with serve(Starlette(routes=[Route("/v1/traces", export, methods=["POST"])])) as url:
        running.url = url
        yield running


def _spans(exported: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            failed=span.status.code == Status.STATUS_CODE_ERROR,
            state=span.trace_state,
            attributes=_attributes(span.attributes),
            resource=_attributes(of_resource.resource.attributes),
        )
        for of_resource in exported.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    def value(each: Any) -> Any:
        kind = each.WhichOneof("value")
        return [value(item) for item in each.array_value.values] if kind == "array_value" else getattr(each, kind)

    return {pair.key: value(pair.value) for pair in pairs}
