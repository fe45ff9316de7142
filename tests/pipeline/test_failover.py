"""Talkers and codecs survive a Redis that loses what was written last."""

import asyncio
from pathlib import Path

import pytest

from soak.servers import Layout, Servers
from support.failover import replicated
from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import until
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.runtime.requests.journal import MAX_BYTES

TEXT = " ".join(["The quiet student carried the morning paper after the storm."] * 12)
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


@pytest.mark.parametrize("kept_bytes", [MAX_BYTES, 0], ids=["entries are kept", "they are generated again"])
async def test_streams_are_complete_after_a_fail_over_that_loses_their_ends(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr("syrinx_stages.runtime.requests.journal.MAX_BYTES", kept_bytes)
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
    if kept_bytes:
        assert all((item.talkers, item.codecs) == (["talker-0"], ["codec-0"]) for item in received), "no takeover"


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
