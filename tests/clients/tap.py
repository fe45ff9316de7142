"""A TCP relay before the gateway that keeps what passes: a client's own requests and the responses to them."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import h11
from msgspec import Struct, field

PIECE = 64 * 1024


class Exchange(Struct):
    """An HTTP request and its response, as bytes on the wire."""

    started: float
    """Unix seconds."""
    sent: bytes = b""
    received: list[tuple[float, bytes]] = field(default_factory=list)
    """The response in the pieces that arrived, each with its time in Unix seconds."""

    @property
    def ended(self) -> float:
        """When the last piece of the response arrived."""
        return self.received[-1][0]

    def request(self) -> tuple[str, dict[str, Any]]:
        """Returns the method with the path, and the fields of a JSON body."""
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(self.sent)
        head, body = _read(connection)
        return f"{head.method.decode()} {head.target.decode()}", json.loads(body) if body.startswith(b"{") else {}

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body. Names are in lower case."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="POST", target="/", headers=[("Host", "gateway")]))
        connection.receive_data(b"".join(piece for _, piece in self.received))
        head, body = _read(connection)
        return head.status_code, {name.decode(): value.decode() for name, value in head.headers}, body


def _read(connection: h11.Connection) -> tuple[Any, bytes]:
    head, body = None, b""
    while (event := connection.next_event()) is not h11.NEED_DATA:
        if isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.Request | h11.Response):
            head = event
        elif isinstance(event, h11.EndOfMessage):
            break
    return head, body


class Tap:
    """The relay. Its clients send one request after the other on a connection."""

    def __init__(self, port: int) -> None:
        self._gateway = port
        self.exchanges: list[Exchange] = []
        self.url = ""

    def since(self, start: float, end: float) -> list[Exchange]:
        """The exchanges that began in a period, in order."""
        return sorted((each for each in self.exchanges if start <= each.started <= end), key=lambda each: each.started)

    async def serve(self, ready: Future[int], stop: asyncio.Event) -> None:
        """Relays until `stop` is set."""
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            ready.set_result(server.sockets[0].getsockname()[1])
            await stop.wait()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_gateway, to_gateway = await asyncio.open_connection("127.0.0.1", self._gateway)
        exchanges: list[Exchange] = []

        def sent(piece: bytes) -> None:
            if not exchanges or exchanges[-1].received:
                exchanges.append(Exchange(time.time()))
                self.exchanges.append(exchanges[-1])
            exchanges[-1].sent += piece

        def received(piece: bytes) -> None:
            exchanges[-1].received.append((time.time(), piece))

        directions = (_copy(reader, to_gateway, sent), _copy(from_gateway, writer, received))
        await asyncio.gather(*directions, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: Any) -> None:
    try:
        while piece := await reader.read(PIECE):
            keep(piece)
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def tapped(port: int) -> Iterator[Tap]:
    """Relays to a port of this machine on a thread of its own."""
    tap, ready, stop = Tap(port), Future[int](), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(tap.serve(ready, stop),))
    thread.start()
    tap.url = f"http://127.0.0.1:{ready.result()}"
    try:
        yield tap
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
