"""Injects faults into the running pipeline, one at a time."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from itertools import islice

import redis.asyncio

from soak.faults import PARTITIONS, SERVER_KINDS, STAGE_KINDS, Fault, Kind, Target
from soak.measure import Injected
from soak.pipeline import Pipeline
from soak.servers import Layout, Server, Servers
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import decode_request
from syrinx_stages.contract.stages import Stage

MAX_SECONDS = 6.0
"""Longest pause or partition of a talker, a codec or a Redis server: several leases."""
GATEWAY_SECONDS = 3.0
"""Longest pause or partition of a gateway: no other gateway can take over its streams."""
SLOW_SECONDS = 0.2
LOOKAHEAD = 20
"""Number of next faults among which the first possible one is injected."""
PRIMARY, REPLICA = "primary", "replica"
_OUTPUT = {Stage.TALKER: (Stage.TALKER, StreamKind.CODES), Stage.CODEC: (Stage.CODEC, StreamKind.AUDIO)}


def targets(pipeline: Pipeline, layout: Layout) -> list[Target]:
    """Returns the targets of faults."""
    stages = [
        Target(name, STAGE_KINDS, GATEWAY_SECONDS if child.stage == Stage.GATEWAY else MAX_SECONDS)
        for name, child in pipeline.children.items()
    ]
    if layout is Layout.SINGLE:
        return stages
    if layout is Layout.AOF:
        return [*stages, Target(PRIMARY, (Kind.KILL,) * 4, 0.0)]
    return [*stages, Target(PRIMARY, SERVER_KINDS * 2, MAX_SECONDS), Target(REPLICA, SERVER_KINDS, MAX_SECONDS)]


def group(target: str, pipeline: Pipeline) -> str:
    """Returns the stage of a target, or the target itself for a Redis server."""
    return target if target in (PRIMARY, REPLICA) else str(pipeline.children[target].stage)


class Injector:
    """Injects faults, but none that would leave a stage without a ready replica or Redis without a copy."""

    def __init__(self, pipeline: Pipeline, servers: Servers) -> None:
        self._pipeline, self._servers = pipeline, servers
        self.injected: list[Injected] = []
        self._waiting: list[Fault] = []
        """The next faults, oldest first."""
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped: set[int] = set()

    async def next(self, faults: Iterator[Fault]) -> Fault | None:
        """Injects the first of the next faults that is possible now, and returns it; None if none is."""
        self._waiting += islice(faults, LOOKAHEAD - len(self._waiting))
        survivable = {target: await self._is_survivable(target) for target in {each.target for each in self._waiting}}
        fault = next((each for each in self._waiting if survivable[each.target]), None)
        if fault is not None:
            self._waiting.remove(fault)
            await self._inject(fault)
        return fault

    async def end_all(self) -> None:
        """Waits for the end of the last faults."""
        await asyncio.gather(*self._ending)

    def resume(self) -> None:
        """Resumes every stopped process at once, so that it can be stopped for good."""
        for pid in list(self._stopped):
            self._resume(pid)

    async def _is_survivable(self, target: str) -> bool:
        if target in (PRIMARY, REPLICA):
            return await self._servers.unready() is None
        names = [target, *self._pipeline.peers(target)]
        return all([await self._pipeline.is_ready(name) for name in names])

    async def _inject(self, fault: Fault) -> None:
        server = await self._server(fault.target)
        pid = server.pid if server is not None else self._pipeline.children[fault.target].pid
        if pid is None:
            return
        frames = await self._served(fault.target)
        at = time.monotonic()
        self._start(fault, pid)
        self.injected.append(Injected(fault, group(fault.target, self._pipeline), at, frames))
        if fault.seconds:
            task = asyncio.create_task(self._end(fault, pid))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _server(self, target: str) -> Server | None:
        if target not in (PRIMARY, REPLICA):
            return None
        found = await self._servers.primary()
        others = [server for server in self._servers.servers if found is None or server is not found[0]]
        return found[0] if found is not None and target == PRIMARY else next(iter(others), None)

    def _start(self, fault: Fault, pid: int) -> None:
        numbers = {Kind.KILL: signal.SIGKILL, Kind.TERM: signal.SIGTERM, Kind.STOP: signal.SIGSTOP}
        if fault.kind in numbers:
            os.kill(pid, numbers[fault.kind])
            if fault.kind is Kind.STOP:
                self._stopped.add(pid)
            return
        proxy = self._pipeline.proxies[fault.target]
        if fault.kind in PARTITIONS:
            to_redis, from_redis = (
                fault.kind is not Kind.PARTITION_FROM_REDIS,
                fault.kind is not Kind.PARTITION_TO_REDIS,
            )
            proxy.partition(to_redis, from_redis)
        elif fault.kind is Kind.SLOW:
            proxy.slow(SLOW_SECONDS)
        else:
            proxy.reset()

    async def _end(self, fault: Fault, pid: int) -> None:
        await asyncio.sleep(fault.seconds)
        if fault.kind is Kind.STOP:
            self._resume(pid)
        else:
            self._pipeline.proxies[fault.target].heal()

    def _resume(self, pid: int) -> None:
        self._stopped.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _served(self, target: str) -> dict[str, int]:
        """Returns the frames that exist of each request that a target serves: codes for a talker, else audio."""
        if (found := await self._servers.primary()) is None:
            return {}
        client, keys = found[1], self._pipeline.keys
        if target in (PRIMARY, REPLICA):
            group, kind, consumer = Stage.CODEC, StreamKind.AUDIO, None
        elif (stage := self._pipeline.children[target].stage) == Stage.GATEWAY:
            return {}
        else:
            group, kind = _OUTPUT[stage]
            consumer = self._pipeline.children[target].name
        frames = {}
        with contextlib.suppress(redis.RedisError, OSError):
            for pending in await client.xpending_range(keys.requests, group, "-", "+", 1000, consumername=consumer):
                for _, fields in await client.xrange(keys.requests, pending["message_id"], pending["message_id"]):
                    request_id = decode_request(fields[b"d"]).id
                    info = await client.xinfo_stream(keys.stream(request_id, kind))
                    frames[request_id] = Position.parse(info["last-generated-id"]).frames
        return frames
