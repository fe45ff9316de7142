"""Runs one case with a private Redis and two processes, and measures the latency of every entry."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from redis import Redis

from hop.cases import WARM_UP_STEPS, Case, Hop, Read, Written
from syrinx_stages.connector.server import RedisServer

Side = Callable[[str, Case, int, Connection], None]


def measure(case: Case, write: Side, read: Side, seconds: float) -> Hop:
    """Measures one case for about `seconds`. Raises EOFError if a process dies."""
    steps = WARM_UP_STEPS + max(10, round(seconds / case.period))
    with RedisServer() as server, Redis.from_url(server.url_with_password) as client:
        writer = _start(write, server.url_with_password, case, steps)
        reader = _start(read, server.url_with_password, case, steps)
        before = _redis_seconds(client)
        for side in (reader, writer):
            side.send("go")
        written: Written = writer.recv()
        seen: Read = reader.recv()
        redis = _redis_seconds(client) - before
    delays = sorted(at - written.put[step - 1] for step, at in seen.seen if step > WARM_UP_STEPS)
    cpu = {"writer": written.cpu_seconds, "reader": seen.cpu_seconds, "redis": redis}
    entries = steps * case.streams
    return Hop(
        p50_ms=_quantile_ms(delays, 0.50),
        p99_ms=_quantile_ms(delays, 0.99),
        max_ms=_quantile_ms(delays, 1.0),
        entries=len(delays),
        cpu_ms={name: round(1000 * spent / entries, 5) for name, spent in cpu.items()},
    )


def _start(side: Side, *arguments: Any) -> Connection:
    """Starts a process and waits until it is ready."""
    parent, child = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=side, args=(*arguments, child), daemon=True).start()
    child.close()
    parent.recv()
    return parent


def _redis_seconds(client: Redis) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def _quantile_ms(ordered: list[float], fraction: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))], 3)
