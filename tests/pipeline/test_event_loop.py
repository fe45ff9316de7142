"""Attacks on a gateway process: nothing that a client sends holds its event loop, so streams go on meanwhile."""

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import av
import httpx
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from support.gateway import Script, Stages, base_checkpoint, gateway_process
from support.process import StageProcess
from support.speech_socket import connected
from support.waiting import until
from support.watched_gateway import REPORT

MAX_HOLD = 10.0
"""Milliseconds."""
MAX_COPY = 25.0
"""Milliseconds in which 20 MB of a reference, or 4 MB a few times, are copied to memory that is new to the process."""
ATTEMPTS = 10
PATH = "/v1/audio/speech"
MB = 2**20
JSON = b"Content-Type: application/json"


@dataclass
class Target:
    """A gateway process that measures what holds its event loop."""

    process: StageProcess
    stages: Stages
    http: httpx.AsyncClient

    async def holds(self) -> tuple[float, list[tuple[float, str]]]:
        """Returns the longest hold of the GIL and those of callbacks, in milliseconds, since the last call."""
        seen = self.process.errors.count(REPORT)
        os.kill(self.process.process.pid, signal.SIGUSR1)
        await until(lambda: self.process.errors.count(REPORT) > seen, "the gateway reports")
        report = json.loads(self.process.errors.rpartition(REPORT)[2].splitlines()[0])
        return report["gil"], report["callbacks"]

    @property
    def port(self) -> int | None:
        return urlsplit(self.process.line["url"]).port

    async def send(self, data: bytes) -> None:
        """Sends bytes on a new connection and reads the first bytes of the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            await reader.read(1000)
        writer.close()

    async def post(self, body: bytes) -> httpx.Response:
        """Sends a body and returns the response."""
        return await self.http.post(PATH, content=body, headers={"Content-Type": "application/json"})


@contextlib.asynccontextmanager
async def target(directory: Path, **config: object) -> AsyncIterator[Target]:
    # A busy machine is no reason to refuse requests.
    config |= {"module": "support.watched_gateway", "gateway": {"max_queue_seconds": 600.0}}
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    async with gateway_process(directory, environment, **config) as running:
        it = Target(*running)
        await it.post(b'{"input": "warm up"}')
        await it.holds()
        yield it


@pytest.fixture(params=["bundled", "cloning"])
async def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    model = "bundled" if request.param == "bundled" else base_checkpoint(tmp_path / "base")
    async with target(tmp_path, model=model) as it:
        yield it


def json_bombs(size: int) -> Iterator[tuple[str, bytes]]:
    """Yields bodies of about `size` bytes that take long to parse."""
    keys = b",".join(b'"%x":0' % key for key in range(size // 10))
    yield "unknown keys", b"{" + keys + b"}"
    yield "unknown extra params", b'{"input":"a","extra_params":{' + keys + b"}}"
    yield "objects", b'{"input":[' + b"{}," * (size // 3) + b"{}]}"
    yield "ignored numbers", b'{"input":"a","speaker_embedding":[' + b"1.5," * (size // 4) + b"1]}"
    yield "nesting", b'{"input":"a","user":' + b"[" * size + b"}"
    yield "long name", b'{"' + b"a" * size + b'":1}'
    yield "long text", b'{"input":"' + b"a" * size + b'"}'
    yield "escaped text", b'{"input":"' + b"\\u0041" * (size // 6) + b'"}'
    yield "raw line breaks", b'{"input":"' + b"a\n" * (size // 2) + b'"}'
    yield "byte-order mark", b'\xef\xbb\xbf{"input":"' + b"\\u0041" * (size // 6) + b'"}'
    yield (
        "numbers after a raw line break",
        b'{"input":"\n","speaker_embedding":[' + b"1.5," * min(size // 4, 2**14 - 9) + b"1]}",
    )
    yield "settings of another API", b'{"input":"a","voice_settings":{' + keys + b"}}"
    yield "references", b'{"input":"a","references":[' + b'{"a":1},' * (size // 8) + b"{}]}"
    yield "voices", b'{"input":"a","voice":[' + b'"us",' * (size // 5) + b'"us"]}'
    yield "repeated voices", b"{" + b'"voice":{"id":"us"},' * (size // 20) + b'"input":"a"}'
    yield "spaces", b'{"input":' + b" " * size + b'"a"}'
    yield "reference", b'{"input":"a","ref_text":"a","ref_audio":"' + b"A" * size + b'"}'
    yield "escaped reference", b'{"input":"a","ref_text":"a","ref_audio":"' + b"\\/" * (size // 2) + b'"}'
    yield "percent-encoded reference", b'{"input":"a","ref_text":"a","ref_audio":"' + b"%41" * (size // 3) + b'"}'
    yield "reference with controls", b'{"input":"a","ref_text":"a","ref_audio":"' + b"\\n" * (size // 2) + b'"}'


def audio_bombs() -> Iterator[tuple[str, bytes]]:
    """Yields small files whose audio is large."""
    samples = np.zeros((192_000 * 29, 2), "int16")
    samples[::50_000] = 3000
    for kind, rate, options in (
        ("FLAC", 192_000, {}),
        ("WAV", 192_000, {}),
        ("MP3", 48_000, {}),
        ("OGG", 48_000, {"subtype": "OPUS"}),
    ):
        out = io.BytesIO()
        soundfile.write(out, samples[: rate * 29, : 2 if kind != "WAV" else 1], rate, format=kind, **options)
        yield kind, out.getvalue()
    yield "Matroska", matroska(samples)


def matroska(samples: NDArray[np.int16]) -> bytes:
    """Returns a file that FFmpeg decodes; `samples` are stereo at 192 kHz."""
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as media:
        stream = media.add_stream("flac", rate=192_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "s16", "stereo")
        frame.sample_rate, frame.pts = 192_000, 0
        media.mux(stream.encode(frame))
        media.mux(stream.encode(None))
    return out.getvalue()


async def attack(
    target: Target, what: str, send: Callable[[], Awaitable[object]], max_gil: float = MAX_HOLD
) -> list[str]:
    """Returns a line for each hold that was too long, unless an attempt had none: a machine may stop for a moment."""
    slow: list[str] = []
    for _ in range(ATTEMPTS):
        await send()
        gil, callbacks = await target.holds()
        slow = [f"{what}: {ms} ms in {name}" for ms, name in callbacks if ms > MAX_HOLD]
        slow += [f"{what}: {gil} ms of the GIL"] * (gil > max_gil)
        if not slow:
            break
    return slow


@pytest.mark.parametrize("size", [60_000, MB - 100, 20 * MB])
async def test_json_bombs(attacked: Target, size: int) -> None:
    slow = []
    for what, body in json_bombs(size):
        large = "reference" in what and size > MB
        slow += await attack(attacked, what, partial(attacked.post, body), MAX_COPY if large else MAX_HOLD)
    assert not slow


def head(*headers: bytes) -> bytes:
    return b"\r\n".join([f"POST {PATH} HTTP/1.1".encode(), b"Host: x", JSON, *headers, b"", b""])


async def test_heads_and_chunks(tmp_path: Path) -> None:
    chunked = b"Transfer-Encoding: chunked"
    attacks = {
        "tiny headers": head(*[b"a:"] * 60_000),
        "99 headers": head(*[b"a" * 100 + b": b"] * 95),
        "long header": head(b"a: " + b"a" * 250_000),
        "key of 15 KB": head(b"Authorization: " + b"a" * 15_000, b"Content-Length: 0"),
        "tiny chunks": head(chunked) + b"1\r\n \r\n" * 160_000,
        "trailers": head(chunked) + b"0\r\n" + b"a:\r\n" * 60_000 + b"\r\n",
        "pipelined requests": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 3000,
        "long path": b"GET /" + b"%61" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    }
    slow = []
    async with target(tmp_path) as it:
        for what, data in attacks.items():
            slow += await attack(it, what, partial(it.send, data))
    assert not slow


async def test_long_audio_in_every_format_for_fast_and_slow_readers(tmp_path: Path) -> None:
    """Five minutes, whole and as streams; of some streams nothing is read."""
    slow = []
    async with target(tmp_path) as it:
        it.stages.script = Script(frames=4000, chunk=8)
        for audio_format in ("wav", "mp3", "opus", "flac"):
            fields = {"input": "a", "response_format": audio_format}
            body = json.dumps({**fields, "stream": False}).encode()
            slow += await attack(it, f"whole {audio_format}", partial(it.post, body))
        unread = [await asyncio.open_connection("127.0.0.1", it.port, limit=1) for _ in range(20)]
        for _, writer in unread:
            writer.transport.pause_reading()
            body = b'{"input":"a","stream_format":"sse"}'
            writer.write(head(b"Content-Length: %d" % len(body)) + body)
        body = b'{"input":"a","stream_format":"sse","speed":1.1}'
        slow += await attack(it, "events among slow readers", partial(it.post, body))
        for _, writer in unread:
            writer.transport.abort()
    assert not slow


async def test_audio_bombs(tmp_path: Path) -> None:
    """A small reference may decode to 45 MB. Only two are decoded at once."""
    slow = []
    async with target(tmp_path, model=base_checkpoint(tmp_path / "base")) as it:

        async def post_four(body: bytes) -> None:
            await asyncio.gather(*(it.post(body) for _ in range(4)))

        for what, data in audio_bombs():
            fields = {"input": "a", "ref_text": "a", "ref_audio": base64.b64encode(data).decode()}
            slow += await attack(it, f"{what} of {len(data)} bytes", partial(post_four, json.dumps(fields).encode()))
    assert not slow


def text_bombs() -> Iterator[tuple[str, dict[str, object], list[str]]]:
    """Yields configurations and pieces of text that take long to divide, to tokenize or to parse."""
    tokens, sentences = {"text_mode": "tokens"}, {"split_granularity": "clause"}
    yield "sentence ends without words", sentences, ["! " * 16_000, *["! "] * 300]
    yield "abbreviations", sentences, ["J. " * 10_000, *["J. "] * 300]
    yield "sentences", sentences, ["a. " * 200] * 4
    yield "one word in letters", tokens, ["a"] * 2000
    yield "white space", tokens, [" " * 4000, *["\n"] * 90]
    yield "numbers", tokens, ["5! " * 1300]
    yield "marks", tokens, ["e" + "\u0301" * 4000]
    yield "a piece that is too long", tokens, ["a" * 64_000] * 3


async def test_text_bombs(attacked: Target) -> None:
    """On a checkpoint that needs a reference the configuration is refused, and so is the text."""
    slow = []
    for what, config, pieces in text_bombs():

        async def send(config: dict[str, object] = config, pieces: list[str] = pieces) -> None:
            async with connected(attacked.process.line["url"]) as client:
                await client.send("session.config", **config)
                for piece in pieces:
                    await client.send("input.text", text=piece)
                await client.socket.send("[" * 60_000)
                await client.socket.ping()
                while True:
                    error = await client.until("error")
                    if error["message"].startswith("the message is not a JSON object"):
                        return

        slow += await attack(attacked, what, send)
    assert not slow
