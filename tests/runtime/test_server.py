"""Tests of the HTTP server: its addresses, its URL, and its limits on slow clients."""

import asyncio
import contextlib
import errno
import json
import select
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http import server as server_module
from syrinx_stages.runtime.http.listening import bind
from syrinx_stages.runtime.http.server import HEADER_SECONDS, KEEP_ALIVE_MARGIN, HttpServer

pytestmark = pytest.mark.virtual

APP = FastAPI()
DEADLINE = 20.0
REAL_DEADLINE = 60.0
"""Seconds of real time for what the kernel does."""
IPV6 = socket.has_dualstack_ipv6()


@contextlib.asynccontextmanager
async def serving(app: FastAPI, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, host, 0, **options)
    try:
        yield server
    finally:
        await server.close()


def http_client(**options: Any) -> httpx.AsyncClient:
    """Returns a client without a time-out. No request of it needs certificates."""
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=None, **options)


@pytest.mark.parametrize(
    ("host", "url_host", "addresses"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", "127.0.0.1", ["127.0.0.1", "127.0.0.2"]),
        ("", "127.0.0.1", ["127.0.0.1", "127.0.0.2", *(["[::1]"] if IPV6 else [])]),
        ("::", "127.0.0.1", ["127.0.0.1", "127.0.0.2", *(["[::1]"] if IPV6 else [])]),
        pytest.param("::1", "[::1]", ["[::1]"], marks=pytest.mark.skipif(not IPV6, reason="no IPv6 here")),
    ],
)
async def test_responds_at_every_requested_address(host: str, url_host: str, addresses: list[str]) -> None:
    async with serving(APP, host) as server, http_client() as client:
        assert server.url.startswith(f"http://{url_host}:")
        for address in addresses:
            assert (await client.get(f"http://{address}:{urlsplit(server.url).port}/x")).status_code == 404


async def test_listens_on_ipv4_only_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    await test_responds_at_every_requested_address("", "127.0.0.1", ["127.0.0.1", "127.0.0.2"])


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
async def test_a_taken_port_is_named_in_the_error(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"cannot listen on .*:{port}: .*[Aa]ddress already in use"):
            HttpServer(APP, host, port)


@pytest.mark.parametrize("shared_before", [False, True])
@pytest.mark.parametrize("shares_port", [False, True])
def test_closed_connections_do_not_keep_a_port(shared_before: bool, shares_port: bool) -> None:
    with bind("127.0.0.1", 0, shared_before) as before:
        before.listen()
        port = before.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            before.accept()[0].close()  # The end that closes first keeps the connection for a minute.
            assert client.recv(1) == b""
    with bind("127.0.0.1", port, shares_port) as again:
        again.listen()


async def test_a_shared_port_takes_connections_only_once_it_is_open() -> None:
    first = HttpServer(APP, "127.0.0.1", 0, shares_port=True)
    port = urlsplit(first.url).port
    assert port is not None
    second = HttpServer(APP, "127.0.0.1", port, shares_port=True)
    try:
        with pytest.raises(ConnectionRefusedError):
            connect(first)
        first.open()
        async with http_client(limits=httpx.Limits(max_keepalive_connections=0)) as client:
            for _ in range(20):
                assert (await client.get(f"{first.url}/x")).status_code == 404, "the second would not respond"
    finally:
        await first.close()
        await second.close()


async def test_no_connection_is_made_while_the_socket_closes() -> None:
    async with serving(APP) as server:
        with connect(server) as client, socket.socket() as late:
            draining = asyncio.create_task(server.drain(DEADLINE))
            await asyncio.sleep(0)
            late.setblocking(False)
            assert late.connect_ex(("127.0.0.1", urlsplit(server.url).port)) == errno.EINPROGRESS
            assert not select.select([], [late], [], 0)[1], "a connection would be made at once, and reset later"
            await closed_after(client)
            await draining
            assert select.select([], [late], [], REAL_DEADLINE)[1], "the kernel tries again after a second"
            assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


async def test_a_foreign_address_is_an_error() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0"):
        HttpServer(APP, "192.0.2.1", 0)


async def test_accepted_connections_send_at_once_and_end_if_nothing_is_acknowledged() -> None:
    async with serving(APP) as server, http_client() as client:
        await client.get(f"{server.url}/x")
        (accepted,) = server._server.server_state.connections
        connection = accepted.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        unacknowledged = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert unacknowledged == 1000 * server_module.UNACKNOWLEDGED_SECONDS


def connect(server: HttpServer) -> socket.socket:
    """Opens a plain connection."""
    return socket.create_connection(("127.0.0.1", urlsplit(server.url).port))


async def closed_after(client: socket.socket) -> float:
    """Returns the seconds until the server closes the connection. The client reads nothing before that."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client.setblocking(False)
    while await loop.sock_recv(client, 4096):
        pass
    return loop.time() - began


@pytest.mark.parametrize("sent", [b"", b"GET /x HTTP/1.1\r\nHost:"], ids=["nothing", "half of the headers"])
async def test_a_connection_without_a_request_is_closed(sent: bytes) -> None:
    async with serving(APP) as server:
        with connect(server) as client:
            client.sendall(sent)
            assert HEADER_SECONDS <= await closed_after(client) <= 2 * HEADER_SECONDS


class Kept:
    """A connection that its client keeps between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, server: HttpServer) -> "Kept":
        return cls(*await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port))

    async def get(self) -> int:
        """Sends a request and returns how long the server says that the connection may be kept, in seconds."""
        self._writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 404"), head
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        await self._reader.readexactly(int(headers["content-length"]))
        return int(headers["keep-alive"].removeprefix("timeout="))

    async def closed_after(self) -> float:
        """Returns the seconds until the server closes the connection."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await self._reader.read() == b""
        return loop.time() - began

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("seconds", [1, 75, 620])
async def test_no_request_is_lost_that_is_sent_within_the_announced_time(seconds: int) -> None:
    """1,000 requests, up to the very end of it."""
    async with serving(APP, keep_alive_seconds=seconds) as server:
        for _ in range(10):
            clients = [await Kept.open(server) for _ in range(100)]

            async def again(client: Kept, before_end: float) -> None:
                announced = await client.get()
                assert announced == seconds
                await asyncio.sleep(announced - before_end)
                await client.get()
                client.close()

            await asyncio.gather(*(again(client, number / 100) for number, client in enumerate(clients)))


async def test_a_connection_stays_open_for_longer_than_announced_and_is_then_closed() -> None:
    """A request may take its time to arrive."""
    async with serving(APP, keep_alive_seconds=75) as server:
        client = await Kept.open(server)
        for _ in range(3):
            await client.get()
            await asyncio.sleep(75 + KEEP_ALIVE_MARGIN - 0.1)
        await client.get()
        assert await client.closed_after() == pytest.approx(75 + KEEP_ALIVE_MARGIN, abs=0.01)
        client.close()


async def test_half_of_the_next_request_has_the_limit_of_headers() -> None:
    async with serving(APP, keep_alive_seconds=620) as server:
        client = await Kept.open(server)
        await client.get()
        client._writer.write(b"GET /x HTTP/1.1\r\nHost:")
        assert HEADER_SECONDS <= await client.closed_after() <= 2 * HEADER_SECONDS
        client.close()


async def test_a_connection_with_a_request_in_progress_stays_open() -> None:
    app = FastAPI()

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(3 * HEADER_SECONDS)
        return "done"

    async with serving(app) as server, http_client() as client:
        assert (await client.get(f"{server.url}/slow")).json() == "done"


async def test_little_of_a_response_that_nobody_reads_is_held() -> None:
    app, sent = FastAPI(), 0

    @app.get("/large")
    async def large() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                yield bytes(10_000)
                sent += 10_000
                await asyncio.sleep(0)

        return StreamingResponse(chunks())

    async with serving(app) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client.connect(("127.0.0.1", urlsplit(server.url).port))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            # The clock moves once nothing more can be sent.
            await asyncio.sleep(1.0)
        assert 0 < sent < 1_000_000


async def test_a_drain_serves_the_connections_that_wait_to_be_accepted() -> None:
    server = HttpServer(APP, "127.0.0.1", 0)
    await asyncio.sleep(0.1)
    # The kernel completes these while the event loop is held.
    waiting = [connect(server) for _ in range(20)]
    for client in waiting:
        client.send(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await server.drain(DEADLINE)
    try:
        for client in waiting:
            assert client.recv(100).startswith(b"HTTP/1.1 404")
            client.close()
        with pytest.raises(ConnectionRefusedError):
            connect(server)
    finally:
        await server.close()


def slow_app(release: asyncio.Event) -> FastAPI:
    """Responds when `release` is set."""
    app = FastAPI()

    @app.get("/slow")
    async def slow() -> str:
        await release.wait()
        return "done"

    return app


async def test_connections_without_a_request_make_room() -> None:
    """Connections that send nothing do not affect running responses or new requests."""
    release = asyncio.Event()
    async with serving(slow_app(release), max_connections=20) as server:
        async with http_client(base_url=server.url) as client:
            running = asyncio.create_task(client.get("/slow"))
            await asyncio.sleep(0.2)
            unused = [connect(server) for _ in range(100)]
            assert (await client.get("/x")).status_code == 404
            release.set()
            assert (await running).text == '"done"'
        assert 20 >= sum(is_open(each) for each in unused) > 5
        for each in unused:
            each.close()


async def test_a_connection_beyond_the_limit_is_refused_while_all_others_have_a_request() -> None:
    release = asyncio.Event()
    async with serving(slow_app(release), max_connections=2) as server:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with http_client(base_url=server.url, limits=limits) as client:
            running = [asyncio.create_task(client.get("/slow")) for _ in range(2)]
            await asyncio.sleep(0.2)
            refused = await client.get("/slow")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["Retry-After"] == "1"
            release.set()
            assert [(await each).status_code for each in running] == [200, 200]
            assert (await client.get("/slow")).status_code == 200


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def exchange(server: HttpServer, sent: bytes) -> bytes:
    """Returns what the server sends on a new connection until it closes it."""
    with connect(server) as client:
        client.setblocking(False)
        received = b""
        async with asyncio.timeout(DEADLINE):
            await asyncio.get_running_loop().sock_sendall(client, sent)
            while part := await asyncio.get_running_loop().sock_recv(client, 4096):
                received += part
        return received


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"\x16\x03\x01 a TLS client\r\n\r\n", 400, "illegal request line"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 30_000, 431, "too long"),
    ],
    ids=["not HTTP", "no host", "encoding", "large header"],
)
async def test_a_malformed_request_gets_an_error_in_json(sent: bytes, status: int, message: str) -> None:
    async with serving(APP) as server:
        head, _, body = (await exchange(server, sent)).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode()) and b"application/json" in head
        error = json.loads(body)["error"]
        assert message in error["message"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_http")


async def test_a_malformed_body_cuts_off_the_response_that_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            while True:
                yield b"audio"
                await asyncio.sleep(0.01)

        return StreamingResponse(chunks())

    server = HttpServer(app, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        async with asyncio.timeout(DEADLINE):
            writer.write(b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await reader.readuntil(b"audio")
            writer.write(b"not a chunk\r\n")
            rest = await reader.read()
        assert not rest.endswith(b"0\r\n\r\n"), "it looks incomplete"
        assert rest.replace(b"5\r\naudio\r\n", b"").strip() == b""
    finally:
        writer.close()
        await server.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
