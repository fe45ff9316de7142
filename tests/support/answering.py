"""An HTTP server that answers what a test wants, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Answer:
    """One response; `hang` says nothing at all."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False


@dataclass
class Server:
    """Where it is, and what it was asked."""

    url: str
    asked: list[Asked]


@contextlib.asynccontextmanager
async def answering(answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serves until it is left, on a loopback port of its own."""
    found = Server("", [])
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split()
            parts = urlsplit(target)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            found.asked.append(Asked(method, parts.path, query, headers))
            said = answer(found.asked[-1])
            if said.hang:
                await hanging.wait()
            lines = [f"HTTP/1.1 {said.status} X", f"Content-Length: {len(said.body)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in said.headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + said.body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    found.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield found
    finally:
        hanging.set()
        server.close()
        await server.wait_closed()
