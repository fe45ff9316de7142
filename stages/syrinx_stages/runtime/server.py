"""An HTTP server of a stage."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from syrinx_stages.runtime.errors import StartError

SHUTDOWN_SECONDS = 2
"""Time after the drain for responses in progress, so that a stalled client does not block the exit."""
BACKLOG = 1024
"""Maximum number of connections that wait to be accepted."""
READ = ["GET", "HEAD"]
"""Methods of a route that only reads."""


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` until `close`. An empty host or `::` means all addresses, IPv4 and IPv6. Raises `StartError`."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        try:
            self._socket = _listen(host, port)
            # Accepted connections inherit this option; asyncio does not set it on a socket that it did not create.
            # Without it the first audio of a stream waits up to 40 ms for the client to acknowledge the headers.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise StartError(f"cannot listen on {host or '*'}:{port}: {error.strerror or error}") from None
        self.url = f"http://{_url_host(host)}:{self._socket.getsockname()[1]}"
        options = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = _Server(options)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        """Waits up to `SHUTDOWN_SECONDS` for responses in progress and closes the socket."""
        self._server.should_exit = True
        await self._task


def _listen(host: str, port: int) -> socket.socket:
    if host not in ("", "::"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)


def _url_host(host: str) -> str:
    if host in ("", "::", "0.0.0.0"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
