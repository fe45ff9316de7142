"""Certificates made on the spot (by the `openssl` command), and a Redis behind TLS."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

from redis import Redis
from redis.exceptions import ResponseError

from support.required import require
from support.waiting import DEADLINE
from syrinx_stages.connector.server import RedisServer, free_port

_CONFIG = """\
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Authority:
    """A certificate authority of its own, in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self.ca_file = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._config = directory / "openssl.cnf"
        self._config.write_text(_CONFIG)
        self._make(self.ca_file, self._key, "/CN=Syrinx test CA", "-extensions", "ca")

    def server(self, *names: str) -> tuple[Path, Path]:
        """Certificate and key of a server with these names (`DNS:localhost`, `IP:127.0.0.1`)."""
        certificate, key = self._directory / "server.pem", self._directory / "server.key"
        signed = ("-CA", str(self.ca_file), "-CAkey", str(self._key), "-extensions", "server")
        self._make(certificate, key, "/CN=redis", *signed, "-addext", f"subjectAltName={','.join(names)}")
        return certificate, key

    def _make(self, certificate: Path, key: Path, subject: str, *options: str) -> None:
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
        common = ("-x509", "-days", "2", "-config", str(self._config), "-subj", subject, "-out", str(certificate))
        subprocess.run(["openssl", "req", *kind, *common, *options], check=True, capture_output=True, timeout=30)


@contextlib.asynccontextmanager
async def tls_front(port: int, certificate: Path, key: Path, own: int = 0) -> AsyncIterator[int]:
    """Ends TLS in front of a loopback port, as a load balancer would; gives its own port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with front(port, context, own) as own:
        yield own


@contextlib.asynccontextmanager
async def front(port: int, context: ssl.SSLContext | None = None, own: int = 0) -> AsyncIterator[int]:
    """Passes connections on to a loopback port until it is left, which cuts them; gives its own port."""
    connections: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        # asyncio reports a connection's task that ends as cancelled.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(pump(reader, behind_writer), pump(behind_reader, writer))
        for end in (writer, behind_writer):
            end.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", own, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


FETCHED = Path(sys.prefix) / "redis" / "redis-server"
"""Where `make test` installs a Redis with TLS."""


def find_tls_redis() -> Path:
    """Returns the redis-server on the PATH, or that of `make test`, whichever speaks TLS."""
    found = (shutil.which("redis-server"), shutil.which(FETCHED))
    able = [Path(each) for each in found if each and _speaks_tls(each)]
    require(able, "there is no redis-server that speaks TLS: make .venv/.redis")
    return able[0]


def _speaks_tls(binary: str) -> bool:
    command = [binary, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nowhere"]
    ended = subprocess.run(command, capture_output=True, timeout=DEADLINE, cwd="/")
    return b"Failed to configure TLS" in ended.stdout


@contextlib.contextmanager
def tls_redis(certificate: Path, key: Path, ca_file: Path) -> Iterator[tuple[int, str]]:
    """A redis-server that speaks TLS itself: its TLS port and its password."""
    path = f"{find_tls_redis().parent}{os.pathsep}{os.environ['PATH']}"
    with mock.patch.dict(os.environ, PATH=path), RedisServer() as server:
        yield _listen_with_tls(server, certificate, key, ca_file), server.password


def _listen_with_tls(server: RedisServer, certificate: Path, key: Path, ca_file: Path) -> int:
    """Returns the port."""
    files = f"tls-cert-file {certificate} tls-key-file {key} tls-ca-cert-file {ca_file}"
    with Redis(port=server.port, password=server.password, protocol=2) as redis:
        while True:
            port = free_port()
            try:
                redis.execute_command(*f"CONFIG SET {files} tls-auth-clients no tls-port {port}".split())
                return port
            except ResponseError as error:
                # Another process took the port after it was found free.
                if "Unable to listen" not in str(error):
                    raise
