"""An HTTP server of a stage."""

import asyncio
import contextlib
import ctypes
import ipaddress
import json
import resource
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import WebSocketEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from syrinx_stages.contract.settings import KEEP_ALIVE_SECONDS
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http.listening import bind
from syrinx_stages.runtime.http.parser import RequestParser
from syrinx_stages.runtime.http.tls import Certificate, Handshakes

SHUTDOWN_SECONDS = 2
"""Time after the drain for responses in progress, so that a stalled client does not block the exit."""
LINGER_SECONDS = 1.0
"""How long idle connections stay open in a drain, so that requests that are on their way get a response."""
HANDSHAKE_SECONDS = 0.2
"""How long connections that the kernel has begun to make may take: some round trips, and less than the second after
which a client tries again."""
POLL_SECONDS = 0.02
HEADER_SECONDS = 30.0
"""A connection whose first or next request has begun, or that never had one, is closed within twice this time."""
KEEP_ALIVE_MARGIN = 5
"""Seconds for which a connection stays open beyond what `Keep-Alive` announces: a request that is sent until then, and
takes its time to arrive, gets a response."""
UNACKNOWLEDGED_SECONDS = 60.0
"""A connection whose client accepts no data for this long is closed by the kernel."""
SEND_BUFFER = 256 * 1024
"""Bytes of a response that the kernel holds for a client that reads slowly, by default megabytes: half a minute of
audio would count as delivered."""
MAX_BACKLOG = 1024
"""Maximum number of connections that wait to be accepted. All of them may be accepted at once."""
MAX_CONNECTIONS = 16_384
"""Maximum number of open connections of a server."""
MAX_ADMIN_CONNECTIONS = 128
"""Maximum number of open connections of the admin server, and of the settings server."""
RESERVED_FILES = 256 + 2 * MAX_ADMIN_CONNECTIONS
"""File descriptors that the connections of a public server leave to the rest of the process."""
WRITE_BUFFER = 64 * 1024
"""Bytes that wait for a client until writing pauses. asyncio's default with TLS is 512 KiB: 11 s of PCM."""
READ = ["GET", "HEAD"]
"""Methods of a route that only reads."""
MAX_MESSAGE = 4 * 2**20
"""Bytes of a WebSocket message: a configuration with half a minute of reference audio."""
FRAME_BYTES = 2 * 1024
"""Bytes of WebSocket frames that are parsed before others get their turn: at most 300 small frames, 5 ms."""
PING_SECONDS = 20.0
"""Interval of pings, and how long a WebSocket's client may take to answer one."""
_SO_ATTACH_FILTER = 26
"""Linux's option for a program of the classic packet filter, which Python does not name."""
_IGNORE_CONNECTS = (
    (0x30, 0, 0, 13),  # Load the flags of the TCP header,
    (0x54, 0, 0, 0x12),  # keep SYN and ACK,
    (0x15, 0, 1, 0x02),  # and with SYN alone
    (0x06, 0, 0, 0),  # drop the segment;
    (0x06, 0, 0, 2**18),  # else accept it.
)


class _Config(uvicorn.Config):
    """uvicorn's configuration with a limit that makes room; its own one refuses requests."""

    max_connections: int
    websocket_paths: Collection[str]
    """Requests for them may become WebSockets."""


class _Flow(FlowControl):
    """Controls whether a connection is read and written."""

    held = False
    """Not to be read before what was received is parsed."""

    def resume_reading(self) -> None:
        """Reads on, unless `held`."""
        if not self.held:
            super().resume_reading()


class _Protocol(H11Protocol):
    """Responds to malformed requests in the shape of the OpenAI API, and limits the number of connections."""

    config: _Config
    conn: RequestParser
    flow: _Flow

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = RequestParser()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Makes room for the connection, or closes it if a request is in progress on every other one."""
        if len(self.connections) >= self.config.max_connections and not self._close_idle():
            self.transport = transport  # Not in `connections`: it never gets a request.
            message = "the gateway has too many connections; try again"
            self._send_error(503, message, "server_error", "overloaded", ("Retry-After", "1"))
            transport.close()
            return
        transport.set_write_buffer_limits(WRITE_BUFFER)
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def handle_events(self) -> None:
        """Handles what was received. After many events the others in the process get their turn first."""
        if not self.flow.held:
            self.conn.resume()
        super().handle_events()
        if self.conn.interrupted and not self.flow.held:
            self.flow.held = True
            self.flow.pause_reading()
            self.loop.call_soon(self._continue)

    def _continue(self) -> None:
        self.flow.held = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()

    def _should_upgrade(self) -> bool:
        """Returns whether a request becomes a WebSocket. Other upgrades are ignored, as HTTP allows."""
        return self._get_upgrade() == b"websocket" and self.scope["path"].rstrip("/") in self.config.websocket_paths

    def connection_lost(self, exc: Exception | None) -> None:
        """Ignores a connection that was not accepted."""
        if self in self.connections:
            super().connection_lost(exc)

    def _close_idle(self) -> bool:
        """Closes a quarter of the connections without a request. Returns whether there are any."""
        idle = [each for each in self.connections if _idle(each)]
        for each in idle[: 1 + len(idle) // 4]:
            each.shutdown()
            self.connections.discard(each)
        return bool(idle)

    def send_400_response(self, msg: str) -> None:
        """Sends 400, or 431 for large headers, and closes; a response that has begun remains incomplete."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = sys.exception()
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            self._send_error(status, f"{msg} {error}", "invalid_request_error", "invalid_http")
        self.transport.close()

    def _send_error(self, status: int, message: str, kind: str, code: str, *more: tuple[str, str]) -> None:
        detail = {"message": message, "type": kind, "param": None, "code": code}
        body = json.dumps({"error": detail}).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *more,
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))


class _WebSocket(WSProtocol):
    """A WebSocket, which counts as one request. The application closes it, also in a drain.

    Frames are parsed in turns, and when the application has taken the messages before: thousands may arrive at once.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.default_headers = [each for each in self.default_headers if each[0] != b"keep-alive"]
        self._waiting = b""
        """Received data that is not parsed yet."""

    def data_received(self, data: bytes) -> None:
        """Parses the first of the data; the others in the process get their turn before the rest."""
        self._waiting += data
        self.transport.pause_reading()
        self._parse()

    def _parse(self) -> None:
        if self.transport.is_closing() or not (self.queue.empty() or self.close_sent):
            return
        piece, self._waiting = self._waiting[:FRAME_BYTES], self._waiting[FRAME_BYTES:]
        if piece:
            super().data_received(piece)
        if self._waiting:
            self.loop.call_soon(self._parse)
        elif (self.queue.empty() or self.close_sent) and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    async def receive(self) -> WebSocketEvent:
        """Returns the next message."""
        message = await self.queue.get()
        if self.queue.empty():
            self.loop.call_soon(self._parse)
        return message

    def shutdown(self) -> None:
        """Does nothing: speech in progress may end first."""


def _idle(connection: Any) -> bool:
    """Whether no request is in progress on a connection."""
    if isinstance(connection, _WebSocket):
        return False
    cycle = getattr(connection, "cycle", None)
    return cycle is None or bool(cycle.response_complete)


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would stop before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` until `close`. An empty host or `::` means all addresses, IPv4 and IPv6. Raises `StartError`.

    At `max_connections` connections, those without a request make room for new ones.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        max_connections: int = MAX_ADMIN_CONNECTIONS,
        certificate: Certificate | None = None,
        trusted_proxies: Sequence[str] = (),
        shares_port: bool = False,
        websocket_paths: Collection[str] = (),
        keep_alive_seconds: int = KEEP_ALIVE_SECONDS,
    ) -> None:
        """`trusted_proxies`: ranges of addresses whose `X-Forwarded-For` names the client.

        `shares_port`: other processes may listen on the port, too; this one gets no connection before `open`.
        `websocket_paths`: where WebSockets are accepted. `keep_alive_seconds`: how long clients may keep a connection
        between two requests.
        """
        proxies = _networks(trusted_proxies)
        try:
            self._socket = bind(host, port, shares_port)
            # Accepted connections inherit this option; asyncio does not set it on a socket that it did not create.
            # Without it the first audio of a stream waits up to 40 ms for the client to acknowledge the headers.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * UNACKNOWLEDGED_SECONDS))
            if not shares_port:
                self._socket.listen(max_backlog())
        except OSError as error:
            raise StartError(f"cannot listen on {host or '*'}:{port}: {error.strerror or error}") from None
        self._certificate = certificate
        self._handshakes = Handshakes()
        self.url = f"{'https' if certificate else 'http'}://{_url_host(host)}:{self._socket.getsockname()[1]}"
        options = _Config(
            app,
            # Not httptools, which a vLLM image has: it limits no headers, and loses a body after `Upgrade: h2c`.
            http=self._protocol,  # type: ignore[arg-type]  # uvicorn only calls it.
            ws=_WebSocket,
            ws_max_size=MAX_MESSAGE,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            # Audio cannot be compressed, and a small message could be inflated to any size.
            ws_per_message_deflate=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            backlog=max_backlog(),
            # Its loggers use the handler of the process.
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=keep_alive_seconds + KEEP_ALIVE_MARGIN,
            headers=[("Keep-Alive", f"timeout={keep_alive_seconds}")],
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        options.max_connections = self._max_connections = max_connections
        options.websocket_paths = websocket_paths
        self._server = _Server(options)
        self._task: asyncio.Task[None] | None = None
        self._closing_unused = asyncio.create_task(self._close_unused())
        self._reloading = asyncio.create_task(certificate.run()) if certificate else None
        if not shares_port:
            self.open()

    def open(self) -> None:
        """Listens on a shared port, if it does not yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def _close_unused(self) -> None:
        """Closes connections on which no request has begun between two looks, unless uvicorn limits their time."""
        before: set[tuple[Any, Any]] = set()
        while True:
            await asyncio.sleep(HEADER_SECONDS)
            idle = [each for each in self._server.server_state.connections if _idle(each)]
            unlimited = [each for each in idle if getattr(each, "timeout_keep_alive_task", None) is None]
            unused = {(each, getattr(each, "cycle", None)) for each in unlimited}
            for connection, _ in unused & before:
                connection.shutdown()
            before = unused

    async def drain(self, seconds: float) -> None:
        """Closes the socket, so that the kernel refuses connections; waits up to `seconds` until all have closed.

        Connections that are made or wait to be accepted are accepted first. Idle connections are closed after
        `LINGER_SECONDS`, the others with their response.
        """
        await self._close_socket()
        await self._connections_closed(min(seconds, LINGER_SECONDS))
        self._handshakes.abort()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        await self._connections_closed(seconds - LINGER_SECONDS)

    async def _close_socket(self) -> None:
        loop = asyncio.get_running_loop()
        # The kernel resets connections that wait to be accepted when their socket closes: no others may begin now.
        _ignore_connects(self._socket)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        loop.remove_reader(self._socket)
        # Connections that were just accepted get their transports now, which needs the server to be open.
        await asyncio.sleep(0)
        waiting = _accept_all(self._socket)
        for server in self._server.servers:
            server.close()
        for connection in waiting:
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self, **_: object) -> asyncio.BaseProtocol:
        """Returns the protocol of a new connection."""
        config, state = self._server.config, self._server.server_state
        http = _Protocol(config, state, self._server.lifespan.state)
        if self._certificate is None:
            return http
        # Those without a request make room later; see `_Protocol`.
        excess = len(state.connections) + len(self._handshakes) + 1 - self._max_connections
        self._handshakes.abort(max(0, excess))
        return self._handshakes.wrap(http, self._certificate)

    async def _connections_closed(self, seconds: float) -> None:
        end = monotonic() + seconds
        connections = self._server.server_state.connections
        while (connections or self._handshakes) and monotonic() < end:  # noqa: ASYNC110  uvicorn has no event.
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Waits up to `SHUTDOWN_SECONDS` for responses in progress and closes the socket."""
        self._closing_unused.cancel()
        if self._reloading is not None:
            self._reloading.cancel()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


def max_backlog() -> int:
    """Returns how many connections may wait to be accepted, for the number of files that this process may open."""
    return min(MAX_BACKLOG, _max_files() // 8)


def max_public_connections() -> int:
    """Returns how many connections a public server may have, for the number of files that this process may open."""
    return max(1, min(MAX_CONNECTIONS, _max_files() - max_backlog() - RESERVED_FILES))


def _max_files() -> int:
    """Raises the limit of open files as far as this process may, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2**20 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def _networks(ranges: Sequence[str]) -> list[str]:
    """Returns ranges of addresses as a socket for IPv4 and IPv6 shows them. Raises `StartError`."""
    networks = []
    for text in ranges:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise StartError(f"trusted proxies: {error}") from None
        networks.append(str(network))
        if network.version == 4:
            networks.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return networks


def _ignore_connects(listening: socket.socket) -> None:
    """Lets the kernel ignore new connections: clients try again after a second, and are refused if it is closed then.

    Connections that it has already answered are made, which closing the socket would reset.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _IGNORE_CONNECTS))
    with contextlib.suppress(OSError):
        filtering = struct.pack("HP", len(_IGNORE_CONNECTS), ctypes.addressof(program))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtering)


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    """Accepts the connections that wait; those for which the process lacks file descriptors remain."""
    accepted = []
    with contextlib.suppress(OSError):
        while True:
            accepted.append(listening.accept()[0])
    return accepted


def _url_host(host: str) -> str:
    if host in ("", "::", "0.0.0.0"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
