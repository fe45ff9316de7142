"""The address of a Redis server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

PORT = 6379
P = TypeVar("P", bound=asyncio.BaseProtocol)


class Address:
    """A redis://, rediss:// (TLS) or unix:// URL. Passwords appear in no message. Raises ValueError for an invalid URL.

    `password` is used if the URL has none. A rediss:// server must present a certificate for its host name, signed by a
    certificate authority of the system or, if `ca_file` (PEM) is given, by one in that file.
    """

    def __init__(self, url: str, password: str = "", ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._parse(parts, password)
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix://PATH"
            ) from None
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "rediss" else None
        self.name = f"Redis at {self._path or f'{self._host}:{self._port}'}"

    def _parse(self, parts: SplitResult, default_password: str) -> None:
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            raise ValueError
        self._path = unquote(parts.path) if parts.scheme == "unix" else ""
        if parts.scheme == "unix" and not self._path:
            raise ValueError
        self._host, self._port = unquote(parts.hostname or "localhost"), parts.port or PORT
        option, _, database = parts.query.partition("=")
        if option not in ("", "db"):
            raise ValueError
        if not option and not self._path:
            database = parts.path.removeprefix("/")
        user, password = unquote(parts.username or ""), unquote(parts.password or "") or default_password
        self.setup_commands: list[Sequence[bytes | str | int]] = []
        """Commands to send at the start of every connection."""
        if password:
            self.setup_commands.append((b"AUTH", user, password) if user else (b"AUTH", password))
        if database and int(database):
            self.setup_commands.append((b"SELECT", int(database)))

    async def connect(self, protocol: Callable[[], P]) -> P:
        """Opens a connection to the server. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._path:
            return (await loop.create_unix_connection(protocol, self._path))[1]
        transport, connected = await loop.create_connection(protocol, self._host, self._port, ssl=self._tls)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connected
