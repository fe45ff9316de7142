"""Requests that Redis has lost."""

import asyncio
import base64

import pytest

from support.gateway import Gateway, Script, events, tone
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import SpeechRequest

pytestmark = pytest.mark.virtual


async def lose(running: Gateway, request: SpeechRequest) -> None:
    """Makes Redis forget a request, as a fail-over does to what the replica had not received."""
    streams = running.streams
    [entry_id] = [at for at, fields in streams.raw.xrange(streams.keys.requests) if request.id.encode() in fields[b"d"]]
    streams.raw.xdel(streams.keys.requests, entry_id)
    for kind in StreamKind:
        streams.raw.delete(streams.keys.stream(request.id, kind))
    streams.raw.delete(streams.keys.owners(request.id), streams.keys.reference(request.id))


async def test_a_request_that_redis_lost_before_its_first_audio_is_queued_again(running: Gateway) -> None:
    call = await running.begin(script := Script(frames=4, pause_after=0), response_format="pcm")
    await lose(running, running.stages.seen[0])
    await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
    script.go.set()
    response = await call
    assert response.content == tone(4)
    assert running.stages.seen[0] == running.stages.seen[1]


async def test_a_stream_that_stands_still_is_named_once(running: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    running.stages.script = script = Script(frames=6, pause_after=4)
    call = asyncio.create_task(running.say(response_format="pcm"))
    await until(lambda: running.metric("syrinx_silent_streams_total"), "it is named")
    await asyncio.sleep(10)
    script.go.set()
    response = await call
    assert running.metric("syrinx_silent_streams_total") == 1
    assert response.content == tone(6)
    [line] = [each.getMessage() for each in caplog.records if "although" in each.getMessage()]
    assert "nothing for 5 s after 4 frames" in line and "codec codec-0" in line and "audio to 4," in line


async def test_a_stream_whose_client_has_audio_to_play_does_not_stand_still(running: Gateway) -> None:
    running.stages.script = script = Script(frames=102, chunk=100, pause_after=100)
    call = asyncio.create_task(running.say(response_format="pcm"))
    await until(lambda: list(running.stages.written.values()) == [100], "8 s of audio are written")
    await asyncio.sleep(7)
    script.go.set()
    await call
    assert running.metric("syrinx_silent_streams_total") == 0


async def test_a_request_that_another_one_has_displaced_is_not_lost(running: Gateway) -> None:
    """Its streams are gone before the gateway reads that it was refused."""
    call = await running.begin(Script(frames=4, pause_after=0), response_format="pcm")
    await lose(running, running.stages.seen[0])
    await asyncio.sleep(1.5)
    running.service.cells[0].fanout.refuse(running.stages.seen[0].id)
    response = await call
    assert response.status_code == 503 and response.json()["error"]["code"] == "queue_full"
    assert len(running.stages.seen) == 1


async def test_a_whole_response_that_redis_lost_begins_anew(running: Gateway) -> None:
    """Nothing of it was sent, although some of its audio has arrived."""
    call = await running.begin(script := Script(frames=4, pause_after=2), response_format="pcm", stream=False)
    [request] = running.stages.seen
    await until(lambda: has_played(running, request, 2), "audio has arrived")
    await lose(running, request)
    await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
    script.go.set()
    response = await call
    assert response.content == tone(4)


def has_played(running: Gateway, request: SpeechRequest, frames: int) -> bool:
    return running.streams.last_position(request.id, StreamKind.PLAYBACK) == Position(frames)


async def test_a_stream_that_redis_lost_continues_where_it_was(running: Gateway) -> None:
    """The audio is generated again, and the client gets what it does not have."""
    call = await running.begin(script := Script(frames=6, silent=2, pause_after=4), response_format="pcm")
    await running.live()
    await lose(running, running.stages.seen[0])
    await until(lambda: len(running.stages.seen) == 2, "it is claimed again")
    script.go.set()
    response = await call
    assert response.content.endswith(script.pcm[2 * FAMILY.frame_bytes :])
    assert len(response.content) < len(script.pcm) - FAMILY.frame_bytes
    assert running.stages.seen[0] == running.stages.seen[1]
    assert running.metric("syrinx_live_streams") == 0


@pytest.mark.parametrize("again", [Script(frames=6, silent=1), Script(frames=3)], ids=["other frames", "fewer frames"])
async def test_a_stream_that_redis_lost_fails_if_its_audio_differs_when_generated_again(
    running: Gateway, again: Script
) -> None:
    running.stages.script = Script(frames=6, pause_after=4)
    call = asyncio.create_task(running.say(response_format="pcm", stream_format="sse"))
    await until(lambda: list(running.stages.written.values()) == [4], "it has begun")
    await running.live()
    running.stages.script = again
    await lose(running, running.stages.seen[0])
    *deltas, error = events((await call).content)
    assert error["error"]["code"] == "request_lost"
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == tone(4)


async def test_a_release_that_redis_lost_is_repeated(running: Gateway) -> None:
    streams = running.streams
    await running.say()
    [request] = running.stages.seen
    await until(lambda: len(streams) == 0, "the request is released")
    key = streams.keys.stream(request.id, StreamKind.CODES)
    streams.raw.xadd(key, {"d": b""}, id="0-1")
    streams.raw.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: not streams.raw.exists(key), "it is released again")
