"""What a client gets if the stages fail, and what happens if it disconnects or does not read."""

import asyncio
import json
import socket

import httpx
import pytest

from support.gateway import SERVED, Gateway, Script, events, gateway, tone
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.gateway.http.delivery import SEND_SECONDS, ClientConnection
from syrinx_stages.runtime.clock import monotonic

pytestmark = pytest.mark.virtual


INVALID, FAILED = End(EndReason.ERROR, "input: is too long", "input"), End(EndReason.ERROR, "gave up")
LATER = End(EndReason.ERROR, "gave up", retry_after=4.2)
SPEECHLESS = "the model ended this text before its first frame; try another seed"
ERRORS = {
    "a field": (Script(frames=0, end=INVALID), 400, ("input: is too long", "input"), "refused"),
    "a failure": (Script(frames=0, end=FAILED), 500, ("gave up", None), "error"),
    "a retry may help": (Script(frames=0, end=LATER), 503, ("gave up", None), "error"),
    "no audio": (Script(frames=0), 500, (SPEECHLESS, None), "error"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("script", "status", "error", "outcome"), ERRORS.values(), ids=ERRORS)
async def test_an_error_before_the_first_byte_is_a_response(
    running: Gateway, stream: bool, script: Script, status: int, error: tuple[str, str | None], outcome: str
):
    running.stages.script = script
    response = await running.say(stream=stream)
    body = response.json()["error"]
    assert (response.status_code, (body["message"], body["param"])) == (status, error)
    assert response.headers.get("retry-after") == ("5" if status == 503 else None)
    assert response.headers["x-request-id"] == running.stages.seen[0].id
    assert running.requests(outcome) == 1


async def test_failure_in_a_stream_leaves_its_transfer_incomplete_or_is_an_event(running: Gateway):
    running.stages.script = Script(frames=4, end=End(EndReason.ERROR, "gave up"))
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await running.say(stream=True)
    await running.counted("error")
    *_, last = events((await running.say(stream_format="sse")).content)
    assert (last["type"], last["error"]["message"]) == ("speech.audio.error", "gave up")


async def test_stalled_stages_end_the_request():
    async with gateway(stall_seconds=0.2) as running:
        running.stages.script = Script(frames=0, end=None)
        response = await running.say(stream=True)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stalled")
        assert response.headers["retry-after"]
        running.stages.script = Script(frames=4, end=None)
        with pytest.raises(httpx.RemoteProtocolError):
            await running.say(stream=True)
        *_, last = events((await running.say(stream_format="sse")).content)
        assert last["error"]["code"] == "stalled"


async def test_a_check_that_gets_no_answer_does_not_hold_up_a_stream(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    checks = []

    async def no_answer(*arguments: object) -> None:
        checks.append(arguments)
        await asyncio.Event().wait()

    monkeypatch.setattr(running.service.cells[0].connector, "last_position", no_answer)
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say(response_format="pcm"))
    await until(lambda: checks, "the gateway checks whether audio can still arrive")
    script.go.set()
    assert (await call).content == tone(10)


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}, {"stream": False}])
@pytest.mark.parametrize("pause_after", [0, 4])
async def test_disconnected_client_is_released_at_once(running: Gateway, fields: dict, pause_after: int):
    running.stages.script = Script(pause_after=pause_after)
    assert await seconds_to_release(running, fields, pause_after) < 0.1
    await running.counted("cancelled")


async def seconds_to_release(running: Gateway, fields: dict, written: int) -> float:
    """Disconnects when `written` frames of a request were written, and returns how long its release takes."""
    running.stages.seen.clear()
    call = asyncio.create_task(running.say(**fields))
    await until(lambda: running.stages.seen, "the request was claimed")
    await until(lambda: running.stages.written.get(running.stages.seen[0].id, 0) == written, "its audio was written")
    disconnected = monotonic()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: len(running.streams) == 0, "the request was released")
    return monotonic() - disconnected


async def silent_client(running: Gateway, **fields: object) -> asyncio.StreamWriter:
    """Sends a request and reads nothing."""
    body = json.dumps({"input": "Hi.", "response_format": "pcm", **fields})
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.setblocking(False)
    await asyncio.get_running_loop().sock_connect(unread, ("127.0.0.1", httpx.URL(running.url).port))
    _, writer = await asyncio.open_connection(sock=unread, limit=1024)
    writer.write(
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    )
    writer.write(b"Content-Type: application/json\r\n\r\n" + body.encode())
    return writer


async def test_unread_audio_is_not_counted(running: Gateway):
    frames = 4000
    running.stages.script = Script(frames=frames, chunk=100)
    writer = await silent_client(running, stream=True)
    await until(lambda: frames in running.stages.written.values(), "all audio was written")
    writer.transport.abort()
    await running.counted("cancelled")
    assert 0 < running.metric("syrinx_audio_seconds_total", **SERVED) < 0.8 * frames * FAMILY.frame_seconds


@pytest.mark.parametrize("chunk", [100, 4000], ids=["many chunks", "one chunk"])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}, {"stream": False}], ids=str)
async def test_client_that_does_not_read_times_out(running: Gateway, fields: dict, chunk: int):
    running.stages.script = Script(frames=4000, chunk=chunk)
    writer = await silent_client(running, **fields)
    try:
        await running.counted("cancelled")
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(("seconds", "expected"), [(3.0, 3), (30.0, 20)], ids=["slower than SLOWEST", "real time"])
async def test_client_that_reads_too_slowly_times_out(seconds: float, expected: int) -> None:
    """Each piece is accepted in time, but all of them are not."""
    sent: list[bytes] = []

    async def send(message: dict) -> None:
        sent.append(message["body"])
        await asyncio.sleep(SEND_SECONDS / 2)

    async def stream(client: ClientConnection) -> None:
        for _ in range(20):
            await client.send(b"audio", seconds)

    client = ClientConnection(asyncio.Event().wait, send)
    await client.run(stream(client))
    assert len(sent) == expected
