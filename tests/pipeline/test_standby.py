"""Standbys as real processes: the only talker or codec beside one is killed, or away."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine

import httpx
import pytest
import pytest_asyncio
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from support.local_pipeline import Running, kill, local_pipeline
from support.waiting import DEADLINE
from syrinx_operator.local.supervisor import Child
from syrinx_operator.resource.spec import default_pipeline

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENTENCES = ("The quiet student carried the morning paper.", "A farmer waited for his friends.", "It rained all day.")
TEXTS = [" ".join([sentence] * 3) for sentence in SENTENCES]
STAGES = ("talker", "codec")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    spec = default_pipeline().spec
    stages = {stage: structs.replace(getattr(spec, stage), standby=True) for stage in STAGES}
    pipeline = structs.replace(default_pipeline("standby"), spec=structs.replace(spec, **stages))
    async with (
        local_pipeline(pipeline) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
    ):
        await local.all_ready()
        yield Running(local, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(running: Running) -> list[bytes]:
    """The audio of `TEXTS` without failures."""
    return list(await asyncio.gather(*map(running.synthesize, TEXTS)))


def pair(running: Running, stage: str) -> tuple[Child, Child]:
    """Returns the replica of a stage and its standby."""
    replica, standby = running.children(stage)
    assert (replica.is_standby, standby.is_standby) == (False, True)
    return replica, standby


async def frames(running: Running, child: Child) -> float:
    """Returns how many frames a process has generated or decoded."""
    families = text_string_to_metric_families(await running.metrics(child))
    return sum(sample.value for family in families if family.name == "syrinx_frames" for sample in family.samples)


@pytest.mark.smoke
@pytest.mark.parametrize("stage", STAGES)
async def test_streams_outlive_a_killed_replica_and_it_comes_back(
    running: Running, undisturbed: list[bytes], stage: str
) -> None:
    replica, _ = pair(running, stage)
    heard, killed = set[int](), list[int]()

    def listener(number: int) -> Coroutine[None, None, bytes]:
        def on_chunk(frames: int) -> None:
            heard.add(number)
            if len(heard) == len(TEXTS) and not killed:
                killed.append(replica.pid)
                kill([replica], signal.SIGKILL)

        return running.synthesize(TEXTS[number], chunks=on_chunk)

    assert await asyncio.gather(*map(listener, range(len(TEXTS)))) == undisturbed
    await running.ready()
    assert replica.pid not in killed
    assert await asyncio.gather(*map(running.synthesize, TEXTS)) == undisturbed


@pytest.mark.parametrize("stage", STAGES)
async def test_new_requests_are_served_while_the_replica_is_away(
    running: Running, undisturbed: list[bytes], stage: str
) -> None:
    """It is paused, not killed, so that it is away for as long as the requests take."""
    replica, standby = pair(running, stage)
    before = await frames(running, standby)
    kill([replica], signal.SIGSTOP)
    try:
        assert await asyncio.gather(*map(running.synthesize, TEXTS)) == undisturbed
        assert await frames(running, standby) > before
        await running.ready("gateway")
    finally:
        kill([replica], signal.SIGCONT)
    await running.ready()
