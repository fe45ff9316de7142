"""Serves a `MemoryRedis` in a virtual event loop, by its clock, and a client that does not wait for the loop."""

import asyncio
import socket
import time
from typing import Self

from redis import ConnectionPool, Redis
from redis.connection import AbstractConnection

from support.memory_redis.server import MemoryRedis
from support.memory_redis.tcp import Connection
from support.virtual import VirtualLoop


class RedisInLoop:
    """A server on a loopback port of the running loop, which must be virtual."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        start = time.time() - loop.time()
        self.redis = MemoryRedis(lambda: start + loop.time(), loop.call_later)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        self._server = loop.create_task(loop.create_server(lambda: Connection(self.redis), sock=listener))

    def client(self) -> Redis:
        """Returns a client whose commands the server executes at once, without a socket."""
        return Redis(connection_pool=ConnectionPool(_Direct, redis=self.redis, protocol=2))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the server and its connections."""
        server = await self._server
        server.close()
        self.redis.restart()


class _Direct(AbstractConnection):
    """A connection without a network."""

    def __init__(self, redis: MemoryRedis, **options: object) -> None:
        self._redis = redis
        super().__init__(**options)

    def repr_pieces(self) -> list[tuple[str, object]]:
        return []

    def _connect(self) -> "_Pipe":
        return _Pipe(self._redis)

    def _host_error(self) -> str:
        return "memory"

    def can_read(self, timeout: float | None = 0) -> bool:
        """Nothing is left of the last reply."""
        return False


class _Pipe:
    """What a connection uses of a socket."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis, self._replies = redis, bytearray()
        self._client = redis.connect(self._replies.extend, self.close)

    def sendall(self, data: bytes) -> None:
        self._redis.receive(self._client, data)

    def recv_into(self, buffer: bytearray) -> int:
        size = min(len(buffer), len(self._replies))
        buffer[:size] = self._replies[:size]
        del self._replies[:size]
        return size

    def settimeout(self, seconds: float | None) -> None:
        """Replies are there when a command has been sent."""

    def shutdown(self, how: int) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        self._redis.disconnect(self._client)
