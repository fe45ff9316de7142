"""HTTP servers on loopback: one with scripted responses that records its requests, and one for applications."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn


@dataclass
class RecordedRequest:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class ScriptedResponse:
    """One response; with `hang`, the server never responds."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False


@dataclass
class Server:
    """The server's URL and the recorded requests."""

    url: str
    requests: list[RecordedRequest]


@contextlib.asynccontextmanager
async def http_server(
    respond: Callable[[RecordedRequest], ScriptedResponse], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Runs a server on a free loopback port for the duration of the block."""
    running = Server("", [])
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split()
            parts = urlsplit(target)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            running.requests.append(RecordedRequest(method, parts.path, query, headers))
            response = respond(running.requests[-1])
            if response.hang:
                await hanging.wait()
            lines = [f"HTTP/1.1 {response.status} X", f"Content-Length: {len(response.body)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in response.headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + response.body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    running.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield running
    finally:
        hanging.set()
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Runs an ASGI application on a free loopback port and yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    # Accepted connections inherit it. Data that waits for an acknowledgment would arrive late by a virtual clock.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off"))
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
