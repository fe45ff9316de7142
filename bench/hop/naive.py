"""The naive loop to compare with: redis-py, a pipeline of XADD, and XREAD over all streams."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Any

from redis.asyncio import Redis

from hop.cases import Case, Read, Written


def write(url: str, case: Case, steps: int, parent: Connection) -> None:
    """The writer process."""
    asyncio.run(_write(url, case, steps, parent))


def read(url: str, case: Case, steps: int, parent: Connection) -> None:
    """The reader process."""
    asyncio.run(_read(url, case, steps, parent))


async def _write(url: str, case: Case, steps: int, parent: Connection) -> None:
    client = Redis.from_url(url, protocol=2)
    await client.ping()
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    cpu, payload = time.process_time(), bytes(case.payload)
    put: list[float] = []
    start = time.monotonic()
    for step in range(1, steps + 1):
        await asyncio.sleep(start + step * case.period - time.monotonic())
        put.append(time.monotonic())
        pipeline = client.pipeline(transaction=False)
        for index in range(case.streams):
            pipeline.xadd(_name(index), {"d": payload}, id=f"{step}-0")
        await pipeline.execute()
    parent.send(Written(put, time.process_time() - cpu))
    await client.aclose()


async def _read(url: str, case: Case, steps: int, parent: Connection) -> None:
    client = Redis.from_url(url, protocol=2)
    after: dict[Any, Any] = {_name(index): "0-0" for index in range(case.streams)}
    await client.ping()
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    cpu = time.process_time()
    seen: list[tuple[int, float]] = []
    while len(seen) < steps * case.streams:
        reply: Any = await client.xread(after, block=1000)
        now = time.monotonic()
        for name, entries in reply:
            after[name.decode()] = entries[-1][0]
            seen += [(int(at.partition(b"-")[0]), now) for at, _ in entries]
    parent.send(Read(seen, time.process_time() - cpu))
    await client.aclose()


def _name(index: int) -> str:
    return f"{{hop:naive:0}}:{index:032x}"
