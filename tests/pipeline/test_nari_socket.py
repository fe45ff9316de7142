"""`/v1/audio/speech/ws`: the messages of Nari's server, as tts-bench sends them with `--transport websocket`."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from support.speech_socket import serving
from support.stages import Pipeline, pipeline
from syrinx_stages.contract.api import NARI_STREAM_PATH
from syrinx_stages.gateway.socket.nari import PROTOCOL
from syrinx_stages.model.describe import describe

TEXT = "The old teacher found two heavy bags."
AUDIO = {"encoding": "pcm_s16le", "sample_rate": 24000, "channels": 1}
START = {"model": "syrinx-us", "voice": "us", "language": "English", "response_format": "pcm", "seed": 5}


@pytest.fixture
async def stages() -> AsyncIterator[Pipeline]:
    async with pipeline(reading=describe("bundled").reading) as running:
        yield running


@pytest.fixture
async def url(stages: Pipeline) -> AsyncIterator[str]:
    async with serving(stages.streams) as (it, _, _):
        yield it
    assert len(stages.streams) == 0, "a request was not released"


class Caller:
    """A client that reads audio and messages as they come."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.chunks, self.others = socket, list[bytes](), list[dict[str, Any]]()

    async def send(self, kind: str, **content: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **content}))

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            received = await self.socket.recv()
            if isinstance(received, bytes):
                self.chunks.append(received)
            elif (message := json.loads(received))["type"] == kind:
                return message
            else:
                self.others.append(message)


@pytest.fixture
async def caller(url: str) -> AsyncIterator[Caller]:
    address = url.replace("http", "ws", 1) + NARI_STREAM_PATH
    async with connect(address, proxy=None, subprotocols=[PROTOCOL]) as socket:
        yield Caller(socket)


async def configured(caller: Caller) -> None:
    assert caller.socket.subprotocol == PROTOCOL
    created = await caller.until("session.created")
    assert created == {"type": "session.created", "protocol": PROTOCOL, "audio": AUDIO}
    await caller.send("request.start", **START)
    await caller.until("request.configured")
    assert not caller.others


async def test_a_text_in_numbered_pieces_is_spoken_as_a_request_with_it(url: str, caller: Caller) -> None:
    await configured(caller)
    words = TEXT.split(" ")
    for number, word in enumerate(words):
        await caller.send("input_text.append", sequence=number, text=word if word == words[-1] else f"{word} ")
        acknowledged = await caller.until("input_text.ack")
        assert (acknowledged["event"], acknowledged["sequence"]) == ("input_text.append", number)
    await caller.send("input_text.end", sequence=len(words))
    done = await caller.until("response.done")
    assert done["stop_reason"] == "stop" and done["audio_chunks"] == len(caller.chunks)
    started = next(each for each in caller.others if each["type"] == "response.started")
    assert (started["audio"], started["request_id"]) == (AUDIO, done["request_id"])
    ended = next(each for each in caller.others if each["type"] == "input_text.ack")
    assert (ended["event"], ended["sequence"]) == ("input_text.end", len(words))
    await caller.socket.wait_closed()
    assert caller.socket.close_code == 1000
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        fields = {"input": TEXT, "seed": 5, "voice": "us", "response_format": "pcm", "non_streaming_mode": False}
        answer = await http.post(f"{url}/v1/audio/speech", json=fields | {"language": "English"})
    assert b"".join(caller.chunks) == answer.content


async def test_a_cancellation_ends_the_response(caller: Caller) -> None:
    await configured(caller)
    await caller.send("input_text.append", sequence=0, text=f"{TEXT} " * 4)
    await caller.until("response.started")
    await caller.send("response.cancel")
    assert (await caller.until("response.done"))["stop_reason"] == "canceled"
    await caller.socket.wait_closed()
    assert caller.socket.close_code == 1000


@pytest.mark.parametrize(
    ("kind", "content", "param", "message"),
    [
        ("request.start", {**START, "voice": "dora"}, "voice", "'dora' is unknown"),
        ("request.start", {**START, "text_mode": "sentences"}, "text_mode", "is not a field of request.start"),
        ("request.start", {**START, "request_id": "mine"}, "request_id", "is not a field of request.start"),
        ("request.start", {"session": START}, "session", "is not a field of request.start"),
        ("input_text.append", {"sequence": 0, "text": "The"}, "type", "the first message must be request.start"),
        ("input.text", {"text": "The"}, "type", "'input.text' is unknown; accepted: request.start, input_text.append"),
        ("request.start", {"ref_audio": "x" * 70_000}, "message", "larger than 64 KB"),
        ("request.start", {**START, "stream": True}, "stream", "is not a field of request.start; leave it out"),
        ("request.start", {**START, "text": TEXT}, "text", "send the text with input_text.append"),
    ],
)
async def test_an_error_names_the_field_and_ends_the_connection(
    caller: Caller, kind: str, content: dict[str, object], param: str, message: str
) -> None:
    await caller.send(kind, **content)
    error = (await caller.until("error"))["error"]
    assert error["param"] == param and message in error["message"]
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    await caller.socket.wait_closed()
    assert caller.socket.close_code == 1008
    assert [each["type"] for each in caller.others] == ["session.created"]


async def test_fields_without_effect_are_named_once_it_is_configured(caller: Caller) -> None:
    await caller.send("request.start", gain=3, **START)
    assert (await caller.until("request.configured"))["warnings"] == [
        "gain is ignored: the volume is that of the voice"
    ]


@pytest.mark.parametrize("pieces", [["..."], [""], []], ids=["no word", "empty", "none"])
async def test_a_text_without_words_is_acknowledged_and_ends(caller: Caller, pieces: list[str]) -> None:
    await configured(caller)
    for number, piece in enumerate(pieces):
        await caller.send("input_text.append", sequence=number, text=piece)
    await caller.send("input_text.end", sequence=len(pieces))
    done = await caller.until("response.done")
    assert (done["stop_reason"], done["audio_chunks"], caller.chunks) == ("stop", 0, [])
    acknowledged = [each["sequence"] for each in caller.others if each["type"] == "input_text.ack"]
    assert acknowledged == list(range(len(pieces) + 1))
    await caller.socket.wait_closed()
    assert caller.socket.close_code == 1000


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("input_text.append", {"sequence": 1, "text": "The"}, "sequence: is 1; the next one is 0"),
        ("input_text.append", {"text": "The"}, "sequence: is required; the next one is 0"),
        ("input_text.append", {"sequence": "0", "text": "The"}, "sequence: is a text; send a whole number"),
        (
            "input_text.append",
            {"sequence": 0, "text": "x" * 5000},
            "text: an utterance has at most 4,096 characters; end it with input_text.end, and send the rest as another "
            "one",
        ),
        ("request.start", START, "type: request.start was sent before; a connection has one utterance"),
    ],
    ids=["another number", "no number", "a text", "long", "again"],
)
async def test_a_message_out_of_place_is_an_error(caller: Caller, kind: str, content: dict, message: str) -> None:
    await configured(caller)
    await caller.send(kind, **content)
    assert (await caller.until("error"))["error"]["message"] == message


@pytest.mark.parametrize("kind", ["input_text.append", "input_text.end"])
async def test_a_text_that_has_ended_is_not_continued(caller: Caller, kind: str) -> None:
    await configured(caller)
    await caller.send("input_text.append", sequence=0, text=f"{TEXT} " * 40)
    await caller.send("input_text.end", sequence=1)
    await caller.send(kind, sequence=2, text="More.")
    error = (await caller.until("error"))["error"]
    assert error["message"] == "type: the text has ended; a connection has one utterance"
