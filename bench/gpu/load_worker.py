"""A process of the load generator: `python -m gpu.load_worker` reads tasks from stdin and writes results to stdout.

A load is split among several workers so that none is busy enough to send late; each reports its CPU use and delays.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

from gpu.client import Client
from gpu.workload import Workload
from syrinx_operator.commands.bench.loadgen import PAUSE_AFTER_ERROR, Limit, closed_loop, open_loop
from syrinx_operator.commands.bench.stats import Outcome


class Open(Struct, frozen=True, tag=True):
    """An open loop."""

    arrivals: Sequence[float]
    """Due times of the requests in seconds from the start."""


class Closed(Struct, frozen=True, tag=True):
    """A closed loop: each client sends its next request when the last one has ended."""

    clients: int
    seconds: float


class Live(Struct, frozen=True, tag=True):
    """Listeners that play one utterance after the other in real time."""

    starts: Sequence[float]
    """When each listener starts, in seconds from the start of the load."""
    count_from: float
    """Utterances requested earlier (seconds) are not counted, because not all listeners have started."""
    seconds: float
    """No utterance is requested later."""


class Task(Struct, frozen=True):
    """A worker's share of a load."""

    url: str
    workload: Workload
    first: int
    stride: int
    """The worker sends requests first, first + stride, ..., which no other worker sends."""
    start: float
    """`time.monotonic()`, which is the same clock for all processes of a machine."""
    load: Open | Closed | Live


class TaskResult(Struct, frozen=True):
    """The result of a task."""

    outcomes: list[Outcome]
    wall_seconds: float
    """From the start to the last byte."""
    delays: list[float]
    """How late each request was sent, in seconds."""
    cpu_share: float
    """CPU use while the task ran, as a share of one core."""


Send = Callable[[float], Awaitable[Outcome]]
"""Sends the next request, due at this `time.monotonic()`."""


async def live_loop(send: Send, load: Live) -> list[Outcome]:
    """Runs the listeners; returns the outcomes of the counted utterances."""
    begin = time.monotonic()
    outcomes: list[Outcome] = []

    async def listen(start: float) -> None:
        await asyncio.sleep(begin + start - time.monotonic())
        end = begin + load.seconds
        while (due := time.monotonic()) < end:
            outcome = await send(due)
            if due - begin >= load.count_from:
                outcomes.append(outcome)
            await asyncio.sleep(min(_remaining_playback(outcome, due), max(0.0, end - time.monotonic())))

    async with asyncio.TaskGroup() as group:
        for start in load.starts:
            group.create_task(listen(start))
    return outcomes


def _remaining_playback(outcome: Outcome, due: float) -> float:
    """Returns the seconds until the playback of the utterance requested at `due` ends."""
    playback = outcome.playback
    if playback is None:
        return PAUSE_AFTER_ERROR
    return max(0.0, due + playback.first_playable + playback.underrun_seconds + playback.duration - time.monotonic())


async def run_task(task: Task) -> TaskResult:
    """Runs a task."""
    delays: list[float] = []
    client = Client(task.url, task.workload)

    async def send(due: float) -> Outcome:
        number = task.first + len(delays) * task.stride
        delays.append(max(0.0, time.monotonic() - due))
        return await client.send(number, due)

    await asyncio.sleep(task.start - time.monotonic())
    begin, cpu = time.monotonic(), time.process_time()
    outcomes = await _run_load(task.load, send)
    wall = time.monotonic() - begin
    client.close()
    return TaskResult(outcomes, wall, delays, (time.process_time() - cpu) / wall)


async def _run_load(load: Open | Closed | Live, send: Send) -> list[Outcome]:
    match load:
        case Open(arrivals=arrivals):
            return (await open_loop(lambda number, due: send(due), arrivals))[0]
        case Closed(clients=clients, seconds=seconds):
            return (await closed_loop(lambda number, due: send(due), clients, Limit(seconds=seconds)))[0]
        case Live():
            return await live_loop(send, load)


def main() -> None:
    """Runs tasks until stdin ends."""
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        gc.collect()
        gc.disable()  # A collection would delay all listeners at once.
        result = asyncio.run(run_task(task))
        gc.enable()
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
