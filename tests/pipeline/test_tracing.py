"""Traces of speech requests: what a collector receives from the processes of a pipeline."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from support.collector import Collector, ReceivedSpan, collector
from support.local_pipeline import local_pipeline
from support.speech_socket import connected
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.contract.api import SPEECH_STREAM_PATH
from syrinx_stages.contract.family import FAMILY

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "The farmer found two heavy bags."
LONG = (
    "The old teacher carried seven green apples before breakfast. Her brother opened a broken window for his friends. "
) * 3
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PHASES = ("queue", "talker.prepare", "talker.prefill", "talker.first_frame", "talker.generate")
PHASES += ("codec.wait", "codec.first_call", "codec.decode", "gateway.first_byte")
SERVER = "POST /v1/audio/speech"


class Running:
    """A traced pipeline and its collector."""

    def __init__(
        self, pipeline: LocalPipeline, client: httpx.AsyncClient, received: Collector, directory: Path
    ) -> None:
        self.pipeline, self.client, self.received, self.directory = pipeline, client, received, directory

    def logged(self, process: str) -> list[dict[str, str]]:
        """Returns the log of a process, each line of which is a JSON object."""
        return [json.loads(line) for line in (self.directory / f"{process}.log").read_text().splitlines()]

    async def speak(self, text: str = TEXT, traceparent: str = "", **fields: object) -> httpx.Response:
        body = {"input": text, "voice": "us", "response_format": "pcm", "seed": 1, **fields}
        headers = {"traceparent": traceparent, "tracestate": "vendor=a1"} if traceparent else {}
        async with asyncio.timeout(DEADLINE):
            return await self.client.post("/v1/audio/speech", json=body, headers=headers)

    async def trace(self, response: httpx.Response, *names: str) -> list[ReceivedSpan]:
        """Waits until spans of these names have been received of a response's trace, and returns all of them."""
        trace = trace_of(response)

        def complete(spans: list[ReceivedSpan]) -> bool:
            return not Counter(names) - Counter(span.name for span in spans if span.trace == trace)

        spans = await self.received.until(complete, f"the spans {names} of a trace")
        return [span for span in spans if span.trace == trace]


def trace_of(response: httpx.Response) -> str:
    version, trace, span, _ = response.headers["traceparent"].split("-")
    assert (version, len(trace), len(span)) == ("00", 32, 16)
    return trace


def only(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    (span,) = [each for each in spans if each.name == name]
    return span


def traced(name: str, endpoint: str, **spec: object) -> TTSPipeline:
    """Returns a pipeline that exports every trace."""
    spec["monitoring"] = {"tracing": {"endpoint": endpoint, "sampleRatio": 1}}
    head = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": name}}
    return msgspec.convert({**head, "spec": spec}, TTSPipeline)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    directory = tmp_path_factory.mktemp("logs")
    variables = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"}
    async with collector() as received:
        resource = traced("traced", received.url, gateway={"drainSeconds": 1}, talker={"replicas": 2})
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**variables, "LOG_FORMAT": "json"}.items():
                patch.setenv(name, value)
            async with (
                local_pipeline(resource, directory=directory) as local,
                httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
            ):
                yield Running(local, client, received, directory)


async def test_a_request_is_one_trace_through_all_processes(running: Running) -> None:
    response = await running.speak(traceparent=f"00-{TRACE}-{CALLER}-01")
    spans = await running.trace(response, SERVER, *PHASES)
    assert sorted(span.name for span in spans) == sorted([SERVER, *PHASES])
    server = only(spans, SERVER)
    assert (server.trace, server.parent) == (TRACE, CALLER), "the client's trace goes on"
    assert response.headers["traceparent"] == f"00-{TRACE}-{server.id}-01"
    assert {span.parent for span in spans if span is not server} == {server.id}
    assert {span.state for span in spans} == {"vendor=a1"}
    assert not any(span.failed for span in spans)
    services = {span.name.partition(".")[0]: span.resource["service.name"] for span in spans}
    assert services == {
        SERVER: "syrinx-gateway",
        "gateway": "syrinx-gateway",
        "queue": "syrinx-talker",
        "talker": "syrinx-talker",
        "codec": "syrinx-codec",
    }
    assert {span.resource["service.namespace"] for span in spans} == {"traced"}
    assert {headers["authorization"] for headers in running.received.headers} == {"secret"}
    check_attributes(spans, len(response.content) // FAMILY.frame_bytes)


def check_attributes(spans: list[ReceivedSpan], frames: int) -> None:
    """They describe the request without its text."""
    server = only(spans, SERVER).attributes
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/audio/speech",
        "http.response.status_code": 200,
        "gen_ai.request.model": "syrinx-us",
        "gen_ai.output.type": "speech",
        "gen_ai.response.finish_reasons": ["stop"],
        "syrinx.task_type": "CustomVoice",
        "syrinx.outcome": "stop",
        "syrinx.codec": "codec-0",
    }
    assert server.items() >= expected.items()
    assert server["syrinx.frames"] >= frames > 0, "with the frames of the trimmed silence"
    generate, decode = only(spans, "talker.generate").attributes, only(spans, "codec.decode").attributes
    assert generate["syrinx.replica"] == server["syrinx.talker"]
    assert generate["syrinx.frames"] == decode["syrinx.frames"] == server["syrinx.frames"]
    assert {span.attributes["syrinx.request.id"] for span in spans} == {server["syrinx.request.id"]}
    assert not any("farmer" in repr(span) for span in spans)


async def test_each_utterance_of_a_websocket_is_one_trace(running: Running) -> None:
    trace = TRACE.replace("0af7", "1bf7")
    headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
    async with connected(str(running.client.base_url).rstrip("/"), additional_headers=headers) as client:
        await client.send("session.config", text_mode="tokens")
        for _ in range(2):
            await client.send("input.text", text=TEXT)
            await client.send("input.done")
            await client.until("session.done")
    server = f"GET {SPEECH_STREAM_PATH}"
    names = Counter([server, *PHASES] * 2)
    spans = await running.received.until(
        lambda spans: not names - Counter(span.name for span in spans if span.trace == trace), "the spans"
    )
    spans = [span for span in spans if span.trace == trace]
    roots = {span.id for span in spans if span.name == server}
    assert len(roots) == 2
    assert {span.parent for span in spans} == {CALLER, *roots}
    assert not any(span.failed for span in spans)


async def test_a_request_that_the_client_does_not_sample_leaves_no_span(running: Running) -> None:
    other = TRACE.replace("0", "1")
    response = await running.speak(traceparent=f"00-{other}-{CALLER}-00")
    assert re.fullmatch(rf"00-{other}-[0-9a-f]{{16}}-00", response.headers["traceparent"])
    # Spans of a later request come after those of this one.
    await running.trace(await running.speak(), SERVER, *PHASES)
    assert other not in {span.trace for span in running.received.spans}


async def test_the_owner_after_a_crash_goes_on_with_the_trace(running: Running) -> None:
    body = {"input": LONG, "voice": "us", "response_format": "pcm", "stream": True, "seed": 2}
    killed = False
    async with asyncio.timeout(DEADLINE), running.client.stream("POST", "/v1/audio/speech", json=body) as response:
        async for _ in response.aiter_raw():
            if not killed:
                killed = True
                first = await running.trace(response, "talker.first_frame")
                owner = only(first, "talker.first_frame").attributes["syrinx.replica"]
                child = next(each for each in running.pipeline.processes if each.name == owner)
                os.killpg(child.pid, signal.SIGKILL)
    names = (SERVER, *PHASES, "talker.prepare", "talker.prefill", "talker.first_frame")
    spans = await running.trace(response, *names)
    takeovers = [span for span in spans if span.attributes.get("syrinx.takeover") and span.name.startswith("talker.")]
    assert {span.name for span in takeovers} == {name for name in PHASES if name.startswith("talker.")}
    assert {span.attributes["syrinx.replica"] for span in takeovers}.isdisjoint({owner})
    server = only(spans, SERVER)
    assert {span.parent for span in spans if span is not server} == {server.id}
    assert server.attributes["syrinx.outcome"] == "stop"


async def test_log_lines_name_the_request_and_its_trace(running: Running) -> None:
    body = {"input": LONG, "voice": "us", "response_format": "pcm", "stream": True, "seed": 2}
    pid = {child.stage: child.pid for child in running.pipeline.processes}
    with pytest.raises(httpx.RemoteProtocolError):
        async with asyncio.timeout(DEADLINE), running.client.stream("POST", "/v1/audio/speech", json=body) as response:
            trace = trace_of(response)
            os.killpg(pid["codec"], signal.SIGSTOP)  # however quick the machine, the stream outlives the drain
            os.killpg(pid["gateway"], signal.SIGTERM)
            try:
                async for _ in response.aiter_raw():
                    pass
            finally:
                os.killpg(pid["codec"], signal.SIGCONT)
    server = only(await running.trace(response, SERVER), SERVER)
    (line,) = [each for each in running.logged("gateway-0") if "was cut off" in each["message"]]
    expected = {"level": "warning", "request_id": server.attributes["syrinx.request.id"], "trace_id": trace}
    assert line.items() >= expected.items()
    for process in ("gateway-0", "talker-0", "talker-1", "codec-0"):
        assert all(each.keys() >= {"ts", "level", "logger", "message"} for each in running.logged(process))
