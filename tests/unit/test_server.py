"""Where a stage's HTTP server listens, and what it calls itself."""

import socket
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.server import HttpServer

APP = FastAPI()
IPV6 = socket.has_dualstack_ipv6()


@pytest.mark.parametrize(
    ("host", "called", "answers_at"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", "127.0.0.1", ["127.0.0.1", "127.0.0.2"]),
        ("", "127.0.0.1", ["127.0.0.1", "127.0.0.2", *(["[::1]"] if IPV6 else [])]),
        ("::", "127.0.0.1", ["127.0.0.1", "127.0.0.2", *(["[::1]"] if IPV6 else [])]),
        pytest.param("::1", "[::1]", ["[::1]"], marks=pytest.mark.skipif(not IPV6, reason="no IPv6 here")),
    ],
)
async def test_it_answers_at_every_address_it_was_given(host: str, called: str, answers_at: list[str]) -> None:
    server = HttpServer(APP, host, 0)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert server.url.startswith(f"http://{called}:")
            for address in answers_at:
                assert (await client.get(f"http://{address}:{urlsplit(server.url).port}/x")).status_code == 404
    finally:
        await server.close()


async def test_all_addresses_are_ipv4_only_on_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    await test_it_answers_at_every_address_it_was_given("", "127.0.0.1", ["127.0.0.1", "127.0.0.2"])


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
async def test_a_taken_port_is_an_error_that_names_it(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"cannot listen on .*:{port}: .*[Aa]ddress already in use"):
            HttpServer(APP, host, port)


async def test_a_host_that_is_not_of_this_machine_is_an_error() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0"):
        HttpServer(APP, "192.0.2.1", 0)


async def test_a_streams_first_piece_does_not_wait_for_the_headers_to_be_acknowledged() -> None:
    app = FastAPI()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"audio"

        return StreamingResponse(pieces())

    server = HttpServer(app, "127.0.0.1", 0)
    took = []
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(8):  # Over one connection: a fresh one acknowledges at once.
                begin = time.monotonic()
                assert (await client.get(f"{server.url}/stream")).content == b"audio"
                took.append(time.monotonic() - begin)
    finally:
        await server.close()
    assert min(took[3:]) < 0.03, "Linux acknowledges after 40 ms"
