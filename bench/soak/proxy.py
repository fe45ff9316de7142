"""A TCP proxy between one process and the Redis servers, for partitions, delays and resets."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Self

READ_BYTES = 64 * 1024


class _Direction:
    """One direction of all connections: open or held, with a delay in seconds."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay = 0.0

    async def passes(self) -> None:
        """Waits until data may be forwarded."""
        await asyncio.sleep(self.delay)
        await self.open.wait()


class Proxy:
    """Forwards connections from one process to servers on this machine. It is an async context manager.

    Data of a partition is delivered after it, as by TCP, even if its sender has closed the connection.
    `ports` maps each server's port to the proxy's port for it.
    """

    def __init__(self, servers: Sequence[int], sentinels: Sequence[int] = ()) -> None:
        """Takes ports. The addresses in the replies of `sentinels` are replaced by those of this proxy."""
        self.ports: dict[int, int] = {}
        self._servers, self._sentinels = servers, sentinels
        self._to_redis, self._from_redis = _Direction(), _Direction()
        self._listeners: list[asyncio.Server] = []
        self._connections: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        for port in (*self._servers, *self._sentinels):
            self.ports[port] = await self._listen(port)
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        self.heal()
        self.reset()

    def partition(self, to_redis: bool = True, from_redis: bool = True) -> None:
        """Holds the data to Redis, from it, or both, until `heal`."""
        for direction, held in ((self._to_redis, to_redis), (self._from_redis, from_redis)):
            if held:
                direction.open.clear()

    def slow(self, seconds: float) -> None:
        """Delays everything by `seconds` until `heal`."""
        self._to_redis.delay = self._from_redis.delay = seconds

    def heal(self) -> None:
        """Delivers the held data and ends all partitions and delays."""
        self.slow(0.0)
        self._to_redis.open.set()
        self._from_redis.open.set()

    def reset(self) -> None:
        """Resets all connections; data in flight is lost."""
        for writer in self._connections:
            writer.transport.abort()

    async def _listen(self, port: int) -> int:
        addresses = self.ports if port in self._sentinels else {}

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError), contextlib.closing(writer):
                await self._to_redis.passes()
                await self._from_redis.passes()
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
                both = {writer, server_writer}
                self._connections |= both
                try:
                    await asyncio.gather(
                        _forward(reader, server_writer, self._to_redis, {}),
                        _forward(server_reader, writer, self._from_redis, addresses),
                    )
                finally:
                    server_writer.close()
                    self._connections -= both

        listener = await asyncio.start_server(connected, "127.0.0.1")
        self._listeners.append(listener)
        listening: int = listener.sockets[0].getsockname()[1]
        return listening


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction, ports: Mapping[int, int]
) -> None:
    """Forwards until the sender closes the connection, then closes the other side."""
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            await direction.passes()
            writer.write(translate(data, ports))
            await writer.drain()
    await direction.passes()
    writer.close()


def translate(reply: bytes, ports: Mapping[int, int]) -> bytes:
    """Replaces ports in a sentinel's reply, where they are bulk strings."""
    for port, replacement in ports.items():
        reply = reply.replace(_bulk(port), _bulk(replacement))
    return reply


def _bulk(port: int) -> bytes:
    return b"$%d\r\n%d\r\n" % (len(str(port)), port)
