"""Talkers and codecs survive a Redis that loses what was written last."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from soak.servers import Layout, Servers
from support.colocated import ColocatedPipeline
from support.failover import replicated
from support.stages import LEASE_SECONDS, Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from syrinx_stages.connector.redis_consumer import RedisConsumer
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.keys import Group
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.runtime.journal import MAX_AUDIO_BYTES
from syrinx_stages.runtime.worker import Worker

TEXT = "The quiet student carried the morning paper after the storm."
NAMES = ("a", "b", "c")


async def undisturbed() -> list[bytes]:
    async with pipeline() as stages:
        return [(await synthesize(stages.connector(), request(name, TEXT, live=False))).pcm for name in NAMES]


async def start_streams(stages: Pipeline) -> list[asyncio.Task]:
    """Starts to receive three streams and returns when each has some audio."""
    gateway = stages.connector()
    for name in NAMES:
        await submit(gateway, request(name, TEXT, live=False))
    receiving = [asyncio.create_task(receive(stages.connector(), name)) for name in NAMES]
    for name in NAMES:
        await receive(stages.connector(), name, until_frames=4)
    return receiving


@pytest.mark.parametrize("audio_bytes", [MAX_AUDIO_BYTES, 0], ids=["audio is kept", "audio is decoded again"])
async def test_streams_are_complete_after_a_fail_over_that_loses_their_ends(
    monkeypatch: pytest.MonkeyPatch, audio_bytes: int
) -> None:
    monkeypatch.setattr("syrinx_stages.runtime.journal.MAX_AUDIO_BYTES", audio_bytes)
    expected = await undisturbed()
    async with replicated() as pair, pipeline(url=pair.primary.url_with_password) as stages:
        talker, receiving = stages.workers[0], await start_streams(stages)
        await pair.detach()
        known = {name: row.produced for name, row in talker.rows.items()}
        assert known, "a stream is still generated"

        def lost(name: str) -> bool:
            return name not in talker.rows or talker.rows[name].produced > known[name] + 5

        await until(lambda: all(lost(name) for name in known), "frames are written that the replica does not get")
        pair.promote(stages.streams._connectors)
        received = [await task for task in receiving]
    assert [item.pcm for item in received] == expected
    assert [item.end.reason for item in received] == [EndReason.STOP] * 3
    if audio_bytes:
        assert all((item.talkers, item.codecs) == (["talker-0"], ["codec-0"]) for item in received), "no takeover"


async def start_one_of_each(stages: Pipeline) -> Sequence[Worker]:
    if isinstance(stages, ColocatedPipeline):
        return (await stages.colocated()).workers
    return [await stages.talker(), await stages.codec()]


def hold(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> asyncio.Event:
    """Makes the calls of a coroutine method wait until the event is set."""
    go, original = asyncio.Event(), getattr(owner, method)

    async def held(*arguments: object) -> object:
        await go.wait()
        return await original(*arguments)

    monkeypatch.setattr(owner, method, held)
    return go


def record_scans(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Group, bool]]:
    """Records which groups were scanned since a reconnection, for a consumer's own claims and for expired ones."""
    scans: set[tuple[Group, bool]] = set()
    release_unknown, take_over = RedisConsumer._release_unknown, RedisConsumer._take_over

    async def released(consumer: RedisConsumer, idle_ms: int) -> None:
        await release_unknown(consumer, idle_ms)
        scans.add((consumer._group, True))

    async def taken(consumer: RedisConsumer, count: int) -> object:
        complete = LEASE_SECONDS < consumer._pool.connected_seconds < math.inf
        found = await take_over(consumer, count)
        if complete:
            scans.add((consumer._group, False))
        return found

    monkeypatch.setattr(RedisConsumer, "_release_unknown", released)
    monkeypatch.setattr(RedisConsumer, "_take_over", taken)
    return scans


@pytest.mark.parametrize("first", ["claims", "entries"])
@pytest.mark.parametrize("topology", [Pipeline, ColocatedPipeline])
async def test_a_stream_that_has_ended_is_restored_without_a_takeover(
    monkeypatch: pytest.MonkeyPatch, topology: type[Pipeline], first: str
) -> None:
    """To the promoted replica the request is in progress until its end is written again."""
    groups = [Group.TALKERS] if topology is ColocatedPipeline else Group
    complete = {(group, own) for group in groups for own in (True, False)}
    async with pipeline() as separate:
        expected = (await synthesize(separate.connector(), request("a", TEXT, live=False))).pcm
    async with replicated() as pair:
        stages = topology(url=pair.primary.url_with_password)
        try:
            workers = await start_one_of_each(stages)
            await submit(stages.connector(), request("a", TEXT, live=False))
            await receive(stages.connector(), "a", until_frames=4)
            await pair.detach()
            assert (await receive(stages.connector(), "a")).pcm == expected
            await until(lambda: not any(worker.ownership.claims for worker in workers), "both have finished it")
            scans = record_scans(monkeypatch)
            later = (RedisConnector, "append") if first == "claims" else (RedisConsumer, "_recover")
            go = hold(monkeypatch, *later)
            pair.promote(stages.streams._connectors)
            stages.streams._url = pair.replica.url_with_password
            if first == "claims":
                await until(lambda: scans >= complete, "it has looked for claims")
                go.set()
            assert (await receive(stages.connector(), "a")).pcm == expected
            go.set()
            await until(lambda: scans >= complete, "it has looked for claims")
            assert [taken(worker) for worker in workers] == [0, 0]
            async with asyncio.timeout(DEADLINE):
                while await pair.raw.xlen(stages.streams.keys.requests):
                    await asyncio.sleep(0.02)
        finally:
            await stages.close()


def taken(worker: Worker) -> float:
    return worker.metrics.registry.get_sample_value("syrinx_takeovers_total", {"stage": worker.stage}) or 0.0


@pytest.mark.parametrize("layout", [Layout.AOF, Layout.PAIR, Layout.SENTINEL])
async def test_streams_are_complete_after_the_primary_was_killed(tmp_path: Path, layout: Layout) -> None:
    expected = await undisturbed()
    servers = Servers(layout, tmp_path)
    async with servers.running():
        server, _ = await servers.primary()
        password = f"://:{servers.password}@"
        stages = Pipeline(url=f"redis://127.0.0.1:{server.port}/0".replace("://", password, 1))
        stages.streams._url = servers.url(lambda port: port).replace("://", password, 1)
        try:
            await stages.talker()
            await stages.codec()
            receiving = await start_streams(stages)
            server.process.kill()
            received = [await task for task in receiving]
        finally:
            await stages.close()
    assert [item.pcm for item in received] == expected
    assert [item.end.reason for item in received] == [EndReason.STOP] * 3
