"""A gateway, a talker and a codec on a primary that serves on after another server has replaced it."""

import asyncio

import pytest
from redis import Redis

from support.failover import replicated
from support.gateway import Script, gateway
from support.sentinel import sentinel, sentinel_url
from support.streams import Streams
from support.waiting import until
from syrinx_stages.connector import redis_primary


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole response"])
async def test_a_request_that_only_a_stale_primary_knows_is_delivered_whole(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(redis_primary, "OBSERVER_SECONDS", 60.0)
    async with replicated() as pair, sentinel(pair.primary.port) as named:
        streams = Streams(url=pair.primary.url_with_password)
        streams._url = sentinel_url(named, password=pair.primary.password)
        async with gateway(streams=streams) as running:
            assert (await running.say(response_format="pcm")).content == Script().pcm
            await pair.detach()
            named.failing_over = True
            asked = named.asked
            running.stages.script = script = Script(pause_after=4)
            call = asyncio.create_task(running.say(stream=stream, response_format="pcm"))
            await until(
                lambda: named.asked > asked + 20 or 4 in [*running.stages.written.values()][1:],
                "the fail-over is noticed, or the request is served",
            )
            streams.raw = Redis.from_url(pair.replica.url_with_password, protocol=2)
            named.promote(pair.replica.port)
            await pair.demote()
            script.go.set()
            response = await call
    assert (response.status_code, response.content) == (200, script.pcm)
