"""Live streams in steady state: what a second of one costs Redis, and how long codes take from talker to codec.

Talkers, codecs and gateways are three processes with several replicas each. A replica runs the connector, the journal,
the publisher and the ownership of the real services; only its engine is replaced, by a clock: a talker generates a
frame of each stream every 80 ms and holds it as the real one does, a codec decodes a chunk of `chunk_frames` when it
has their codes, and a gateway reports each chunk as played.
"""

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from typing import Any

from msgspec import Struct
from prometheus_client import Counter as CounterMetric
from prometheus_client import Histogram

from redis_bench.processes import start
from redis_bench.redis_time import busiest_commands, private_redis, redis_seconds
from redis_bench.requests import KEYS, name, submit
from syrinx_stages.connector.base import OUTPUT_STREAM, Append, Capacity, Claim, Refusal, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import STREAM_CREATED, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, Entry
from syrinx_stages.contract.stages import Stage
from syrinx_stages.gateway.cells.fanout import PlaybackReporter
from syrinx_stages.runtime.requests.journal import Journal
from syrinx_stages.runtime.requests.ownership import Ownership
from syrinx_stages.runtime.requests.publisher import Publisher
from syrinx_stages.talker.holding import HELD_FRAMES, Holder, Holding

FRAME_BYTES = 2 * FAMILY.code_groups
FRAME_SECONDS = 0.08


class Size(Struct, frozen=True):
    """The size of a pipeline and of a run."""

    streams: int = 256
    talkers: int = 4
    codecs: int = 4
    gateways: int = 2
    lead_seconds: float = 6.0
    """How far ahead of its listener a stream is; 0 if it has just begun."""
    chunk_frames: int = 12
    """Frames in an entry of audio: by default the longest chunk of a GPU's default ramp."""
    seconds: float = 8.0
    warm_up_seconds: float = 2.0


class Run(Struct, frozen=True):
    """The measurements of one run."""

    redis_us_per_stream_second: float
    hop_p50_ms: float
    hop_p99_ms: float
    """From a talker's `put` to the codec's event loop, for each entry of codes."""
    entries: int
    """Entries of codes that the codecs have read."""
    commands_ms: dict[str, float]
    """The commands that took most of Redis's time; a script includes the commands that it calls."""


def measure(size: Size) -> Run:
    """Runs the pipeline once. Raises EOFError if a process dies."""
    with private_redis() as (url, client):
        parts = [start(_run, side, url, size) for side in (_talkers, _codecs, _gateways)]
        for part in parts:
            part.recv()
        for part in parts:
            part.send("go")
        time.sleep(size.warm_up_seconds)
        client.config_resetstat()
        before, began = redis_seconds(client), time.monotonic()
        time.sleep(size.seconds)
        spent, end = redis_seconds(client) - before, time.monotonic()
        commands = busiest_commands(client)
        for part in parts:
            part.send((began, end))
        delays: list[float] = sorted(parts[1].recv())
        parts[2].recv()
        for part in parts:
            part.close()
    p50, p99 = (1000 * delays[int(fraction * len(delays))] for fraction in (0.5, 0.99))
    cost = 1e6 * spent / (size.streams * (end - began))
    return Run(round(cost, 1), round(p50, 3), round(p99, 3), len(delays), commands)


def _run(
    side: Callable[[str, Size, Connection], Coroutine[Any, Any, None]], url: str, size: Size, parent: Connection
) -> None:
    asyncio.run(side(url, size, parent))


class _Replica:
    """One replica of a stage, without an engine."""

    def __init__(self, url: str, group: Stage, name: str, share: int) -> None:
        self.complete, self._share = asyncio.Event(), share
        """Set when it has claimed its share of the requests."""
        connector = RedisConnector(url, KEYS)
        self.reader, self.kind = connector.reader(), OUTPUT_STREAM[group]
        self.claims: dict[str, Claim] = {}
        self._journal = Journal(self.kind)
        seconds = Histogram("seconds", "", registry=None)
        self._publisher = Publisher(connector, self._journal, lambda append: None, _refused, seconds)
        self._input = StreamKind.PLAYBACK if group is Stage.TALKER else StreamKind.CODES
        ownership = Ownership(
            connector.consumer(group, name, self._journal.ended), share, self._admit, _lost,
            lambda: share - len(self.claims), lambda: Capacity(share - len(self.claims), 10.0),
            CounterMetric("takeovers", "", registry=None),
        )  # fmt: skip
        loops = (self._publisher.run, ownership.claim_loop, ownership.lease_loop, ownership.report_loop)
        self.tasks = [asyncio.create_task(loop()) for loop in loops]

    def _admit(self, claim: Claim) -> None:
        self.claims[claim.request.id] = claim
        if len(self.claims) == self._share:
            self.complete.set()
        self.reader.subscribe(claim.request.id, self._input, STREAM_CREATED)

    def put(self, outputs: Sequence[tuple[Claim, int, Entry]]) -> None:
        """Writes an entry of each claim, which ends at a number of frames."""
        last, kind = self._journal.last_position, self.kind
        self._publisher.put(
            [Append(each.request.id, kind, Position(at), entry, each.fence, last(each)) for each, at, entry in outputs]
        )


def _refused(append: Append, outcome: Refusal) -> None:
    raise outcome


def _lost(request_id: str) -> None:
    raise AssertionError(f"{request_id} was taken over from a live owner")


async def _claimed(url: str, group: Stage, replicas: int, streams: int, parent: Connection) -> list[_Replica]:
    """Starts the replicas and returns them when they have claimed all requests and the measurement begins."""
    shares = [len(range(number, streams, replicas)) for number in range(replicas)]
    started = [_Replica(url, group, f"{group}-{number}", share) for number, share in enumerate(shares)]
    for replica in started:
        await replica.complete.wait()
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    return started


async def _talkers(url: str, size: Size, parent: Connection) -> None:
    replicas = await _claimed(url, Stage.TALKER, size.talkers, size.streams, parent)
    ended = asyncio.create_task(asyncio.to_thread(parent.recv))
    start, step = time.monotonic(), 0
    rows = [{key: _row(key, size, start) for key in replica.claims} for replica in replicas]
    holding = [Holding(each) for each in rows]
    while not ended.done():
        step += 1
        for number, replica in enumerate(replicas):
            # Replicas are not in step with each other.
            await asyncio.sleep(start + (step + number / len(replicas)) * FRAME_SECONDS - time.monotonic())
            now = time.monotonic()
            # Nor are streams.
            stepped = [row for index, row in enumerate(rows[number].values()) if step > index % HELD_FRAMES]
            for row in stepped:
                row.produced += 1
                row.held.append(bytes(FRAME_BYTES))
            outputs = []
            for row in holding[number].take(stepped, now):
                content = struct.pack("d", now).ljust(len(row.held) * FRAME_BYTES, b"\0")
                row.held.clear()
                outputs.append((replica.claims[row.id], row.produced, Codes(content)))
            replica.put(outputs)


def _row(request_id: str, size: Size, start: float) -> Holder:
    return Holder(
        id=request_id, accepted_at=start, live=True, first_frame_at=start + size.lead_seconds, last_feedback_at=start,
        held=[],
    )  # fmt: skip


async def _codecs(url: str, size: Size, parent: Connection) -> None:
    replicas = await _claimed(url, Stage.CODEC, size.codecs, size.streams, parent)
    seen: list[tuple[float, float]] = []
    reading = [asyncio.create_task(_decode(replica, size.chunk_frames, seen)) for replica in replicas]
    start, end = await asyncio.to_thread(parent.recv)
    for task in reading:
        task.cancel()
    parent.send([now - put for put, now in seen if start <= put and now <= end])


async def _decode(replica: _Replica, chunk: int, seen: list[tuple[float, float]]) -> None:
    audio = Audio(bytes(chunk * FAMILY.frame_bytes))
    decoded: Counter[str] = Counter()
    while events := await replica.reader.read():
        now, outputs = time.monotonic(), []
        for event in events:
            if isinstance(event, StreamEntry) and isinstance(event.entry, Codes):
                seen.append((struct.unpack("d", event.entry.codes[:8])[0], now))
                if event.position.frames >= decoded[event.request_id] + chunk:
                    decoded[event.request_id] = event.position.frames
                    outputs.append((replica.claims[event.request_id], event.position.frames, audio))
        replica.put(outputs)


async def _gateways(url: str, size: Size, parent: Connection) -> None:
    listening = []
    for number in range(size.gateways):
        connector = RedisConnector(url, KEYS)
        reader, reporter = connector.reader(), PlaybackReporter(connector)
        own = range(number, size.streams, size.gateways)
        await submit(connector, own)
        for index in own:
            reader.subscribe(name(index), StreamKind.AUDIO, STREAM_CREATED)

        async def listen(reader: Any = reader, reporter: PlaybackReporter = reporter) -> None:
            while events := await reader.read():
                for event in events:
                    if isinstance(event, StreamEntry):
                        reporter.report(event.request_id, event.position.frames, 0)

        listening += [asyncio.create_task(listen()), asyncio.create_task(reporter.run())]
    parent.send("ready")
    await asyncio.to_thread(parent.recv)
    await asyncio.to_thread(parent.recv)
    for task in listening:
        if task.done():
            task.result()
    parent.send("ok")
