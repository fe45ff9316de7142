"""One process of the load generator: `python -m gpu.generator` reads a task a line and answers with what was heard.

Several of them share a load, so that none is busy enough to be late; each says how busy and how late it was.
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
from gpu.requests import Requests
from syrinx_operator.commands.bench.loadgen import PAUSE_AFTER_ERROR, Limit, closed_loop, open_loop
from syrinx_operator.commands.bench.stats import Outcome


class Open(Struct, frozen=True, tag=True):
    """Requests at these seconds from the start."""

    arrivals: Sequence[float]


class Closed(Struct, frozen=True, tag=True):
    """So many clients, each sending its next request when its last has ended, for so many seconds."""

    clients: int
    seconds: float


class Live(Struct, frozen=True, tag=True):
    """Listeners that hear one utterance after the other, each to its end at the speed of speech."""

    begin: Sequence[float]
    """When each begins, in seconds from the start."""
    count_from: float
    """Utterances asked for before this many seconds are not counted: not everybody listens yet."""
    seconds: float
    """No utterance is asked for after them."""


class Task(Struct, frozen=True):
    """What one process does."""

    url: str
    requests: Requests
    first: int
    stride: int
    """It sends requests number first, first + stride, ...: no other process sends them."""
    start: float
    """`time.monotonic()`, the same clock for every process of a machine."""
    load: Open | Closed | Live


class Answer(Struct, frozen=True):
    """What came of a task."""

    outcomes: list[Outcome]
    wall_seconds: float
    """From the start to the last byte."""
    late: list[float]
    """How late each request was sent, in seconds."""
    cpu_share: float
    """Of one core, while the task lasted."""


Send = Callable[[float], Awaitable[Outcome]]
"""Sends the next request, which was due at this `time.monotonic()`."""


async def live_loop(send: Send, load: Live) -> list[Outcome]:
    """Listens. Returns what became of the utterances that count."""
    begin = time.monotonic()
    outcomes: list[Outcome] = []

    async def listen(since: float) -> None:
        await asyncio.sleep(begin + since - time.monotonic())
        until = begin + load.seconds
        while (due := time.monotonic()) < until:
            outcome = await send(due)
            if due - begin >= load.count_from:
                outcomes.append(outcome)
            await asyncio.sleep(min(_still_playing(outcome, due), max(0.0, until - time.monotonic())))

    async with asyncio.TaskGroup() as group:
        for since in load.begin:
            group.create_task(listen(since))
    return outcomes


def _still_playing(outcome: Outcome, due: float) -> float:
    """Seconds until the utterance that was asked for at `due` has been heard to its end."""
    played = outcome.playback
    if played is None:
        return PAUSE_AFTER_ERROR
    return max(0.0, due + played.first_playable + played.underrun_seconds + played.duration - time.monotonic())


async def perform(task: Task) -> Answer:
    """Does a task."""
    late: list[float] = []
    sent = 0
    client = Client(task.url, task.requests)

    async def send(due: float) -> Outcome:
        nonlocal sent
        number, sent = task.first + sent * task.stride, sent + 1
        late.append(max(0.0, time.monotonic() - due))
        return await client.speak(number, due)

    await asyncio.sleep(task.start - time.monotonic())
    begin, busy = time.monotonic(), time.process_time()
    outcomes = await _apply(task.load, send)
    wall = time.monotonic() - begin
    client.close()
    return Answer(outcomes, wall, late, (time.process_time() - busy) / wall)


async def _apply(load: Open | Closed | Live, send: Send) -> list[Outcome]:
    match load:
        case Open(arrivals=arrivals):
            return (await open_loop(lambda number, due: send(due), arrivals))[0]
        case Closed(clients=clients, seconds=seconds):
            return (await closed_loop(lambda number, due: send(due), clients, Limit(seconds=seconds)))[0]
        case Live():
            return await live_loop(send, load)


def main() -> None:
    """Does tasks until there are no more."""
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        gc.collect()
        gc.disable()  # A collection would stop every listener at once.
        answer = asyncio.run(perform(task))
        gc.enable()
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
