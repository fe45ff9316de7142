"""Which requests a gateway refuses, when it is ready, and its drain."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from support.api_keys import Keys
from support.gateway import SERVED, Gateway, Script, Stages, gateway, tone
from support.streams import Streams
from support.waiting import DEADLINE, until
from support.writing import Owner
from syrinx_stages.connector.base import Capacity, StreamEntry, Ticket
from syrinx_stages.connector.redis.connection import Address
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.contract.stages import WORKERS, Stage
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import SettingsUpdate
from syrinx_stages.runtime.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual


async def test_drain_serves_open_connections_and_closes_them(running: Gateway):
    call = await running.begin(script := Script(pause_after=4), response_format="pcm")
    drain = asyncio.create_task(running.service.drain(DEADLINE))
    await until(lambda: running.service.ready() == "draining", "the drain started")
    second = asyncio.create_task(running.say(response_format="pcm"))
    await until(lambda: len(running.stages.seen) == 2, "the second request was claimed")
    listed = await running.http.get("/v1/models")
    assert (listed.status_code, listed.headers["connection"]) == (200, "close")
    assert not drain.done()
    script.go.set()
    assert (await call).content == (await second).content == tone(10)
    assert (await second).headers["connection"] == "close"
    await drain
    await running.service.close()
    assert len(running.streams) == 0
    refused = await running.say()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_a_refused_client_is_refused_again_without_asking_redis(tmp_path: Path):
    keys = Keys(tmp_path, one={}, two={})
    async with gateway(gateway=GatewaySettings(max_queue=0), api_keys_file=str(keys.file)) as running:
        post = functools.partial(running.http.post, "/v1/audio/speech")
        first = await post(json={"input": "Hello."}, headers=keys.of("one"))
        running.service.live.apply(SettingsUpdate({"max_queue": 10}))
        again = await post(content=b"x" * 1_000_000, headers=keys.of("one"))
        assert (again.status_code, again.json(), again.headers["retry-after"]) == (503, first.json(), "1")
        other = await post(json={"input": "Hello."}, headers=keys.of("two"))
        assert other.status_code == 200
        assert running.requests("refused") == 2


async def test_unreachable_queue_is_a_503_and_not_ready():
    async with gateway() as running:
        await until(lambda: running.service.ready() is None, "the gateway was ready")
        await running.service.cells[0].connector.close()
        response = await running.say()
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        await until(
            lambda: (running.service.ready() or "").startswith("Redis cannot be reached"), "the failure was noticed"
        )


async def test_ready_once_both_stages_have_been_live():
    streams = Streams()
    connector, replicas = streams.connector(), streams.connector()
    config = StageConfig(pipeline="p", generation="g", replica="gateway-0", model="bundled")
    service = GatewayService(config, [connector], Metrics(CollectorRegistry()))
    await service.start()
    try:
        assert service.ready() == "no talker of this model generation is running yet"
        talker, codec = replicas.consumer(Stage.TALKER, "t"), replicas.consumer(Stage.CODEC, "c")
        await talker.take_over(1)
        await until(
            lambda: service.ready() == "no codec of this model generation is running yet", "the talker was seen"
        )
        await codec.take_over(1)
        await until(lambda: service.ready() is None, "the codec was seen")
        await replicas.close()
        await service.cells[0].monitor.measure()
        assert not await connector.has_live_consumer(Stage.TALKER, 5.0)
        assert service.ready() is None
    finally:
        await service.close()
        await streams.close()


async def test_a_request_that_no_talker_claims_in_time_is_a_503():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.2)) as running:
        await running.without_stages()
        replicas = running.streams.connector()
        for group in WORKERS:
            await replicas.consumer(group, "busy").take_over(1)
        started = monotonic()
        response = await running.say(stream=True)
        assert monotonic() - started >= 0.2
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert "no talker was free in time" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert running.requests("refused") == 1
        assert (await running.service.cells[0].connector.queue()).length == 0


async def test_a_request_that_waits_while_redis_is_unreachable_is_a_503(monkeypatch: pytest.MonkeyPatch):
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.2)) as running:
        await running.without_stages()
        connector = running.service.cells[0].connector
        submit, pool, address = connector.submit, connector._pool, connector._pool.address

        async def submit_and_disconnect(*arguments: Any) -> Ticket:
            ticket = await submit(*arguments)
            pool.address = Address("redis://127.0.0.1:1")
            pool.disconnect()
            return ticket

        monkeypatch.setattr(connector, "submit", submit_and_disconnect)
        response = await running.say(stream=True)
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert response.json()["error"]["message"] == "the service cannot reach its queue"
        assert running.requests("refused") == 1
        pool.address = address


async def test_the_expected_wait_is_exported():
    async with gateway() as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        assert running.metric("syrinx_expected_wait_seconds") == 0
        await running.stages.leave()
        talker = running.streams.connector().consumer(Stage.TALKER, "busy")
        await talker.take_over(1)
        served = asyncio.create_task(running.say())
        assert len(await talker.claim(1)) == 1
        await talker.report(Capacity(free=0, requests_per_second=2.0))
        await until(
            lambda: running.metric("syrinx_expected_wait_seconds") == 0.5, "the next one waits for one of 2 a second"
        )
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)


async def test_a_client_with_many_requests_makes_room_for_another(tmp_path: Path):
    keys = Keys(tmp_path, greedy={}, modest={})
    async with gateway(gateway=GatewaySettings(max_queue_seconds=60.0), api_keys_file=str(keys.file)) as running:
        await running.without_stages()
        talker = running.streams.connector().consumer(Stage.TALKER, "busy")
        await talker.take_over(1)
        await talker.report(Capacity(free=2, requests_per_second=0.01))

        def ask(client: str) -> asyncio.Task[httpx.Response]:
            call = running.http.post("/v1/audio/speech", json={"input": "Hello."}, headers=keys.of(client))
            return asyncio.create_task(call)

        greedy = []
        for number in range(2):
            greedy.append(ask("greedy"))
            await until(lambda: running.streams.raw.xlen(running.streams.keys.requests) == number + 1, "it waits")  # noqa: B023
        modest = ask("modest")
        response = await greedy[1]
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        assert not greedy[0].done() and not modest.done()
        for task in (greedy[0], modest):
            task.cancel()
        await asyncio.gather(greedy[0], modest, return_exceptions=True)


async def test_a_claimed_request_may_take_longer_than_the_queue():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.5)) as running:
        call = await running.begin(script := Script(pause_after=0), response_format="pcm")
        await asyncio.sleep(0.8)
        script.go.set()
        assert (await call).content == tone(10)


async def test_missing_stage_is_a_503_after_max_queue_seconds():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=1.0)) as running:
        await running.without_stages()
        waiting = await running.say(stream=True)
        assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "stage_unavailable")
        assert "no talker" in waiting.json()["error"]["message"]
        assert int(waiting.headers["retry-after"]) >= 1
        assert running.requests("refused") == 1
        await until(lambda: running.service.cells[0].monitor.missing_stage_error(), "it was missing for long enough")
        assert (await running.say()).json()["error"]["code"] == "stage_unavailable"
        assert running.requests("refused", "unknown") == 1, "at once"
        async with Stages(running.streams):
            await until(lambda: running.service.cells[0].monitor._missing is None, "they were seen again")
            assert (await running.say()).content


async def test_a_request_withdrawn_during_a_check_is_not_queued_again(monkeypatch: pytest.MonkeyPatch):
    """The check for a lost request finds nothing either once Redis has withdrawn it."""
    async with gateway(gateway=GatewaySettings(max_queue_seconds=4.0)) as running:
        await running.without_stages()
        connector, fanout = running.service.cells[0].connector, running.service.cells[0].fanout
        last_position, submit, submitted = connector.last_position, connector.submit, []

        async def check_until_withdrawn(request_id: str, kind: StreamKind) -> Position | None:
            await until(lambda: not fanout._queues[request_id].empty(), "its end has arrived")
            return await last_position(request_id, kind)

        monkeypatch.setattr(connector, "last_position", check_until_withdrawn)
        monkeypatch.setattr(connector, "submit", lambda *args: submitted.append(args) or submit(*args))
        response = await running.say(stream=True)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stage_unavailable")
        assert len(submitted) == 1
        assert running.requests("refused") == 1


async def test_begun_stream_outlasts_a_missing_stage():
    """Another replica may still take the stream over."""
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.1)) as running:
        await until(lambda: running.service.cells[0].monitor._was_complete, "the stages were seen")
        call = await running.begin(Script(pause_after=4), response_format="pcm")
        await running.live()
        [request] = running.stages.seen
        await running.stages.leave()
        await until(lambda: running.metric("syrinx_underrun_seconds_total", **SERVED) > 1.5, "the gateway has checked")
        assert running.service.cells[0].monitor.missing_stage_error() is not None
        connector = running.streams.connector()
        end = End(EndReason.STOP)
        await Owner(connector).append([StreamEntry(request.id, StreamKind.AUDIO, Position(4, END_SEQUENCE), end)])
        assert (await call).content == tone(4)
