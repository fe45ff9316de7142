"""Worker processes of the load generator."""

import asyncio

import pytest

from support.http_server import serve
from support.timed_gateway import LOUD, TimedGateway
from support.waiting import DEADLINE
from syrinx_operator.commands.bench.load import GeneratorError, Limit, LoadGenerator, Script

SCRIPT = Script(["Hello."], ["us"], seed=0)


@pytest.mark.parametrize("workers", [1, 2])
async def test_workers_share_the_requests(workers):
    gateway = TimedGateway([(0.0, LOUD * 4800)])
    async with (
        asyncio.timeout(DEADLINE),
        serve(gateway.app) as url,
        LoadGenerator([url], SCRIPT, workers) as generator,
    ):
        closed = await generator.closed(3, Limit(requests=9))
        opened = await generator.open(100, Limit(requests=11))
        live = await generator.live(3, 0.1, 2.0)
    assert [len(result.outcomes) for result in (closed, opened)] == [9, 11] and live.outcomes
    assert not [each.error for result in (closed, opened, live) for each in result.outcomes if each.error]
    assert opened.generator.processes == workers
    seeds = [body["seed"] for body in gateway.bodies]
    assert (sorted(seeds[:9]), sorted(seeds[9:20])) == (list(range(9)), list(range(11))), "each request once"


async def test_a_dead_worker_is_an_error():
    async with asyncio.timeout(DEADLINE), LoadGenerator(["http://127.0.0.1:1"], SCRIPT, 2) as generator:
        for process in generator._processes:
            process.kill()
        with pytest.raises(GeneratorError, match="exited with status -9"):
            await generator.closed(2, Limit(requests=2))
