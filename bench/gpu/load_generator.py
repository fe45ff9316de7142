"""The load generator: splits a load among worker processes and merges their results."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct, structs

from gpu.load_worker import Closed, Live, Open, Task, TaskResult
from gpu.workload import Workload
from syrinx_operator.commands.bench.loadgen import Limit, poisson
from syrinx_operator.commands.bench.stats import Outcome, quantile
from syrinx_operator.local import die_with_parent

RATE_PER_WORKER = 10
"""Requests per second of an open loop per worker."""
LEAD_SECONDS = 0.3
"""From sending the tasks to the workers' common start."""
_RESULT_BYTES = 2**28


class GeneratorError(Exception):
    """A worker has died, or no request of the warm-up succeeded."""


class GeneratorStats(Struct, frozen=True):
    """Shows whether the generator kept up, because it must not be the bottleneck."""

    processes: int
    cpu_share: float
    """CPU use of the busiest worker, as a share of one core."""
    late_p99_ms: float
    """How late requests were sent."""


class LoadResult(Struct, frozen=True):
    """The merged result of a load."""

    outcomes: list[Outcome]
    wall_seconds: float
    generator: GeneratorStats


class LoadGenerator:
    """Loads the gateways at `urls` with `count` workers; an async context manager."""

    def __init__(self, count: int, urls: Sequence[str], workload: Workload) -> None:
        self._count = count
        self._urls = urls
        self._workload = workload
        self._processes: list[asyncio.subprocess.Process] = []
        self._first = 0

    async def __aenter__(self) -> Self:
        command = (sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, "-m", "gpu.load_worker")
        pipe = asyncio.subprocess.PIPE
        for _ in range(self._count):
            self._processes.append(
                await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_RESULT_BYTES)
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def open(self, rate: float, seconds: float) -> LoadResult:
        """Runs Poisson arrivals: `rate` * `seconds` requests. Raises `GeneratorError`."""
        arrivals = poisson(rate, self._workload.seed, Limit(requests=round(rate * seconds)))
        # Low rates use few workers, so that connections are reused before they expire.
        workers = min(self._count, math.ceil(rate / RATE_PER_WORKER))
        return await self._run([Open(arrivals[index::workers]) for index in range(workers)])

    async def closed(self, clients: int, seconds: float) -> LoadResult:
        """Runs a fixed number of clients. Raises `GeneratorError`."""
        parts = [len(range(index, clients, self._count)) for index in range(self._count)]
        return await self._run([Closed(part, seconds) for part in parts if part])

    async def live(self, listeners: int, ramp_up: float, hold: float) -> LoadResult:
        """Runs listeners that start within `ramp_up` seconds and stay for `hold` more. Raises `GeneratorError`."""
        rng = random.Random(f"{self._workload.seed}:{listeners}")
        starts = [rng.uniform(0, ramp_up) for _ in range(listeners)]
        parts = (starts[index :: self._count] for index in range(self._count))
        result = await self._run([Live(part, ramp_up, ramp_up + hold) for part in parts if part])
        return structs.replace(result, wall_seconds=result.wall_seconds - ramp_up)

    async def _run(self, loads: Sequence[Open | Closed | Live]) -> LoadResult:
        start = time.monotonic() + LEAD_SECONDS
        tasks = [
            Task(
                url=self._urls[index % len(self._urls)],
                workload=self._workload,
                first=self._first + index,
                stride=self._count,
                start=start,
                load=load,
            )
            for index, load in enumerate(loads)
        ]
        # Requests differ from those of earlier loads, but are the same in each run of the same loads.
        self._first += 1_000_000
        results = await asyncio.gather(*map(_run_task, self._processes, tasks))
        delays = [seconds for result in results for seconds in result.delays]
        return LoadResult(
            outcomes=[outcome for result in results for outcome in result.outcomes],
            wall_seconds=max(result.wall_seconds for result in results),
            generator=GeneratorStats(
                processes=len(results),
                cpu_share=max(result.cpu_share for result in results),
                late_p99_ms=1000 * quantile(delays, 0.99) if delays else 0.0,
            ),
        )


async def _run_task(process: asyncio.subprocess.Process, task: Task) -> TaskResult:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(msgspec.json.encode(task) + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise GeneratorError(f"a worker of the load generator exited with status {await process.wait()}")
    return msgspec.json.decode(line, type=TaskResult)
