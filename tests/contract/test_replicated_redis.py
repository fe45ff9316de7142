"""The managed Redis with replicas: the plan's containers as real servers and sentinels, started, stopped and killed."""

import asyncio
import contextlib
import itertools
import time

import pytest
import redis

from support.replicated_redis import PASSWORD, replicated_redis, until
from syrinx_operator.cluster.objects import names
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings

pytestmark = pytest.mark.night

KEY = "{demo:1:0}:stream"
PAUSE = 10.0
"""Seconds. A fail-over takes 1.5 s, on a busy machine longer."""


@contextlib.asynccontextmanager
async def submitting(servers):
    """Submits requests with a stage's connector all the time. Yields the times of success."""
    url = servers.url.replace("://", f"://:{PASSWORD}@")
    connector, times = RedisConnector(url, Keys(pipeline="demo", generation="1")), []

    async def submit():
        while True:
            request = SpeechRequest(id=f"r{len(times)}", accepted_at=0.0, text="x", task_type=TaskType.CUSTOM_VOICE)
            ticket = await connector.submit(request, GatewaySettings(max_queue=10_000, max_queue_seconds=60))
            times.append(time.monotonic())
            await connector.release(ticket)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(submit())
    try:
        yield times
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connector.close()


async def resumes(times):
    """Returns the longest pause so far, once requests are submitted again."""
    count = len(times)
    await until(lambda: asyncio.sleep(0, len(times) > count + 5))
    return max(later - earlier for earlier, later in itertools.pairwise(times))


async def test_only_the_first_server_becomes_the_first_primary(tmp_path):
    async with replicated_redis(tmp_path) as servers:
        first, *others = servers.pods
        for pod in reversed(others):
            await pod.start()
        await asyncio.sleep(2)
        assert await servers.writable() == [] and not await others[0].is_ready()
        await first.start()
        assert await servers.primary() is first
        await servers.until_ready()


async def test_a_first_start_does_not_wait_forever_for_the_last_server(tmp_path):
    async with replicated_redis(tmp_path, {"ABSENT_SECONDS=30": "ABSENT_SECONDS=2"}) as servers:
        first, second, _ = servers.pods
        await first.start()
        await asyncio.sleep(3)
        assert await servers.writable() == [], "one server is no majority"
        await second.start()
        assert await servers.primary() is first


@pytest.mark.parametrize("containers", [(), ("redis",)], ids=["pod", "server"])
async def test_a_killed_primary_returns_as_a_replica(tmp_path, containers):
    async with replicated_redis(tmp_path) as servers:
        await servers.start()
        async with submitting(servers) as times:
            await resumes(times)
            killed = await servers.primary()
            await killed.client.xadd(KEY, {"n": 1})
            assert await killed.client.wait(2, 5000) == 2
            await killed.kill(*containers)
            if containers:
                # At once, before the sentinels notice: it must not become the primary without its data.
                await killed.start_container("redis")
            promoted = await servers.primary()
            assert promoted is not killed and await resumes(times) < PAUSE
            assert await promoted.client.xlen(KEY) == 1
            if not containers:
                await killed.start()
            await servers.until_ready()
            assert await servers.primary() is promoted


async def test_a_primary_that_stops_hands_over(tmp_path):
    async with replicated_redis(tmp_path, storage={"size": "1Gi"}) as servers:
        await servers.start()
        async with submitting(servers) as times:
            for number in range(2):
                stopped = await servers.primary()
                await stopped.client.xadd(KEY, {"n": number})
                await stopped.stop()
                assert await servers.primary() is not stopped
                assert await resumes(times) < PAUSE
                await stopped.start()
                await servers.until_ready()
                assert await (await servers.primary()).client.xlen(KEY) == number + 1


async def test_after_a_restart_of_all_servers_the_volumes_have_the_data(tmp_path):
    async with replicated_redis(tmp_path, storage={"size": "1Gi"}) as servers:
        await servers.start()
        before = await servers.primary()
        await before.stop()
        primary = await servers.primary()
        await primary.client.xadd(KEY, {"n": 1})
        assert await primary.client.wait(1, 5000) == 1
        await asyncio.sleep(1.1)  # The append-only file is written once a second.
        for pod in servers.pods:
            await pod.kill()
        # The first server lacks the last entry, and may not become the primary.
        for pod in servers.pods:
            await pod.start()
        await servers.until_ready()
        assert await (await servers.primary()).client.xlen(KEY) == 1


async def test_without_volumes_a_restart_of_all_servers_is_a_first_start(tmp_path):
    async with replicated_redis(tmp_path) as servers:
        await servers.start()
        async with submitting(servers) as times:
            await resumes(times)
            for pod in servers.pods:
                await pod.kill()
            for pod in reversed(servers.pods):
                await pod.start()
            assert await servers.primary() is servers.pods[0]
            assert await resumes(times) < PAUSE


async def test_stages_can_neither_administer_servers_nor_sentinels(tmp_path):
    async with replicated_redis(tmp_path) as servers:
        await servers.start()
        pod = servers.pods[0]
        for command in ("REPLICAOF NO ONE", "CONFIG GET *", "CLIENT KILL TYPE normal", "SHUTDOWN", "PSYNC ? -1"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await pod.client.execute_command(*command.split())
        sentinel = redis.asyncio.Redis(host=pod.address, port=names.SENTINEL_PORT, protocol=2)
        for command in ("FAILOVER primary", "REMOVE primary", "SET primary quorum 1", "MONITOR x 127.0.0.1 1 1"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await sentinel.execute_command("SENTINEL", *command.split())
        await sentinel.aclose()
