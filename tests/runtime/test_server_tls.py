"""A server with TLS: handshakes, certificates that are replaced, and a drain."""

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Request

from support.tls import Authority
from support.waiting import DEADLINE, until
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http.server import HttpServer
from syrinx_stages.runtime.http.tls import HANDSHAKE_SECONDS, Certificate

NAMES = ("DNS:localhost", "IP:127.0.0.1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def certificate(authority: Authority) -> Certificate:
    return Certificate(*map(str, authority.server(*NAMES)))


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/client")
    async def client(request: Request) -> dict[str, str]:
        return {"host": request.client.host, "scheme": request.url.scheme}

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    return app


@contextlib.asynccontextmanager
async def serving(certificate: Certificate, host: str = "127.0.0.1", **options: object) -> AsyncIterator[HttpServer]:
    running = HttpServer(application(), host, 0, certificate=certificate, **options)
    try:
        yield running
    finally:
        await running.close()


def client(authority: Authority) -> httpx.AsyncClient:
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    return httpx.AsyncClient(verify=trusted, trust_env=False, timeout=DEADLINE)


def port(running: HttpServer) -> int:
    return urlsplit(running.url).port


async def served_serial(running: HttpServer, authority: Authority) -> str:
    """The serial number of the certificate that a new connection gets."""
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    _, writer = await asyncio.open_connection("127.0.0.1", port(running), ssl=trusted)
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return serial


async def test_requests_are_served_over_tls(authority: Authority, certificate: Certificate) -> None:
    async with serving(certificate) as running, client(authority) as http:
        assert running.url.startswith("https://127.0.0.1:")
        assert (await http.get(f"{running.url}/client")).json() == {"host": "127.0.0.1", "scheme": "https"}
        assert (await http.post(f"{running.url}/length", content=b"x" * 1_000_000)).json() == 1_000_000


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
async def test_old_versions_of_tls_and_plain_http_are_refused(authority: Authority, certificate: Certificate) -> None:
    async with serving(certificate) as running, client(authority) as http:
        for version, accepted in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.create_default_context(cafile=str(authority.ca_file))
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            with contextlib.nullcontext() if accepted else pytest.raises(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port(running), ssl=context)
                writer.close()
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(f"http://127.0.0.1:{port(running)}/client")
        assert (await http.get(f"{running.url}/client")).status_code == 200


@pytest.mark.virtual
async def test_a_replaced_certificate_is_served_without_a_restart(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The files change as those of a Secret do: a link to their directory is replaced."""
    data, states = tmp_path / "data", []

    def publish(number: int, certificate: Path, key: Path) -> None:
        version = tmp_path / f"version-{number}"
        version.mkdir()
        shutil.copy(certificate, version / "tls.crt")
        shutil.copy(key, version / "tls.key")
        (tmp_path / "link").symlink_to(version)
        (tmp_path / "link").replace(data)

    publish(0, *authority.server(*NAMES))
    async with (
        serving(Certificate(str(data / "tls.crt"), str(data / "tls.key"), states.append)) as running,
        client(authority) as http,
    ):
        first = await served_serial(running, authority)
        assert (await http.get(f"{running.url}/client")).status_code == 200
        publish(1, *authority.server(*NAMES))
        await until(lambda: states == [True, True], "both states were seen")
        second = await served_serial(running, authority)
        assert second != first
        assert (await http.get(f"{running.url}/client")).status_code == 200, "the open connection goes on"
        certificate, key = authority.server(*NAMES)
        other_key = shutil.copy(key, tmp_path / "other.key")
        certificate, _ = authority.server(*NAMES)
        with caplog.at_level(logging.ERROR):
            publish(2, certificate, other_key)
            await until(lambda: states == [True, True, False], "the file was refused")
        assert "does not belong to" in caplog.text
        assert await served_serial(running, authority) == second, "the last good one remains"
        publish(3, *authority.server(*NAMES))
        await until(lambda: states == [True, True, False, True], "the file was accepted again")
        assert await served_serial(running, authority) not in (first, second)


def test_an_invalid_pair_is_an_error_that_names_the_file(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server(*NAMES)
    good, other = shutil.copy(key, tmp_path / "good.key"), tmp_path / "other.key"
    shutil.copy(certificate, tmp_path / "good.pem")
    shutil.copy(authority.server(*NAMES)[1], other)
    encrypted, garbage = tmp_path / "encrypted.key", tmp_path / "garbage"
    encrypt = ("openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", good, "-out", encrypted)
    subprocess.run(encrypt, check=True, capture_output=True, timeout=DEADLINE)
    garbage.write_text("garbage")
    good_certificate = tmp_path / "good.pem"
    for pair, message in (
        ((tmp_path / "none.pem", good), "none.pem: No such file"),
        ((good_certificate, tmp_path / "none.key"), "none.key: No such file"),
        ((garbage, good), "garbage holds no certificate"),
        ((good_certificate, garbage), "garbage holds no private key"),
        ((good_certificate, encrypted), "encrypted.key holds no private key in PEM format without a password"),
        ((good_certificate, other), "other.key does not belong to the certificate in .*good.pem"),
    ):
        with pytest.raises(StartError, match=message):
            Certificate(*map(str, pair))
    Certificate(str(good_certificate), str(good))


@pytest.mark.virtual
async def test_connections_without_a_handshake_are_closed_and_make_room(
    authority: Authority, certificate: Certificate
) -> None:
    async with serving(certificate, max_connections=4) as running, client(authority) as http:
        mute = [await asyncio.open_connection("127.0.0.1", port(running)) for _ in range(20)]
        assert (await http.get(f"{running.url}/client")).status_code == 200
        assert len(running._handshakes) <= 4
        async with asyncio.timeout(DEADLINE):
            for reader, writer in mute:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        assert len(running._handshakes) == 0


async def test_a_drain_serves_connections_that_were_not_yet_accepted(
    authority: Authority, certificate: Certificate
) -> None:
    """The kernel has them, and the server learns of them when it closes its socket."""
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    async with serving(certificate) as running:
        await until(lambda: running._server.started, "the server listens")
        waiting = [socket.create_connection(("127.0.0.1", port(running))) for _ in range(5)]
        drain = asyncio.create_task(running.drain(DEADLINE))

        async def ask(connection: socket.socket) -> str:
            connection.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=connection, ssl=trusted, server_hostname="localhost")
            writer.write(b"GET /client HTTP/1.1\r\nHost: x\r\n\r\n")
            status = (await reader.readline()).decode()
            writer.close()
            return status

        async with asyncio.timeout(DEADLINE):
            assert await asyncio.gather(*map(ask, waiting)) == ["HTTP/1.1 200 OK\r\n"] * 5
            await drain
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port(running))


async def test_a_drain_does_not_wait_for_handshakes_that_never_come(certificate: Certificate) -> None:
    async with serving(certificate) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", port(running))
        await until(lambda: len(running._handshakes) == 1, "a handshake has begun")
        await running.drain(HANDSHAKE_SECONDS / 2)
        assert len(running._handshakes) == 0, "although its handshake may take longer"
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "", "::1"])
async def test_trusted_proxies_name_the_client(host: str) -> None:
    """A socket for IPv4 and IPv6 shows an IPv4 peer as an IPv6 address."""
    forwarded = {"X-Forwarded-For": "198.51.100.7, 203.0.113.9, 127.0.0.2", "X-Forwarded-Proto": "https"}
    for trusted, found in (((), None), (("10.0.0.0/8",), None), (("127.0.0.1/8", "::1/128"), "203.0.113.9")):
        running = HttpServer(application(), host, 0, trusted_proxies=trusted)
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                seen = (await http.get(f"{running.url}/client", headers=forwarded)).json()["host"]
            assert seen == found or (found is None and seen.endswith(("127.0.0.1", "::1"))), trusted
        finally:
            await running.close()


async def test_a_range_that_is_none_is_an_error() -> None:
    with pytest.raises(StartError, match="trusted proxies: '::::/64'"):
        HttpServer(application(), "127.0.0.1", 0, trusted_proxies=("::::/64",))
