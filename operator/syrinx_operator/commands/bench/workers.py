"""The load generator: runs a load in this process, or splits it among worker processes if one cannot keep up."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from msgspec import Struct, structs

from syrinx_operator.commands.bench.load import (
    Limit,
    Script,
    Send,
    closed_loop,
    live_loop,
    make_sender,
    open_loop,
    poisson,
)
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.local import die_with_parent

RATE_PER_WORKER = 10
"""Requests per second of an open loop per worker."""
LEAD_SECONDS = 0.3
"""From sending the tasks to the workers' common start."""
_HEADER_BYTES = 8

Load = Callable[[Send], Awaitable[tuple[list[Outcome], float]]]
Task = Callable[[], Coroutine[Any, Any, "LoadResult"]]


class GeneratorError(Exception):
    """A worker has died, or no request of the warm-up succeeded."""


class GeneratorStats(Struct, frozen=True):
    """Shows whether the generator kept up, because it must not be the bottleneck."""

    processes: int
    cpu_share: float
    """CPU use of the busiest worker, as a share of one core."""
    late_p99_ms: float
    """How late requests were sent; of the worker with the longest delays."""


class LoadResult(Struct, frozen=True):
    """The result of a load."""

    outcomes: list[Outcome]
    wall_seconds: float
    generator: GeneratorStats


class LoadGenerator:
    """Loads the gateways at `urls` from this process, or with more than one worker from as many processes.

    Use as `async with`. All loads raise `GeneratorError` if a worker dies.
    """

    def __init__(self, urls: Sequence[str], script: Script, workers: int = 1) -> None:
        self._urls = urls
        self._script = script
        self._count = workers
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        module = (sys.executable, "-c", f"from {__name__} import main; main()")
        pipe = asyncio.subprocess.PIPE
        for _ in range(self._count if self._count > 1 else 0):
            command = (sys.executable, die_with_parent.__file__, str(os.getpid()), *module)
            self._processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def open(self, rate: float, limit: Limit) -> LoadResult:
        """Runs Poisson arrivals of `rate` requests per second."""
        arrivals = poisson(rate, self._script.seed, limit)
        # Low rates use few workers, so that connections are reused before they expire.
        workers = min(self._count, math.ceil(rate / RATE_PER_WORKER))
        return await self._run([partial(open_loop, arrivals=arrivals[index::workers]) for index in range(workers)])

    async def closed(self, clients: int, limit: Limit) -> LoadResult:
        """Runs a fixed number of clients."""
        workers = min(self._count, clients)

        def share(index: int) -> Limit:
            return structs.replace(limit, requests=limit.requests and len(range(index, limit.requests, workers)))

        parts = [len(range(index, clients, workers)) for index in range(workers)]
        return await self._run(
            [partial(closed_loop, clients=part, limit=share(index)) for index, part in enumerate(parts)]
        )

    async def live(self, listeners: int, ramp_up: float, hold: float) -> LoadResult:
        """Runs listeners that start within `ramp_up` seconds and stay for `hold` more."""
        rng = random.Random(f"{self._script.seed}:{listeners}")
        starts = [rng.uniform(0, ramp_up) for _ in range(listeners)]
        workers = min(self._count, listeners)
        live = partial(live_loop, count_from=ramp_up, seconds=ramp_up + hold)
        result = await self._run([partial(live, starts=starts[index::workers]) for index in range(workers)])
        return structs.replace(result, wall_seconds=result.wall_seconds - ramp_up)

    async def _run(self, loads: Sequence[Load]) -> LoadResult:
        # `time.monotonic()` is the same clock for all processes of a machine.
        start = time.monotonic() + (LEAD_SECONDS if self._processes else 0.0)
        urls = itertools.cycle(self._urls)
        tasks = [
            partial(_run_task, next(urls), self._script, index, len(loads), start, load)
            for index, load in enumerate(loads)
        ]
        if not self._processes:
            return await tasks[0]()
        results = await asyncio.gather(*map(_run_in, self._processes, tasks))
        stats = [result.generator for result in results]
        cpu_share, late = max(each.cpu_share for each in stats), max(each.late_p99_ms for each in stats)
        return LoadResult(
            outcomes=[outcome for result in results for outcome in result.outcomes],
            wall_seconds=max(result.wall_seconds for result in results),
            generator=GeneratorStats(len(stats), cpu_share, late),
        )


async def _run_in(process: asyncio.subprocess.Process, task: Task) -> LoadResult:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(pickle.dumps(task))
    try:
        size = int.from_bytes(await process.stdout.readexactly(_HEADER_BYTES))
        result: LoadResult = pickle.loads(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        raise GeneratorError(f"a worker of the load generator exited with status {await process.wait()}") from None
    return result


async def _run_task(url: str, script: Script, first: int, stride: int, start: float, load: Load) -> LoadResult:
    """Runs a worker's share of a load: requests first, first + stride, ..., which no other worker sends."""
    delays = [0.0]
    async with SpeechClient(url) as client:
        sender = make_sender(client, script)

        async def send(number: int, due: float) -> Outcome:
            delays.append(max(0.0, time.monotonic() - due))
            return await sender(first + number * stride, due)

        await asyncio.sleep(start - time.monotonic())
        cpu = time.process_time()
        outcomes, wall = await load(send)
        cpu_share = (time.process_time() - cpu) / wall
    return LoadResult(outcomes, wall, GeneratorStats(1, cpu_share, 1000 * float(np.quantile(delays, 0.99))))


def main() -> None:
    """Runs a worker process: reads pickled tasks from stdin and writes results to stdout, until it is killed."""
    while True:
        task: Task = pickle.load(sys.stdin.buffer)
        gc.collect()
        gc.disable()  # A collection would delay all listeners at once.
        result = pickle.dumps(asyncio.run(task()))
        gc.enable()
        sys.stdout.buffer.write(len(result).to_bytes(_HEADER_BYTES) + result)
        sys.stdout.buffer.flush()
