"""An HTTP server of a stage on an address of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute

from syrinx_stages.runtime.errors import StartError

LEAVE_SECONDS = 2
"""After the drain: time for answers that are on their way. A client that stalls does not hold the process."""
BACKLOG = 1024
"""Connections that may wait to be accepted."""


class _Server(uvicorn.Server):
    """Signals are the process's business: uvicorn would stop before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` until `close`. `host` empty or `::` is every address, IPv4 and IPv6. Raises `StartError`."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        try:
            self._socket = _listen(host, port)
            # Every connection inherits it; asyncio, which does not see that these are TCP, would set it on none. Else a
            # stream's first audio waits for the client to acknowledge the headers, 40 ms on Linux.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise StartError(f"cannot listen on {host or '*'}:{port}: {error.strerror or error}") from None
        self.url = f"http://{_reached_at(host)}:{self._socket.getsockname()[1]}"
        options = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        self._server = _Server(options)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        """Ends the answers that are on their way after `LEAVE_SECONDS`, and frees the address."""
        self._server.should_exit = True
        await self._task


def allow_head(app: FastAPI) -> None:
    """HEAD answers as GET does; the server leaves the body out. For when all routes are there."""
    for route in app.routes:
        methods = route.methods if isinstance(route, APIRoute) else None
        if methods is not None and "GET" in methods:
            methods.add("HEAD")


def _listen(host: str, port: int) -> socket.socket:
    if host not in ("", "::"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)


def _reached_at(host: str) -> str:
    """What a client on this machine calls `host` in a URL."""
    if host in ("", "::", "0.0.0.0"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
