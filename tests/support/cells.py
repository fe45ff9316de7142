"""A pipeline of several cells within the test's process: a Redis, a talker and a codec for each, and gateways."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx

from support.gateway import client_of, gateway_service
from support.stages import Pipeline
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.checkpoint import Checkpoint

STALL_SECONDS = 30.0
"""A stream whose Redis is gone for this long ends with an error."""


@dataclass
class CellStages:
    """One cell: its Redis, and its talker and codec."""

    server: RedisServer
    stages: Pipeline

    def kill_redis(self) -> None:
        """Kills the Redis as SIGKILL does."""
        self.server.process.kill()
        self.server.process.wait()

    def restart_redis(self) -> None:
        """Starts an empty Redis at the same address."""
        dead, self.server = self.server, RedisServer(self.server.port, self.server.password)
        dead.stop()


@dataclass
class Served:
    """A gateway of all cells."""

    url: str
    service: GatewayService
    http: httpx.AsyncClient

    async def say(self, text: str, seed: int, started: Callable[[], None] = lambda: None, **fields: object) -> bytes:
        """Returns the PCM of a stream. Calls `started` at its first audio. Raises httpx.HTTPError if it fails."""
        body = {"input": text, "response_format": "pcm", "stream": True, "seed": seed, **fields}
        pcm = b""
        async with self.http.stream("POST", "/v1/audio/speech", json=body) as response:
            if response.is_error:
                await response.aread()
            response.raise_for_status()
            async for chunk in response.aiter_raw():
                if not pcm:
                    started()
                pcm += chunk
        return pcm

    def is_idle(self) -> bool:
        """Returns whether all cells serve and no request is expected to wait in any: each gets as many requests."""
        return all(cell.is_serving and cell.load == (0, 0) for cell in self.service.cells)

    def live(self) -> list[int]:
        """Returns the number of open requests in each cell."""
        return [len(cell.fanout) for cell in self.service.cells]


@dataclass
class CellPipeline:
    """All cells."""

    name: str
    checkpoint: Checkpoint
    cells: list[CellStages] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def gateway(self, **config: object) -> AsyncIterator[Served]:
        """Runs a gateway, which is ready."""
        own = {"pipeline": self.name, "generation": "1", "cells": len(self.cells)}
        own |= {"model": str(self.checkpoint.directory), **config}
        connectors = [cell.stages.connector() for cell in self.cells]
        async with gateway_service(connectors, STALL_SECONDS, **own) as (service, _), client_of(service) as http:
            yield Served(str(http.base_url).rstrip("/"), service, http)


@contextlib.asynccontextmanager
async def cells_of(checkpoint: Checkpoint, number: int, **talker: object) -> AsyncIterator[CellPipeline]:
    """Starts so many cells. talker: settings of the talkers."""
    running = CellPipeline(f"test-{uuid.uuid4().hex}", checkpoint)
    async with contextlib.AsyncExitStack() as cleanup:
        for cell in range(number):
            server = RedisServer()
            stages = Pipeline(checkpoint=checkpoint, url=server.url_with_password)
            stages.streams.keys = Keys(running.name, "1", cell, number)
            running.cells.append(CellStages(server, stages))
            cleanup.callback(lambda own=running.cells[-1]: own.server.stop())
            cleanup.push_async_callback(stages.close)
            await stages.talker(f"talker-{cell}", **talker)
            await stages.codec(f"codec-{cell}")
        yield running
