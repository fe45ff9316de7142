"""All processes of the load generator as one: a load is split among them, and what they heard is put together."""

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

from gpu.generator import Answer, Closed, Live, Open, Task
from gpu.requests import Requests
from syrinx_operator.commands.bench.loadgen import Limit, poisson
from syrinx_operator.commands.bench.stats import Outcome, quantile
from syrinx_operator.local import die_with_parent

RATE_EACH = 10
"""Requests a second that one process sends before another joins it."""
LEAD_SECONDS = 0.3
"""From handing tasks out to their common start."""
_ANSWER_BYTES = 2**28


class GeneratorError(Exception):
    """A process of the load generator has ended."""


class Burden(Struct, frozen=True):
    """Whether the generator kept up: it must not be what is measured."""

    processes: int
    cpu_share: float
    """Of one core, the busiest process."""
    late_p99_ms: float
    """How late requests were sent."""


class Heard(Struct, frozen=True):
    """What came of a load."""

    outcomes: list[Outcome]
    wall_seconds: float
    burden: Burden


class Generators:
    """`async with Generators(count, urls, requests) as generators:` loads the gateways at `urls`, each its share."""

    def __init__(self, count: int, urls: Sequence[str], requests: Requests) -> None:
        self._count = count
        self._urls = urls
        self._requests = requests
        self._processes: list[asyncio.subprocess.Process] = []
        self._first = 0

    async def __aenter__(self) -> Self:
        # Of one's own, for the generator dies with the process that asked for it.
        command = (sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, "-m", "gpu.generator")
        pipe = asyncio.subprocess.PIPE
        for _ in range(self._count):
            self._processes.append(
                await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_ANSWER_BYTES)
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def open(self, rate: float, seconds: float) -> Heard:
        """Requests at random, `rate` a second, as many as on average in `seconds`. Raises `GeneratorError`."""
        arrivals = poisson(rate, self._requests.seed, Limit(requests=round(rate * seconds)))
        # Few requests from few processes, so that connections are used again before they expire.
        processes = min(self._count, math.ceil(rate / RATE_EACH))
        return await self._share([Open(arrivals[place::processes]) for place in range(processes)])

    async def closed(self, clients: int, seconds: float) -> Heard:
        """A fixed number of clients. Raises `GeneratorError`."""
        return await self._share([Closed(part, seconds) for part in self._parts(clients) if part])

    async def live(self, listeners: int, gather: float, hold: float) -> Heard:
        """Listeners who come within `gather` seconds and stay for `hold` more. Raises `GeneratorError`."""
        chance = random.Random(f"{self._requests.seed}:{listeners}")
        begin = [chance.uniform(0, gather) for _ in range(listeners)]
        parts = (begin[place :: self._count] for place in range(self._count))
        heard = await self._share([Live(part, gather, gather + hold) for part in parts if part])
        return structs.replace(heard, wall_seconds=heard.wall_seconds - gather)

    def _parts(self, whole: int) -> list[int]:
        return [len(range(place, whole, self._count)) for place in range(self._count)]

    async def _share(self, loads: Sequence[Open | Closed | Live]) -> Heard:
        start = time.monotonic() + LEAD_SECONDS
        tasks = [
            Task(
                url=self._urls[place % len(self._urls)],
                requests=self._requests,
                first=self._first + place,
                stride=self._count,
                start=start,
                load=load,
            )
            for place, load in enumerate(loads)
        ]
        # No request is like one of an earlier load, and runs with the same loads are alike.
        self._first += 1_000_000
        answers = await asyncio.gather(*map(_ask, self._processes, tasks))
        late = [seconds for answer in answers for seconds in answer.late]
        return Heard(
            outcomes=[outcome for answer in answers for outcome in answer.outcomes],
            wall_seconds=max(answer.wall_seconds for answer in answers),
            burden=Burden(
                processes=len(answers),
                cpu_share=max(answer.cpu_share for answer in answers),
                late_p99_ms=1000 * quantile(late, 0.99) if late else 0.0,
            ),
        )


async def _ask(process: asyncio.subprocess.Process, task: Task) -> Answer:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(msgspec.json.encode(task) + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise GeneratorError(f"a process of the load generator ended ({await process.wait()})")
    return msgspec.json.decode(line, type=Answer)
