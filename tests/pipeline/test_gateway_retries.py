"""How a gateway makes a whole file again whose speech ran away, with scripted stages."""

import asyncio

import pytest

from support.gateway import Gateway, Script, pcm_of, tone
from support.waiting import DEADLINE, until
from syrinx_stages.connector.base import QueueFull
from syrinx_stages.contract.messages import End, EndReason

pytestmark = pytest.mark.virtual

RUNAWAY = Script(frames=6, end=End(EndReason.RUNAWAY))


async def test_every_attempt_is_a_request_of_its_own(running: Gateway) -> None:
    running.stages.script = RUNAWAY
    response = await running.say(stream=False, seed=5)
    assert (response.headers["X-Retries"], response.headers["X-Finish-Reason"]) == ("2", "runaway")
    seen = running.stages.seen
    assert [request.id.partition("-")[2] for request in seen] == ["", "1", "2"]
    assert len({request.id.partition("-")[0] for request in seen}) == 1
    assert len({request.seed for request in seen}) == 3
    assert seen[0].seed == 5
    assert int(response.headers["X-Seed"]) == seen[-1].seed
    assert all(request.guard is not None and request.guard.max_frames > 0 for request in seen)


async def test_a_length_limit_is_not_tried_again(running: Gateway) -> None:
    running.stages.script = Script(end=End(EndReason.LENGTH))
    response = await running.say(stream=False)
    assert (response.headers["X-Retries"], response.headers["X-Finish-Reason"]) == ("0", "length")
    assert len(running.stages.seen) == 1


async def test_a_failed_retry_leaves_the_good_part_of_the_attempt_before(running: Gateway) -> None:
    running.stages.script = Script(frames=6, pause_after=4, end=End(EndReason.RUNAWAY))
    call = asyncio.create_task(running.say(stream=False, response_format="wav"))
    await until(lambda: running.stages.written, "the first attempt has begun")
    first = running.stages.script
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "scripted"))
    first.go.set()
    response = await asyncio.wait_for(call, DEADLINE)
    assert response.status_code == 200
    assert (response.headers["X-Retries"], response.headers["X-Finish-Reason"]) == ("0", "runaway")
    assert int(response.headers["X-Seed"]) == running.stages.seen[0].seed
    assert pcm_of(response.content) in tone(6)
    assert len(running.stages.seen) == 2


async def test_a_retry_that_is_not_admitted_does_not_either(running: Gateway, monkeypatch) -> None:
    running.stages.script = RUNAWAY
    submit = running.service.cells[0].connector.submit

    async def full(request, *arguments):
        if "-" in request.id:
            raise QueueFull("scripted", 1.0)
        return await submit(request, *arguments)

    monkeypatch.setattr(running.service.cells[0].connector, "submit", full)
    response = await running.say(stream=False)
    assert (response.status_code, response.headers["X-Retries"]) == (200, "0")
    assert response.headers["X-Finish-Reason"] == "runaway"


async def test_audio_of_replaced_attempts_is_not_counted(running: Gateway) -> None:
    running.stages.script = RUNAWAY
    await running.say(stream=False)
    labels = {"task_type": "CustomVoice"}
    await until(lambda: running.metric("syrinx_audio_seconds_total", **labels), "the audio is counted")
    assert running.metric("syrinx_audio_seconds_total", **labels) < 7 * 0.08
    assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="runaway") == 3


async def test_a_client_that_leaves_ends_the_attempt_in_progress(running: Gateway) -> None:
    running.stages.script = Script(pause_after=4, end=End(EndReason.RUNAWAY))
    call = asyncio.create_task(running.say(stream=False))
    await until(lambda: running.stages.written, "the first attempt has begun")
    call.cancel()
    await until(lambda: len(running.streams) == 0, "the request is released")
    assert len(running.stages.seen) == 1
