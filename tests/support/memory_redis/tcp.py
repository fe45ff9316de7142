"""Serves a `MemoryRedis` on a loopback port."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from support.memory_redis.server import Client, MemoryRedis


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._client: Client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._client = self._redis.connect(transport.write, transport.close)

    def data_received(self, data: bytes) -> None:
        self._redis.receive(self._client, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._redis.disconnect(self._client)


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Runs a server in a thread for the duration of the block. Yields its URL."""
    loop = asyncio.new_event_loop()
    redis = MemoryRedis(time.time, loop.call_later)
    listening = loop.run_until_complete(loop.create_server(lambda: Connection(redis), "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="memory-redis")
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.close()
