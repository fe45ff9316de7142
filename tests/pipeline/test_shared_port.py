"""Several gateways of a local pipeline share its port: the kernel gives each connection to one of them."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from support.local_pipeline import local_pipeline, replicated
from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.contract.stages import Stage

CONNECTIONS = 32
"""The chance that one of two gateways gets none of them is 2 ** -31."""


async def connections_of(running: LocalPipeline) -> list[int]:
    """Returns how many requests for an unknown model each gateway has refused."""
    counts = []
    async with httpx.AsyncClient(trust_env=False) as http:
        for member in running.processes:
            if member.stage == Stage.GATEWAY:
                text = (await http.get(f"{member.admin_url}/metrics")).text
                refused = [line for line in text.splitlines() if line.startswith("syrinx_requests_total{")]
                counts.append(sum(int(float(line.rpartition(" ")[2])) for line in refused))
    return counts


async def speak(url: str) -> int:
    """Returns the size of an utterance, requested on a connection of its own."""
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE) as http:
        response = await http.post(f"{url}/v1/audio/speech", json={"input": "Hello.", "max_new_tokens": 2})
        return len(response.raise_for_status().content)


async def test_both_serve_at_one_url_and_one_goes_on_while_the_other_restarts() -> None:
    async with local_pipeline(replicated(gateway=2)) as running:
        gateways = [child for child in running.processes if child.stage == Stage.GATEWAY]
        assert {child.url for child in gateways} == {running.gateway_url}
        sizes = await asyncio.gather(*(speak(running.gateway_url) for _ in range(CONNECTIONS)))
        assert min(sizes) > 0
        first, second = await connections_of(running)
        assert first and second and first + second == CONNECTIONS
        killed = gateways[0]
        os.kill(gateways[0].pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            while killed.is_ready:
                await asyncio.sleep(0.001)
            while not killed.is_ready:
                await speak(running.gateway_url)
        assert gateways[0].url == running.gateway_url


def expired_soon(port: int) -> list[str]:
    """Returns the connections of a port that their server has closed, and that the kernel still knows (TIME_WAIT)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return [local for _, local, _, state, *_ in lines if state == "06" and local.endswith(f":{port:04X}")]


async def test_a_pipeline_listens_where_another_one_has_just_ended() -> None:
    async with local_pipeline(replicated(gateway=2)) as running, httpx.AsyncClient(trust_env=False) as http:
        port = int(running.gateway_url.rpartition(":")[2])
        # The gateway closes this connection, because its client does not.
        await http.get(f"{running.gateway_url}/health")
        await running.stop()
    assert expired_soon(port)
    async with LocalPipeline(replicated(gateway=2), port=port) as again:
        assert await speak(again.gateway_url)


async def test_another_pipeline_does_not_get_the_same_port() -> None:
    async with local_pipeline(replicated(gateway=2)) as running:
        port = int(running.gateway_url.rpartition(":")[2])
        with pytest.raises(LocalError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; .*--port"):
            async with LocalPipeline(replicated(gateway=2), port=port):
                pass
