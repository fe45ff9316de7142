"""Talkers and codecs on a Redis Cluster whose slot gets another primary while streams run."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from support.redis_cluster import Cluster, find_valkey_server, redis_cluster, until
from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.up import Up, example
from support.waiting import DEADLINE
from syrinx_stages.connector.redis_cluster import slot_of
from syrinx_stages.contract.messages import EndReason

TEXT = "The quiet student carried the morning paper after the storm, and the old teacher found two heavy bags."
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module", params=["redis", "valkey"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Cluster of the redis-server that other tests use, and one of a valkey-server."""
    binary = find_valkey_server() if request.param == "valkey" else None
    with redis_cluster(tmp_path_factory.mktemp(request.param), binary=binary) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    """The samples of an undisturbed run on a stand-alone Redis."""

    async def run() -> list[bytes]:
        async with pipeline() as stages:
            return [(await synthesize(stages.connector(), request(name, TEXT, live=False))).pcm for name in NAMES]

    return asyncio.run(run())


def nothing(cluster: Cluster, slot: int) -> None:
    """The streams are complete without a fault."""


def kill(cluster: Cluster, slot: int) -> None:
    """The primary dies, and its replica is promoted."""
    former = cluster.owner(slot)
    former.kill()
    assert cluster.owner(slot) is not former


def pause(cluster: Cluster, slot: int) -> None:
    """The primary stops, and continues after its replica was promoted, with commands in its connections."""
    former = cluster.owner(slot)
    replica = cluster.replica(former)
    former.pause()
    until(lambda: replica.owner_of(slot) == replica.id, "the replica is promoted")
    former.resume()


def hand_over(cluster: Cluster, slot: int) -> None:
    """A replica takes over in agreement with the primary, and back."""
    cluster.fail_over(slot)
    cluster.fail_over(slot)


def move(cluster: Cluster, slot: int) -> None:
    """The slot moves to another primary, key by key, with time for many commands while its keys are divided."""
    source, target = cluster.begin_move(slot)
    while cluster.move_keys(slot, source, target, count=1):
        time.sleep(0.02)
    cluster.end_move(slot, target)


@pytest.mark.parametrize("fault", [nothing, kill, pause, hand_over, move])
async def test_streams_are_complete(
    cluster: Cluster, expected: list[bytes], fault: Callable[[Cluster, int], None]
) -> None:
    cluster.until_ready()
    stages = Pipeline(url="redis://unused")
    stages.streams._url = cluster.url
    try:
        await stages.talker()
        await stages.codec()
        gateway = stages.connector()
        for name in NAMES:
            await submit(gateway, request(name, TEXT, live=False))
        receiving = [asyncio.create_task(receive(stages.connector(), name)) for name in NAMES]
        for name in NAMES:
            await receive(stages.connector(), name, until_frames=4)
        assert not any(task.done() for task in receiving), "the streams ended before the fault"
        await asyncio.to_thread(fault, cluster, slot_of(stages.streams.keys.prefix))
        cluster.revive()
        received = [await task for task in receiving]
        # New requests are served, too.
        later = await synthesize(gateway, request("later", TEXT, live=False, seed=sum(NAMES[0].encode())))
    finally:
        await stages.close()
    assert [item.pcm for item in received] == expected
    assert [item.end.reason for item in received] == [EndReason.STOP] * len(NAMES)
    assert later.pcm == expected[0]


def test_syrinx_up_uses_a_cluster(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.until_ready()
    monkeypatch.setenv("CLUSTER_PASSWORD", cluster.password)
    file = example(tmp_path)
    resource = yaml.safe_load(file.read_text())
    url = cluster.url.replace(f":{cluster.password}@", "")
    resource["spec"]["connector"] = {"url": url, "passwordEnv": "CLUSTER_PASSWORD"}
    file.write_text(yaml.safe_dump(resource))
    running = Up(tmp_path, file)
    try:
        address = running.wait_for(r"ready at (http://\S+)")[1]
        body = {"input": "Hello.", "response_format": "pcm"}
        response = httpx.post(f"{address}/v1/audio/speech", json=body, timeout=DEADLINE, trust_env=False)
        assert response.status_code == 200 and response.content, response.text
    finally:
        running.process.terminate()
        running.process.wait(DEADLINE)
