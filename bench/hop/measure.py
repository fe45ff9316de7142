"""The measured cases. Each runs with a private Redis, a writer process and a reader process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from msgspec import Struct

from redis_bench.processes import start
from redis_bench.redis_time import private_redis, redis_seconds
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import StreamKind

WARM_UP_STEPS = 10
"""Steps at the start that are not counted, while connections are opened, scripts loaded and caches filled."""


class Case(Struct, frozen=True):
    """One writer process, one reader process, and `streams` live streams between them."""

    kind: StreamKind
    streams: int
    """Every step writes to all of them."""
    frames: int
    """Frames per entry."""
    payload: int
    """Bytes per entry."""
    period: float
    """Seconds from step to step."""

    async def paced(self, steps: int) -> AsyncIterator[int]:
        """Yields the number of each step, from 1, when it is due."""
        start = time.monotonic()
        for step in range(1, steps + 1):
            await asyncio.sleep(start + step * self.period - time.monotonic())
            yield step


# 512 streams at their playback rate; fewer streams more often, for more samples.
CASES = (
    *(Case(StreamKind.CODES, streams, 1, 32, period) for streams, period in ((1, 0.005), (64, 0.02), (512, 0.08))),
    *(
        Case(StreamKind.AUDIO, streams, 4, 4 * FAMILY.frame_bytes, period)
        for streams, period in ((1, 0.01), (64, 0.04), (512, 0.32))
    ),
)


class Hop(Struct, frozen=True):
    """The measurements of one case. Latency: from `put` to the decoded entry in the reader's event loop."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    entries: int
    """Number of entries that were counted."""
    cpu_ms: dict[str, float]
    """CPU milliseconds of `writer`, `reader` and `redis` per entry."""


Side = Callable[[str, Case, int, Callable[[], Awaitable[None]]], Awaitable[list[Any]]]
"""Takes Redis's URL, the case, the number of steps, and a function that waits for the start once it is ready.

A writer returns the time of each `put`, a reader the (step, time) of each entry in its event loop, by the monotonic
clock that all processes of a machine share.
"""


def measure(case: Case, write: Side, read: Side, seconds: float) -> Hop:
    """Measures one case for about `seconds`. Raises EOFError if a process dies."""
    steps = WARM_UP_STEPS + max(10, round(seconds / case.period))
    with private_redis() as (url, client):
        writer, reader = (start(_run, side, url, case, steps) for side in (write, read))
        for process in (writer, reader):
            process.recv()
        before = redis_seconds(client)
        for process in (reader, writer):
            process.send("go")
        put, writer_seconds = writer.recv()
        seen, reader_seconds = reader.recv()
        spent = redis_seconds(client) - before
    delays = sorted(at - put[step - 1] for step, at in seen if step > WARM_UP_STEPS)
    p50, p99, largest = (
        round(1000 * delays[min(len(delays) - 1, int(fraction * len(delays)))], 3) for fraction in (0.5, 0.99, 1.0)
    )
    cpu = {"writer": writer_seconds, "reader": reader_seconds, "redis": spent}
    per_entry = {name: round(1000 * spent / (steps * case.streams), 5) for name, spent in cpu.items()}
    return Hop(p50, p99, largest, len(delays), per_entry)


def _run(side: Side, url: str, case: Case, steps: int, parent: Connection) -> None:
    """The process of a side: sends the result and the CPU seconds since the start."""
    began = 0.0

    async def start() -> None:
        nonlocal began
        parent.send("ready")
        await asyncio.to_thread(parent.recv)
        began = time.process_time()

    async def run() -> None:
        result = await side(url, case, steps, start)
        parent.send((result, time.process_time() - began))

    asyncio.run(run())
