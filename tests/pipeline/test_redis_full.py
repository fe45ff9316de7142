"""What an API client sees while Redis has no memory left: a running stream waits, a new request is refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from support.gateway import client_of, gateway_service
from support.stages import Pipeline
from support.waiting import until
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.gateway.service import GatewayService

TEXT = "The old teacher carried seven green apples before breakfast and described two heavy bags."
FIELDS = {"input": TEXT, "seed": 7, "response_format": "pcm", "stream": True}
PATH = "/v1/audio/speech"


class Service:
    """A gateway, a talker and a codec with a Redis of their own."""

    def __init__(
        self, stages: Pipeline, gateway: GatewayService, registry: CollectorRegistry, http: httpx.AsyncClient
    ) -> None:
        self.raw: Redis = stages.streams.raw
        self.http = http
        self.gateway = gateway
        self.parts = (gateway, *stages.workers)
        self._registries = (registry, *(worker.metrics.registry for worker in stages.workers))

    def limit(self, maxmemory: int) -> None:
        """Sets Redis's memory limit in bytes; 1 makes it full, 0 removes the limit."""
        self.raw.config_set("maxmemory", maxmemory)

    def full(self) -> set[float | None]:
        """Returns what the stages export as `syrinx_redis_full`."""
        labels = [{"stage": stage} for stage in ("gateway", "talker", "codec")]
        found = [each.get_sample_value("syrinx_redis_full", one) for each in self._registries for one in labels]
        return {value for value in found if value is not None}

    async def until_ready(self) -> None:
        await until(lambda: all(part.ready() is None for part in self.parts), "all stages are ready")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer())
        stages = Pipeline(url=server.url_with_password)
        stack.push_async_callback(stages.close)
        await stages.talker()
        await stages.codec()
        gateway, registry = await stack.enter_async_context(gateway_service([stages.connector()]))
        http = await stack.enter_async_context(client_of(gateway))
        service = Service(stages, gateway, registry, http)
        await service.until_ready()
        yield service
        service.limit(0)


async def test_a_stream_continues_when_a_full_redis_has_room_again(service: Service) -> None:
    undisturbed = (await service.http.post(PATH, json=FIELDS)).content
    received = b""
    async with service.http.stream("POST", PATH, json=FIELDS) as response:
        chunks = response.aiter_bytes()
        received += await anext(chunks)
        service.limit(1)
        for part in service.parts:
            await until(lambda part=part: "no memory left (maxmemory)" in (part.ready() or ""), "it is not ready")
        await until(lambda: service.full() == {1.0}, "all stages export it")
        refused = await service.http.post(PATH, json=FIELDS)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        error = refused.json()["error"]
        assert error["code"] == "redis_full" and "Redis" in error["message"] and "memory" in error["message"]
        service.limit(0)
        async for chunk in chunks:
            received += chunk
    assert received == undisturbed
    await service.until_ready()
    await until(lambda: service.full() == {0.0}, "all stages export it")


async def test_a_stream_that_a_full_redis_stalls_ends_with_the_reason(service: Service) -> None:
    service.gateway._stall_seconds = 3.0
    request = asyncio.create_task(service.http.post(PATH, json=FIELDS))
    await until(lambda: next(service.raw.scan_iter("*:owners"), None), "it is queued")
    service.limit(1)
    response = await request
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "redis_full") and "no memory left" in error["message"]
    await until(lambda: next(service.raw.scan_iter("*:owners"), None) is None, "it is released")
