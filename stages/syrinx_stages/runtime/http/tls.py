"""TLS of a server: its certificate, which is reloaded when its files change, and the connections' handshakes."""

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from pathlib import Path

from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http.watched_files import WatchedFiles

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10
"""A connection whose handshake takes longer is closed."""
CLOSE_SECONDS = 5
"""How long a closing connection waits for its client's end of TLS."""
READ_BYTES = 32 * 1024
"""Read buffer of a connection: two TLS records. Python's default of 256 KiB would be most of a gateway's memory."""


class Certificate:
    """The certificate that a server presents to new connections, from files in PEM format."""

    def __init__(self, certificate: str, key: str, on_reload: Callable[[bool], object] = lambda valid: None) -> None:
        """Loads the files. Raises `StartError`. Each reload calls `on_reload` with whether the files are valid."""
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._on_reload = on_reload
        self._files = WatchedFiles(self._certificate, self._key)
        self.context = _load(self._certificate, self._key)
        """For new connections."""
        on_reload(True)

    async def run(self) -> None:
        """Reloads the files when they change, until cancelled. Invalid files leave the certificate as it is."""
        await self._files.follow(self._reload)

    async def _reload(self) -> None:
        try:
            self.context = _load(self._certificate, self._key)
        except StartError as error:
            log.error("the earlier certificate remains in use: %s", error)
            self._on_reload(False)
        else:
            log.info("loaded the certificate in %s", self._certificate)
            self._on_reload(True)


def _load(certificate: Path, key: Path) -> ssl.SSLContext:
    for file in (certificate, key):
        try:
            file.read_bytes()
        except OSError as error:
            raise StartError(f"TLS: cannot read {file}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without `password`, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise StartError(f"TLS: {_problem(certificate, key, error)}") from None
    return context


def _problem(certificate: Path, key: Path, error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the key in {key} does not belong to the certificate in {certificate}"
    try:
        ssl.create_default_context(cafile=str(certificate))
    except OSError:
        return f"{certificate} holds no certificate in PEM format"
    return f"{key} holds no private key in PEM format without a password"


class Handshakes:
    """The connections whose handshakes are in progress."""

    def __init__(self) -> None:
        self._connections: dict[_Connection, None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def wrap(self, protocol: asyncio.Protocol, certificate: Certificate) -> asyncio.BaseProtocol:
        """Returns the protocol of a new connection, which passes it to `protocol` after its handshake."""
        completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = _Connection(protocol, certificate.context, completed)
        self._connections[connection] = None

        def on_completed(future: asyncio.Future[None]) -> None:
            # A failed handshake is the client's affair; the transport is closed.
            future.cancelled() or future.exception()
            del self._connections[connection]

        completed.add_done_callback(on_completed)
        return connection

    def abort(self, count: int | None = None) -> None:
        """Closes the oldest `count` connections, or all."""
        for connection in list(self._connections)[:count]:
            connection.abort()


class _Connection(SSLProtocol):
    """The TLS layer of a connection, as `create_server` uses it."""

    max_size = READ_BYTES

    def __init__(self, protocol: asyncio.Protocol, context: ssl.SSLContext, completed: asyncio.Future[None]) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            protocol,
            context,
            completed,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )
        self._tcp: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = transport
        super().connection_made(transport)

    def abort(self) -> None:
        """Closes the connection at once."""
        if isinstance(self._tcp, asyncio.Transport):
            self._tcp.abort()
