"""The two ends of a hop as the stages run them: a `Publisher` writes; a `Reader`, with a `PlaybackReporter`, reads."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from prometheus_client import Histogram

from hop.cases import Case, Read, Written
from syrinx_stages.connector.base import AdmissionLimits, Append, Gone, StreamEntry, Superseded
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract.keys import STREAM_CREATED, Keys, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, Entry, SpeechRequest, TaskType
from syrinx_stages.gateway.fanout import PlaybackReporter
from syrinx_stages.runtime.publisher import Publisher

KEYS = Keys("hop", "1")
_ADMISSION = AdmissionLimits(max_queue=100_000, max_queue_seconds=3600)


def write(url: str, case: Case, steps: int, parent: Connection) -> None:
    """The writer process: creates the streams and, on a message from the parent, writes to all of them in each step."""
    asyncio.run(_write(url, case, steps, parent))


def read(url: str, case: Case, steps: int, parent: Connection) -> None:
    """The reader process: reads until it has seen every step of every stream."""
    asyncio.run(_read(url, case, steps, parent))


async def _write(url: str, case: Case, steps: int, parent: Connection) -> None:
    connector = RedisConnector(url, KEYS)
    for name in _names(case):
        request = SpeechRequest(id=name, accepted_at=time.time(), text="text", task_type=TaskType.CUSTOM_VOICE)
        await connector.submit(request, _ADMISSION)
    written, all_written = _counter(steps * case.streams)
    publisher = Publisher(connector, written, _refused, Histogram("seconds", "", registry=None))
    running = asyncio.create_task(publisher.run())
    _freeze()
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    cpu, entry = time.process_time(), _entry(case)
    put: list[float] = []
    start = time.monotonic()
    for step in range(1, steps + 1):
        await asyncio.sleep(start + step * case.period - time.monotonic())
        position = Position(step * case.frames)
        appends = [Append(name, case.kind, position, entry) for name in _names(case)]
        put.append(time.monotonic())
        publisher.put(appends)
    await all_written.wait()
    parent.send(Written(put, time.process_time() - cpu))
    running.cancel()
    await connector.close()


async def _read(url: str, case: Case, steps: int, parent: Connection) -> None:
    connector = RedisConnector(url, KEYS)
    reader = connector.reader()
    report, reporting = _reporter(connector, case)
    for name in _names(case):
        reader.subscribe(name, case.kind, STREAM_CREATED)
    seen: list[tuple[int, float]] = []

    async def read_all() -> None:
        while len(seen) < steps * case.streams:
            events = await reader.read()
            now = time.monotonic()
            for event in events:
                if isinstance(event, StreamEntry):
                    seen.append((event.position.frames // case.frames, now))
                    report(event.request_id, event.position.frames)

    reading = asyncio.create_task(read_all())
    # Wait until the reader blocks in Redis.
    await asyncio.sleep(0.3)
    _freeze()
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    cpu = time.process_time()
    await reading
    parent.send(Read(seen, time.process_time() - cpu))
    reporting.cancel()
    await connector.close()


def _reporter(connector: RedisConnector, case: Case) -> tuple[Callable[[str, int], None], asyncio.Task[None]]:
    """Returns the function that reports playback (a no-op in a codec) and the task that sends the reports."""
    reporter = PlaybackReporter(connector)
    report = reporter.report if case.kind is StreamKind.AUDIO else lambda request_id, frames: None
    return report, asyncio.create_task(reporter.run())


def _freeze() -> None:
    """Excludes everything loaded so far from garbage collection, as every stage process does after its start."""
    gc.collect()
    gc.freeze()


def _names(case: Case) -> list[str]:
    """Returns request IDs of the usual length."""
    return [f"{index:032x}" for index in range(case.streams)]


def _entry(case: Case) -> Entry:
    payload = bytes(case.payload)
    return Codes(payload) if case.kind is StreamKind.CODES else Audio(payload)


def _counter(count: int) -> tuple[Callable[[Append], None], asyncio.Event]:
    """Returns a callback, and the event that is set at its `count`-th call."""
    remaining, done = count, asyncio.Event()

    def counted(append: Append) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            done.set()

    return counted, done


def _refused(append: Append, outcome: Gone | Superseded) -> None:
    raise outcome
