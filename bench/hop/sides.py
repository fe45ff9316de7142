"""The two ends of a hop as the stages run them: a `Publisher`, and a `Reader` with a `PlaybackReporter`."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

from prometheus_client import Histogram

from hop.measure import Case
from redis_bench.requests import claim, name, submit
from syrinx_stages.connector.base import WRITER_GROUP, Append, Refusal, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import STREAM_CREATED, Keys, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes
from syrinx_stages.gateway.cells.fanout import PlaybackReporter
from syrinx_stages.runtime.requests.journal import Journal
from syrinx_stages.runtime.requests.publisher import Publisher

KEYS = Keys("hop", "1")

Start = Callable[[], Awaitable[None]]


async def write(url: str, case: Case, steps: int, start: Start) -> list[float]:
    """Creates the streams and writes to all of them in each step."""
    connector = RedisConnector(url, KEYS)
    await submit(connector, range(case.streams))
    claims = await claim(connector.consumer(WRITER_GROUP[case.kind], "writer"), case.streams)
    remaining, all_written = steps * case.streams, asyncio.Event()

    def written(append: Append) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            all_written.set()

    journal = Journal(case.kind)
    publisher = Publisher(connector, journal, written, _refused, Histogram("seconds", "", registry=None))
    running = asyncio.create_task(publisher.run())
    _freeze()
    await start()
    entry = (Codes if case.kind is StreamKind.CODES else Audio)(bytes(case.payload))
    put: list[float] = []
    async for step in case.paced(steps):
        position = Position(step * case.frames)
        appends = [
            Append(each.request.id, case.kind, position, entry, each.fence, journal.last_position(each))
            for each in claims
        ]
        put.append(time.monotonic())
        publisher.put(appends)
    await all_written.wait()
    running.cancel()
    return put


async def read(url: str, case: Case, steps: int, start: Start) -> list[tuple[int, float]]:
    """Reads until it has seen every step of every stream, and reports playback like a gateway if it reads audio."""
    connector = RedisConnector(url, KEYS)
    reader, reporter = connector.reader(), PlaybackReporter(connector)
    reporting = asyncio.create_task(reporter.run())
    seen: list[tuple[int, float]] = []

    async def read_all() -> None:
        while len(seen) < steps * case.streams:
            events = await reader.read()
            now = time.monotonic()
            for event in events:
                if isinstance(event, StreamEntry):
                    seen.append((event.position.frames // case.frames, now))
                    if case.kind is StreamKind.AUDIO:
                        reporter.report(event.request_id, event.position.frames, 0)

    reading = asyncio.create_task(read_all())
    # Wait until the reader blocks in Redis.
    await asyncio.sleep(0.3)
    _freeze()
    await start()
    # Now the writer has submitted the requests.
    for request_id in _names(case):
        reader.subscribe(request_id, case.kind, STREAM_CREATED)
    await reading
    reporting.cancel()
    return seen


def _freeze() -> None:
    """Excludes everything loaded so far from garbage collection, as every stage process does after its start."""
    gc.collect()
    gc.freeze()


def _names(case: Case) -> list[str]:
    return list(map(name, range(case.streams)))


def _refused(append: Append, outcome: Refusal) -> None:
    raise outcome
