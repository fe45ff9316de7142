"""A sentinel that says what a test tells it to say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import hiredis


class Sentinel:
    """Names a primary, as a sentinel does before, during and after a fail-over."""

    def __init__(self, primary: int) -> None:
        self.primary = primary
        """The port of the primary."""
        self.epoch = 0
        self.failing_over = False
        self.down = False
        """It does not reach the primary."""
        self.promoting: int | None = None
        """The port of the replica that it has chosen."""
        self.asked = 0
        """Number of replies so far."""
        self.port = 0

    def promote(self, port: int) -> None:
        """The fail-over has ended."""
        self.primary, self.epoch, self.failing_over, self.down = port, self.epoch + 1, False, False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        parser = hiredis.Reader()
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(4096):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    writer.write(self._reply(command[1]))

    def _reply(self, command: bytes) -> bytes:
        self.asked += 1
        if command == b"REPLICAS":
            return self._replicas()
        address = ("127.0.0.1", str(self.primary))
        if command == b"GET-MASTER-ADDR-BY-NAME":
            return hiredis.pack_command(address)
        flags = "master" + ",s_down" * self.down + ",failover_in_progress" * self.failing_over
        return _fields(ip=address[0], port=address[1], flags=flags, **{"config-epoch": str(self.epoch)})

    def _replicas(self) -> bytes:
        if self.promoting is None:
            return b"*0\r\n"
        return b"*1\r\n" + _fields(ip="127.0.0.1", port=str(self.promoting), flags="slave,promoted")


def _fields(**fields: str) -> bytes:
    return hiredis.pack_command(tuple(text for field in fields.items() for text in field))


@contextlib.asynccontextmanager
async def sentinel(primary: int) -> AsyncIterator[Sentinel]:
    """Runs a sentinel that names the server at a port of this machine."""
    running = Sentinel(primary)
    server = await asyncio.start_server(running.serve, "127.0.0.1")
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()


def sentinel_url(*sentinels: Sentinel | int, password: str) -> str:
    """Returns the URL for a connector; a sentinel may be given by its port."""
    ports = (each if isinstance(each, int) else each.port for each in sentinels)
    return f"redis+sentinel://:{password}@{','.join(f'127.0.0.1:{port}' for port in ports)}/service/0"
