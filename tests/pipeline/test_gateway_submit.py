"""How the gateway submits a request: what was queued for a client that disconnects, or in a drain, is released."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support.gateway import Gateway, Script, events, gateway
from support.virtual import VirtualLoop
from support.waiting import DEADLINE, until
from syrinx_stages.connector.base import Ticket
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.gateway.cells.cells import CONNECTOR_SECONDS
from syrinx_stages.gateway.errors import ApiError

pytestmark = pytest.mark.virtual


def submit_and_leave(running: Gateway, leave: Callable[[asyncio.Task[Ticket]], object]) -> asyncio.Task[Ticket]:
    """Submits a request; `leave(task)` is called when it is queued, and its ticket arrives in the same iteration."""
    submit = running.service.cells[0].connector.submit

    async def submitted(*arguments: Any) -> Ticket:
        ticket = await submit(*arguments)
        leave(task)
        return ticket

    running.service.cells[0].connector.submit = submitted  # type: ignore[method-assign]
    request = SpeechRequest(id="r", accepted_at=0.0, text="Hello.", task_type=TaskType.CUSTOM_VOICE)
    task = asyncio.create_task(running.service.submissions.queue(request, None, ""))
    return task


async def test_a_request_queued_as_its_client_leaves_is_released(running: Gateway) -> None:
    await running.stages.leave()
    submission = submit_and_leave(running, lambda task: task.cancel())
    with pytest.raises(asyncio.CancelledError):
        await submission
    await until(lambda: len(running.streams) == 0, "the request is released")


async def test_a_request_queued_as_its_time_is_up_is_released() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with gateway() as running:
        await running.stages.leave()
        submission = submit_and_leave(running, lambda task: loop.spend(CONNECTOR_SECONDS + 0.1))
        with pytest.raises(ApiError, match="queue"):
            await submission
        await until(lambda: len(running.streams) == 0, "the request is released")


class SlowQueue:
    """Queues requests at once, but answers only when `answer` is set."""

    def __init__(self, running: Gateway) -> None:
        self.answer = asyncio.Event()
        self.queued = asyncio.Event()
        self._submit = running.service.cells[0].connector.submit
        running.service.cells[0].connector.submit = self.submit  # type: ignore[method-assign]

    async def submit(self, *arguments: Any) -> Ticket:
        ticket = await self._submit(*arguments)
        self.queued.set()
        await self.answer.wait()
        return ticket


async def test_a_client_that_disconnects_during_the_submit_is_released(running: Gateway) -> None:
    await running.stages.leave()
    queue = SlowQueue(running)
    call = asyncio.create_task(running.say(stream=True))
    await queue.queued.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    queue.answer.set()
    await running.counted("cancelled")
    await until(lambda: len(running.streams) == 0, "the request is released")


async def test_a_drain_that_ends_during_a_submit_refuses_and_releases_the_request(running: Gateway) -> None:
    await running.stages.leave()
    queue = SlowQueue(running)
    call = asyncio.create_task(running.say(stream=True))
    await queue.queued.wait()
    await running.service.drain(0.1)
    response = await call
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")
    assert running.requests("refused") == 1
    queue.answer.set()
    await until(lambda: len(running.streams) == 0, "the request is released")


async def test_what_a_drain_cuts_off_ends_in_its_own_format_and_counts_as_an_error(running: Gateway) -> None:
    formats = ({}, {"stream_format": "sse"}, {"stream": False})
    calls = [await running.begin(Script(pause_after=4), **fields) for fields in formats]
    await until(lambda: list(running.stages.written.values()) == [4] * 3, "all have begun")
    await running.service.drain(0.1)
    raw, sse, whole = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(raw, httpx.RemoteProtocolError) and "incomplete" in str(raw)
    last = events(sse.content)[-1]
    assert (last["type"], last["error"]["code"]) == ("speech.audio.error", "draining")
    assert (whole.status_code, whole.json()["error"]["code"], whole.headers["retry-after"]) == (503, "draining", "1")
    assert (running.requests("error"), running.requests("cancelled")) == (3, 0)


async def test_a_closing_gateway_waits_for_releases(running: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    release = running.service.cells[0].connector.release

    async def slow_release(ticket: Ticket) -> None:
        await asyncio.sleep(0.2)
        await release(ticket)

    monkeypatch.setattr(running.service.cells[0].connector, "release", slow_release)
    assert (await running.say()).status_code == 200
    await running.service.drain(DEADLINE)
    await running.service.close()
    assert len(running.streams) == 0
