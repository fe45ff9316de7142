"""Tracing of the stages: when it is on, what its export may cost, and that it costs nothing when it is off."""

import asyncio
import sys
import time

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from support.collector import collector
from support.http_server import ScriptedResponse, http_server
from support.submission import PlainSubmission
from support.waiting import DEADLINE
from syrinx_stages.connector.base import Claim, StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest, TaskType, decode_request, encode
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.outcomes import OutcomeTracker
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.runtime.telemetry.otel import Tracer
from syrinx_stages.runtime.telemetry.tracing import RequestTraces, open_tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
REQUEST = SpeechRequest(id="r", accepted_at=1.0, text="secret", task_type=TaskType.CUSTOM_VOICE)
TRACED = msgspec.structs.replace(REQUEST, traceparent=f"00-{TRACE}-{SPAN}-01")
SCOPE = {"type": "http", "method": "POST", "path": "/v1/audio/speech", "scheme": "http", "http_version": "1.1"}


def opened(**environment):
    return open_tracer("talker", "demo", "talker-0", environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"},
        {ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_tracing_is_off_without_an_endpoint_or_if_it_is_disabled(environment):
    assert opened(**environment) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({ENDPOINT: "c:4318"}, f"{ENDPOINT}: 'c:4318' is not accepted; expected a URL"),
        (
            {ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            f"OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not supported; set http/protobuf, and in {ENDPOINT} the",
        ),
    ],
)
def test_a_setting_that_would_lose_all_spans_is_an_error(environment, message):
    with pytest.raises(StartError) as caught:
        opened(**environment)
    assert str(caught.value).startswith(message)


def test_a_missing_extra_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "syrinx_stages.runtime.telemetry.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartError, match=r"there is no module opentelemetry\.sdk\.trace: install syrinx\[tracing\]"):
        opened(**{ENDPOINT: "http://c:4318"})


def test_a_request_without_a_trace_is_encoded_as_before():
    assert b"trace" not in encode(REQUEST)
    assert decode_request(encode(REQUEST)).traceparent == ""
    assert decode_request(encode(TRACED)) == TRACED


@pytest.mark.parametrize("request_", [REQUEST, msgspec.structs.replace(REQUEST, traceparent="00-0-0-01")])
def test_a_request_that_is_not_traced_has_no_phases(request_):
    tracer = opened(**{ENDPOINT: "http://127.0.0.1:9"})
    for traces in (RequestTraces(None, "talker", "t"), RequestTraces(tracer, "talker", "t")):
        traces.claimed(Claim("1-0", request_), "prepare")
        traces.record_wait(Claim("1-0", request_))
        traces.begin("r", "prefill")
        traces.ended("r", 1, End(EndReason.STOP))
        traces.dropped("r")
        assert not traces._phases


@pytest.fixture
def export(monkeypatch):
    """Sets the environment of an exporter, which reads it itself."""

    def to(url, **others):
        for name, value in {ENDPOINT: url, "OTEL_BSP_SCHEDULE_DELAY": "20", **others}.items():
            monkeypatch.setenv(name, value)
        return Tracer("1", {"service.name": "syrinx-talker", "service.instance.id": "talker-0"})

    return to


async def test_the_last_phase_has_the_outcome_and_frames(export):
    async with collector() as received:
        tracer = export(received.url)
        for index, end in enumerate(
            [
                End(EndReason.STOP),
                End(EndReason.ERROR, "secret"),
                End(EndReason.ERROR, "secret", "input"),
                End(EndReason.CANCELLED),
            ]
        ):
            traces = RequestTraces(tracer, "talker", "talker-0")
            traces.claimed(Claim("1-0", msgspec.structs.replace(TRACED, id=str(index)), redelivered=True), "prepare")
            traces.ended(str(index), 7, end)
        spans = await received.until(lambda spans: len(spans) == 4, "all spans")
        await tracer.close()
    assert {(span.trace, span.parent, span.name) for span in spans} == {(TRACE, SPAN, "talker.prepare")}
    assert all(span.attributes["syrinx.takeover"] and span.attributes["syrinx.frames"] == 7 for span in spans)
    described = sorted((s.attributes["syrinx.request.id"], s.attributes["syrinx.outcome"], s.failed) for s in spans)
    assert described == [("0", "stop", False), ("1", "error", True), ("2", "error", False), ("3", "cancelled", False)]
    assert "secret" not in repr(spans), "neither texts nor messages, which may quote them"


async def test_a_request_that_is_dropped_ends_its_phase(export):
    async with collector() as received:
        tracer = export(received.url)
        traces = RequestTraces(tracer, "codec", "codec-0")
        traces.claimed(Claim("1-0", TRACED), "wait")
        traces.begin("r", "decode", after="first_call")
        traces.dropped("r")
        traces.dropped("r")
        (span,) = await received.until(lambda spans: spans, "the span")
        await tracer.close()
    assert (span.name, span.attributes["syrinx.outcome"]) == ("codec.wait", "dropped")


async def test_the_environment_overrides_the_resource(export):
    async with collector() as received:
        tracer = export(received.url, OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="team=speech")
        tracer.start("x", "", "", {}).end()
        (span,) = await received.until(lambda spans: spans, "the span")
        await tracer.close()
    expected = {"service.name": "mine", "team": "speech", "service.instance.id": "talker-0", "service.version": "1"}
    assert span.resource.items() >= expected.items()


@pytest.mark.parametrize("hang", [True, False], ids=["silent", "refusing"])
async def test_a_dead_collector_neither_blocks_nor_grows_memory(export, hang):
    async with http_server(lambda request: ScriptedResponse(status=503, hang=hang)) as server:
        tracer = export(server.url if hang else "http://127.0.0.1:9", OTEL_BSP_MAX_QUEUE_SIZE="512")
        parent = tracer.parent(TRACED.traceparent, "")
        for _ in range(5000):
            tracer.record("x", parent, 1, 2, {})
        (processor,) = tracer._provider._active_span_processor._span_processors
        assert len(processor._batch_processor._queue) <= 512
        async with asyncio.timeout(DEADLINE):
            await tracer.close()


@pytest.mark.parametrize("ratio", [0, 1])
async def test_the_sampler_decides_whether_stages_and_exemplars_get_the_trace(export, ratio):
    settings = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
    tracer = export("http://127.0.0.1:9", **settings)
    span = SpeechSpan(tracer, {**SCOPE, "headers": []})
    assert int(span.traceparent[-2:], 16) & 1 == ratio
    fields = {"traceparent": span.traceparent, "tracestate": ""}
    assert span.fields == (fields if ratio else {})
    assert span.exemplar == ({"trace_id": span.traceparent.split("-")[1]} if ratio else None)
    await tracer.close()


async def test_an_oversized_tracestate_is_dropped(export):
    tracer = export("http://127.0.0.1:9")
    parent = TRACED.traceparent.encode()
    for state, kept in (("a=" + "x" * 100, True), (",".join(f"k{n}=" + "x" * 100 for n in range(6)), False)):
        headers = [(b"traceparent", parent), (b"tracestate", state.encode())]
        span = SpeechSpan(tracer, {**SCOPE, "headers": headers})
        assert span.fields["tracestate"] == (state if kept else "")
    await tracer.close()


def audio(frame):
    """A loud frame of audio, and the end after it."""
    pcm = np.full(FAMILY.frame_bytes // 2, 20_000, "<i2").tobytes()
    yield StreamEntry("r", StreamKind.AUDIO, Position(frame), Audio(pcm, "talker-0", "codec-0"))
    yield StreamEntry("r", StreamKind.AUDIO, Position(frame, END_SEQUENCE), End(EndReason.STOP))


async def exemplars(span):
    """Delivers a stream and returns the samples of its metrics that have an exemplar."""
    registry, source = CollectorRegistry(), PlainSubmission(REQUEST)
    for entry in audio(1):
        source.audio.put_nowait(entry)
    tracker = OutcomeTracker(None, lambda outcome: None)
    listener = Listener(REQUEST, time.monotonic(), 1.0, Metrics(registry), tracker, span)
    stream = SpeechStream(source, listener, 5.0)
    async for chunk in stream.audio():
        stream.delivered(chunk)
    listener.complete()
    listener.record_outcome()
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [sample for family in families for sample in family.samples if sample.exemplar]


async def test_the_histogram_of_ttfa_has_the_sampled_trace_as_exemplar(export):
    async with collector() as received:
        tracer = export(received.url)
        sampled = SpeechSpan(tracer, {**SCOPE, "headers": []})
        (sample,) = await exemplars(sampled)
        assert sample.name == "syrinx_ttfa_seconds_bucket"
        assert sample.exemplar.labels == {"trace_id": sampled.traceparent.split("-")[1]}
        assert 0 < sample.exemplar.value <= float(sample.labels["le"])
        await received.until(lambda spans: [span.name for span in spans] == ["gateway.first_byte"], "the span")
        not_sampled = f"00-{TRACE}-{SPAN}-00".encode()
        assert not await exemplars(SpeechSpan(tracer, {**SCOPE, "headers": [(b"traceparent", not_sampled)]}))
        assert not await exemplars(None)
        await tracer.close()
