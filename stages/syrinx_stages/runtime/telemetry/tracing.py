"""Tracing of requests: whether it is configured, and the spans of the requests that a replica serves.

Without tracing this module imports nothing, and its calls return at their first check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from syrinx_stages.connector.base import Claim
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.runtime.errors import StartError

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from syrinx_stages.runtime.telemetry.otel import Attributes, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


def open_tracer(stage: str, pipeline: str, replica: str, environment: Mapping[str, str]) -> Tracer | None:
    """Returns the tracer of a process; None unless the environment names an OTLP endpoint. Raises `StartError`."""
    name = next((each for each in _ENDPOINTS if environment.get(each)), None)
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if name is None or disabled or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    if not environment[name].startswith(("http://", "https://")):
        raise StartError(f"{name}: {environment[name]!r} is not accepted; expected a URL such as http://collector:4318")
    protocol = next((each for each in _PROTOCOLS if environment.get(each)), None)
    if protocol is not None and environment[protocol] != _PROTOCOL:
        raise StartError(
            f"{protocol}: {environment[protocol]!r} is not supported; set {_PROTOCOL}, and in {name} the collector's "
            "port for it, usually 4318"
        )
    try:
        from syrinx_stages.runtime.telemetry.otel import Tracer
    except ModuleNotFoundError as error:
        raise StartError(
            f"{name} is set, but there is no module {error.name}: install syrinx[tracing], or unset the variable"
        ) from None
    resource = {"service.name": f"syrinx-{stage}", "service.namespace": pipeline, "service.instance.id": replica}
    return Tracer(version("syrinx"), resource)


@dataclass
class _Phase:
    """The current phase of a traced request."""

    name: str
    parent: Context
    since: int
    """Unix nanoseconds."""
    attributes: Attributes


class RequestTraces:
    """The spans of the requests that one replica of a stage owns: one for each phase, recorded when the phase ends.

    All are children of the gateway's span, so an owner that dies leaves no span without a parent. Calls for requests
    that are not traced do nothing.
    """

    def __init__(self, tracer: Tracer | None, stage: str, replica: str) -> None:
        self._tracer = tracer
        self._stage = stage
        self._replica = replica
        self._phases: dict[str, _Phase] = {}

    def claimed(self, claim: Claim, phase: str) -> None:
        """Begins the first phase of a request that was claimed now."""
        request = claim.request
        if self._tracer is None or not request.traceparent:
            return
        parent = self._tracer.parent(request.traceparent, request.tracestate)
        if parent is not None:
            attributes: Attributes = {
                "syrinx.request.id": request.id,
                "syrinx.task_type": request.task_type,
                "syrinx.replica": self._replica,
                "syrinx.takeover": claim.redelivered,
            }
            self._phases[request.id] = _Phase(phase, parent, time.time_ns(), attributes)

    def record_wait(self, claim: Claim) -> None:
        """Records the span `queue`, from the submission of a request to its claim."""
        phase = self._phases.get(claim.request.id)
        if phase is not None and self._tracer is not None:
            submitted = int(claim.entry_id.partition("-")[0]) * 1_000_000
            self._tracer.record("queue", phase.parent, min(submitted, phase.since), phase.since, phase.attributes)

    def begin(self, request_id: str, phase: str, seconds_ago: float = 0.0, after: str | None = None) -> None:
        """Ends the current phase of a request, if it is `after`, and begins the next one, `seconds_ago`."""
        current = self._phases.get(request_id)
        if current is not None and after in (None, current.name):
            at = time.time_ns() - round(seconds_ago * 1e9)
            self._record(current, at, {})
            current.name, current.since = phase, at

    def ended(self, request_id: str, frames: int, end: End) -> None:
        """Ends the last phase of a request whose end was written at `frames`."""
        if (phase := self._phases.pop(request_id, None)) is not None:
            error = None if end.reason is not EndReason.ERROR or end.param else "stage_failed"
            outcome: Attributes = {"syrinx.frames": frames, "syrinx.outcome": end.reason}
            self._record(phase, time.time_ns(), outcome, error)

    def dropped(self, request_id: str) -> None:
        """Ends the current phase of a request that this replica no longer serves."""
        if (phase := self._phases.pop(request_id, None)) is not None:
            self._record(phase, time.time_ns(), {"syrinx.outcome": "dropped"})

    def _record(self, phase: _Phase, end: int, attributes: Attributes, error: str | None = None) -> None:
        assert self._tracer is not None
        name = f"{self._stage}.{phase.name}"
        self._tracer.record(name, phase.parent, phase.since, end, {**phase.attributes, **attributes}, error)
