"""Requests in unusual forms on a real server: what could hide a second request from a proxy is refused."""

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import h11
import pytest
from fastapi import FastAPI, Request

from support.waiting import DEADLINE
from syrinx_stages.runtime.http.parser import MAX_EVENTS, MAX_HEAD, MAX_HEADERS, RequestParser
from syrinx_stages.runtime.http.server import HttpServer

pytestmark = pytest.mark.virtual

POST = b"POST /length HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /path HTTP/1.1\r\nHost: x\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = GET + b"Connection: close\r\n\r\n"
"""After this request the server closes the connection."""
CHUNKED = b"Transfer-Encoding: chunked\r\n"
ONE_CHUNK = b"5\r\naudio\r\n0\r\n\r\n"

app = FastAPI()
paths: list[str] = []
"""Paths of all requests that reached the application."""


@app.api_route("/length", methods=["POST"])
async def length(request: Request) -> int:
    paths.append("/length")
    return len(await request.body())


@app.get("/{path:path}")
async def path(path: str) -> str:
    paths.append(f"/{path}")
    return path


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    paths.clear()
    it = HttpServer(app, "127.0.0.1", 0)
    try:
        yield it
    finally:
        await it.close()


async def exchange(server: HttpServer, sent: bytes) -> bytes:
    """Returns what the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
    try:
        async with asyncio.timeout(DEADLINE):
            writer.write(sent)
            return await reader.read()
    finally:
        writer.close()


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n" + ONE_CHUNK, id="length and chunked"),
        pytest.param(POST + CHUNKED + b"Content-Length: 4\r\n\r\n" + ONE_CHUNK, id="chunked and length"),
        pytest.param(POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n", id="two lengths"),
        pytest.param(POST + b"Content-Length: 0, 5\r\n\r\n", id="list of lengths"),
        pytest.param(POST + b"Content-Length: +5\r\n\r\n", id="signed length"),
        pytest.param(POST + b"Content-Length: 0x5\r\n\r\n", id="hexadecimal length"),
        pytest.param(POST + b"Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(POST + b"Content-Length : 5\r\n\r\n", id="space before the colon"),
        pytest.param(POST + b"Content-Length\t: 5\r\n\r\n", id="tab before the colon"),
        pytest.param(POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + ONE_CHUNK, id="chunked, identity"),
        pytest.param(POST + b"Transfer-Encoding: identity\r\n\r\n", id="identity"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n", id="xchunked"),
        pytest.param(POST + CHUNKED + CHUNKED + b"\r\n" + ONE_CHUNK, id="chunked twice"),
        pytest.param(POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + ONE_CHUNK, id="vertical tab"),
        pytest.param(POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + ONE_CHUNK, id="folded encoding"),
        pytest.param(GET + b"X: a\r\n\tb\r\n\r\n", id="folded header"),
        pytest.param(b"GET /path HTTP/1.1\r\n Host: x\r\n\r\n", id="folded first header"),
        pytest.param(b"GET /path HTTP/1.1\nHost: x\n\n", id="bare LF"),
        pytest.param(GET + b"X: a\nContent-Length: 5\r\n\r\n", id="one bare LF"),
        pytest.param(GET + b"X: a\rContent-Length: 5\r\n\r\n", id="bare CR"),
        pytest.param(GET + b"X: a\0b\r\n\r\n", id="NUL"),
        pytest.param(GET + b": a\r\n\r\n", id="no name"),
        pytest.param(b"POST /length HTTP/1.0\r\n" + CHUNKED + b"\r\n" + ONE_CHUNK, id="chunked in HTTP/1.0"),
        pytest.param(GET + b"Host: y\r\n\r\n", id="two hosts"),
        pytest.param(b"GET  /path HTTP/1.1\r\nHost: x\r\n\r\n", id="two spaces"),
        pytest.param(b"GET /path\r\nHost: x\r\n\r\n", id="HTTP/0.9"),
        pytest.param(b"GET /path HTTP/2.0\r\nHost: x\r\n\r\n", id="HTTP/2.0"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 preface"),
        pytest.param(POST + CHUNKED + b"\r\n0x5\r\naudio\r\n0\r\n\r\n", id="chunk 0x5"),
        pytest.param(POST + CHUNKED + b"\r\n+5\r\naudio\r\n0\r\n\r\n", id="chunk +5"),
        pytest.param(POST + CHUNKED + b"\r\n5\r\naudioXX0\r\n\r\n", id="chunk without an end"),
        pytest.param(POST + CHUNKED + b"\r\n" + b"F" * 21 + b"\r\naudio", id="chunk of a huge length"),
    ],
)
async def test_an_ambiguous_request_is_refused_and_its_connection_closed(server: HttpServer, sent: bytes) -> None:
    received = await exchange(server, sent + HIDDEN)
    assert statuses(received) in ([400], [501], [505]), received
    assert b"connection: close" in received.lower() and b"invalid_http" in received
    assert "/hidden" not in paths


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(GET + b"X: " + b"a" * MAX_HEAD + b"\r\n\r\n", id="long"),
        pytest.param(GET + b"X: " + b"a" * MAX_HEAD, id="long and incomplete"),
        pytest.param(GET + b"X: a\r\n" * MAX_HEADERS + b"\r\n", id="many"),
        pytest.param(b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\nHost: x\r\n\r\n", id="target"),
        pytest.param(POST + CHUNKED + b"\r\n0\r\n" + b"X: a\r\n" * 3000 + b"\r\n", id="trailers"),
        pytest.param(POST + CHUNKED + b"\r\n5;" + b"a" * 20_000 + b"\r\naudio", id="chunk extension"),
    ],
)
async def test_large_headers_are_a_431(server: HttpServer, sent: bytes) -> None:
    assert statuses(await exchange(server, sent + HIDDEN)) == [431]
    assert "/hidden" not in paths


BODY = b"Content-Length: 5\r\n\r\naudio"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: "
UNUSUAL = {
    "pipelined": (GET + b"\r\n" + HIDDEN + LAST, [200] * 3, ["/path", "/hidden", "/path"]),
    "length": (POST + BODY + LAST, [200] * 2, ["/length", "/path"]),
    "one length twice": (POST + b"Content-Length: 5\r\n" + BODY + LAST, [200] * 2, ["/length", "/path"]),
    "chunked": (POST + CHUNKED + b"\r\n" + ONE_CHUNK + LAST, [200] * 2, ["/length", "/path"]),
    "chunked with extras": (
        POST + CHUNKED + b"\r\n5;a=b\r\naudio\r\n0\r\nX: y\r\n\r\n" + LAST,
        [200] * 2,
        ["/length", "/path"],
    ),
    "HTTP/1.0": (b"GET /path HTTP/1.0\r\n\r\n" + HIDDEN, [200], ["/path"]),
    "HTTP/1.0 keep-alive": (b"GET /path HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + HIDDEN, [200], ["/path"]),
    "absolute form": (b"GET http://x/path HTTP/1.1\r\nHost: x\r\n\r\n" + LAST, [200] * 2, ["/path", "/path"]),
    "absolute form, no path": (b"GET HTTPS://x?a=b HTTP/1.1\r\nHost: x\r\n\r\n" + LAST, [200] * 2, ["/", "/path"]),
    "another scheme": (b"GET ftp://x/path HTTP/1.1\r\nHost: x\r\n\r\n" + LAST, [404, 200], ["/path"]),
    "CONNECT": (b"CONNECT y:443 HTTP/1.1\r\nHost: y:443\r\n\r\n" + LAST, [404, 200], ["/path"]),
    "TRACE": (b"TRACE /path HTTP/1.1\r\nHost: x\r\n\r\n" + LAST, [405, 200], ["/path"]),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" + LAST, [404, 200], ["/path"]),
    "h2c": (GET + UPGRADE + b"h2c\r\n\r\n" + LAST, [200] * 2, ["/path", "/path"]),
    "websocket": (GET + UPGRADE + b"websocket\r\n\r\n" + LAST, [200] * 2, ["/path", "/path"]),
}


@pytest.mark.parametrize(("sent", "expected", "served"), UNUSUAL.values(), ids=UNUSUAL)
async def test_unusual_requests_are_each_answered_once(
    server: HttpServer, sent: bytes, expected: list[int], served: list[str]
) -> None:
    assert statuses(await exchange(server, sent)) == expected
    assert paths == served


async def test_a_client_that_waits_for_100_continue_gets_it(server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
    async with asyncio.timeout(DEADLINE):
        writer.write(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [100]
        writer.write(b"audio" + LAST)
        assert statuses(await reader.read()) == [200, 200]
    writer.close()


def test_the_host_of_a_url_replaces_that_of_the_header() -> None:
    parser = RequestParser()
    parser.receive_data(b"GET http://a.example:80/b?c HTTP/1.1\r\nHost: localhost\r\nX: y\r\n\r\n")
    request = parser.next_event()
    assert isinstance(request, h11.Request) and request.target == b"/b?c"
    assert dict(request.headers) == {b"host": b"a.example:80", b"x": b"y"}


def test_a_body_of_tiny_chunks_gives_others_their_turn() -> None:
    """Otherwise one read of 256 KB would hold the event loop for a quarter of a second."""
    parser = RequestParser()
    parser.receive_data(POST + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 1000 + b"0\r\n\r\n")
    event, turns = h11.PAUSED, list[int]()
    while not isinstance(event, h11.EndOfMessage):
        parser.resume()
        turns.append(0)
        while (event := parser.next_event()) is not h11.PAUSED and not isinstance(event, h11.EndOfMessage):
            turns[-1] += 1
    assert sum(turns) == 1001
    assert max(turns) == MAX_EVENTS


async def test_a_body_of_tiny_chunks_arrives(server: HttpServer) -> None:
    chunks = b"1\r\na\r\n" * 4000
    received = await exchange(server, POST + CHUNKED + b"\r\n" + chunks + b"0\r\n\r\n" + LAST)
    assert statuses(received) == [200, 200] and b"4000" in received
