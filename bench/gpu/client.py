"""A minimal HTTP client for the load generator: every request takes an idle connection or opens a new one.

A general-purpose client adds milliseconds per request, and its connection pool can delay requests by seconds under
bursts. Both would be attributed to the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec

from gpu.workload import Workload
from syrinx_operator.commands.bench.playback import PlaybackRecorder
from syrinx_operator.commands.bench.stats import Outcome

TIMEOUT_SECONDS = 120.0
"""Limit from a request to the end of its response."""
_PATH = "/v1/audio/speech"
_BUFFER_BYTES = 2**20


class ResponseError(Exception):
    """The response is not a chunked stream with status 200."""


class Client:
    """Sends the requests of a workload to the service at `url` (http://HOST:PORT)."""

    def __init__(self, url: str, workload: Workload) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, "the URL needs a host and a port"
        self._address = (parts.hostname, parts.port)
        self._head = f"POST {_PATH} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n".encode()
        self._workload = workload
        self._idle: list[_Connection] = []

    async def send(self, number: int, due: float) -> Outcome:
        """Sends request `number`, due at this `time.monotonic()`, and returns its outcome."""
        body = msgspec.json.encode(self._workload.body(number))
        data = b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
        recorder = PlaybackRecorder()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                async for piece in self._stream(data):
                    recorder.add(time.monotonic() - due, piece)
        except ResponseError as error:
            return Outcome(error=str(error))
        except TimeoutError:
            return Outcome(error="timeout")
        except EOFError:
            return Outcome(error="cut off")
        except OSError:
            return Outcome(error="connection")
        return Outcome(playback=recorder.playback()) if recorder.has_audio else Outcome(error="no audio")

    async def _stream(self, data: bytes) -> AsyncIterator[bytes]:
        """Yields the pieces of the response body. Raises `ResponseError`, `EOFError` or `OSError`."""
        connection = self._idle.pop() if self._idle else await _Connection.open(*self._address)
        try:
            async for piece in connection.stream(data):
                yield piece
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def close(self) -> None:
        """Closes all idle connections."""
        for connection in self._idle:
            connection.close()


class _Connection:
    """A connection that handles one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> _Connection:
        """Connects. Raises `OSError`."""
        return cls(*await asyncio.open_connection(host, port, limit=_BUFFER_BYTES))

    async def stream(self, data: bytes) -> AsyncIterator[bytes]:
        """Sends a request and yields the chunks of its response."""
        self._writer.write(data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode()
        if status != "200":
            raise ResponseError(f"http {status}")
        if b"transfer-encoding: chunked" not in head.lower():
            raise ResponseError("no stream")
        while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()
