"""Parts of a long text that are refused, fail or are awaited by a client that reads slowly. Scripted stages."""

import asyncio

import httpx
import pytest

from support.gateway import Gateway, Script
from support.waiting import until
from syrinx_stages.connector.base import QueueFull
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.gateway.parts import divide

pytestmark = pytest.mark.virtual

TEXT = "The old teacher found two heavy bags near the river, and nobody knew what was in them or whose they were. " * 3
PARTS = len(list(divide(TEXT, single_sentences=True)))


def refuse_second_part(running: Gateway, monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Refuses the first attempts to queue the second part. Returns the ids of all attempts."""
    submit, attempts = running.service.cells[0].connector.submit, []

    async def full(request, *arguments):
        attempts.append(request.id)
        if "-p1" in request.id and sum("-p1" in each for each in attempts) <= times:
            raise QueueFull("scripted", 0.05)
        return await submit(request, *arguments)

    monkeypatch.setattr(running.service.cells[0].connector, "submit", full)
    return attempts


def outcomes(running: Gateway) -> dict[str, float]:
    names = ("well", "failed", "refused", "interrupted")
    return {
        name: count
        for name in names
        if (count := running.metric("syrinx_stream_outcomes_total", task_type="CustomVoice", arm="", outcome=name))
    }


async def test_a_part_that_is_not_admitted_is_tried_again(running: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = refuse_second_part(running, monkeypatch, times=2)
    response = await running.say(input=TEXT, response_format="pcm")
    assert len(running.stages.seen) == PARTS == 3
    assert len(attempts) == len(set(attempts)) == PARTS + 2
    assert len(response.content) > PARTS * 9 * FAMILY.frame_bytes
    await until(lambda: outcomes(running) == {"well": 1}, "the outcome of the whole text")
    assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="refused") == 0


async def test_a_text_whose_part_is_never_admitted_fails(running: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_second_part(running, monkeypatch, times=1_000_000)
    with pytest.raises(httpx.RemoteProtocolError):
        await running.say(input=TEXT, response_format="pcm")
    await until(
        lambda: outcomes(running) == {"interrupted": 1}, "the outcome of the whole text: it played out long before"
    )
    events = (await running.say(input=TEXT, stream_format="sse")).text
    assert '"code": "queue_full"' in events and "speech.audio.done" not in events
    assert (await running.say(input=TEXT, stream=False)).status_code == 503


async def test_a_part_that_fails_ends_the_text(running: Gateway) -> None:
    running.stages.script = Script(frames=10, pause_after=8)
    call = asyncio.create_task(running.say(input=TEXT, stream_format="sse"))
    await until(lambda: running.stages.written, "the first part has begun")
    first, running.stages.script = running.stages.script, Script(frames=0, end=End(EndReason.ERROR, "scripted"))
    first.go.set()
    assert '"message": "scripted"' in (await call).text
    assert len(running.stages.seen) == 2


async def test_a_part_that_reaches_the_length_limit_ends_the_text(running: Gateway) -> None:
    running.stages.script = Script(end=End(EndReason.LENGTH))
    response = await running.say(input=TEXT, stream=False)
    assert (response.headers["X-Finish-Reason"], len(running.stages.seen)) == ("length", 1)
    assert '"finish_reason": "length"' in (await running.say(input=TEXT, stream_format="sse")).text


@pytest.mark.parametrize(
    ("limit", "limits", "frames", "reason"),
    [
        (40, [40, 30, 20], 30, "stop"),
        (30, [30, 20, 10], 30, "stop"),
        (25, [25, 15, 5], 25, "length"),
        (20, [20, 10], 20, "length"),
        (4, [4], 4, "length"),
        (None, [2048, 2048, 2048], 30, "stop"),
    ],
)
async def test_the_clients_length_limit_is_that_of_all_parts(
    running: Gateway, limit: int | None, limits: list[int], frames: int, reason: str
) -> None:
    """Of parts of 10 frames each. No part is submitted that may not have a frame."""
    running.stages.script = Script(obeys_limit=True)
    events = (await running.say(input=TEXT, stream_format="sse", max_new_tokens=limit)).text
    assert f'"finish_reason": "{reason}"' in events and f'"output_tokens": {frames}' in events
    assert [request.max_frames for request in running.stages.seen] == limits
    await until(lambda: outcomes(running) == {"well": 1}, "the outcome of the whole text")
    response = await running.say(input=TEXT, stream=False, max_new_tokens=limit)
    assert response.headers["X-Finish-Reason"] == reason
    assert [request.max_frames for request in running.stages.seen] == limits * 2


async def test_a_client_that_does_not_read_gets_no_third_part(running: Gateway) -> None:
    """Whatever a client reads, only the next part is in flight; and it is before the current one is delivered."""
    running.stages.script = Script(frames=2000, chunk=50)
    body = {"input": TEXT, "response_format": "pcm", "stream": True}
    async with running.http.stream("POST", "/v1/audio/speech", json=body) as response:
        await until(lambda: len(running.stages.seen) == 2, "the second part is submitted")
        await asyncio.sleep(1)
        assert len(running.stages.seen) == 2
        received = sum([len(chunk) async for chunk in response.aiter_raw()])
    assert received > PARTS * 1990 * FAMILY.frame_bytes and len(running.stages.seen) == PARTS
