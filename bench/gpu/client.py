"""A lean HTTP client of the load generator: every request takes a free connection, or a new one, at once.

A general client costs milliseconds a request, and its pool lets some wait for seconds when many ask at the same time:
both would be taken for the service's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec

from gpu.requests import Requests
from syrinx_operator.commands.bench.playback import PlaybackRecorder
from syrinx_operator.commands.bench.stats import Outcome

READ_SECONDS = 120.0
"""The longest an answer may take, from its request to its end."""
_PATH = "/v1/audio/speech"
_BUFFER = 2**20


class Refused(Exception):
    """The service answered with another status than 200."""


class Client:
    """Sends requests to the service at `url` (http://HOST:PORT) and listens to the answers."""

    def __init__(self, url: str, requests: Requests) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, "a URL of this machine"
        self._address = (parts.hostname, parts.port)
        self._head = f"POST {_PATH} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n".encode()
        self._requests = requests
        self._free: list[_Connection] = []

    async def speak(self, number: int, due: float) -> Outcome:
        """What was heard of request `number`, which was due at this `time.monotonic()`."""
        body = msgspec.json.encode(self._requests.body(number))
        data = b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
        recorder = PlaybackRecorder()
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for piece in self._ask(data):
                    recorder.add(time.monotonic() - due, piece)
        except Refused as refusal:
            return Outcome(error=str(refusal))
        except TimeoutError:
            return Outcome(error="timeout")
        except EOFError:
            return Outcome(error="cut off")
        except OSError:
            return Outcome(error="connection")
        return Outcome(playback=recorder.playback()) if recorder.has_audio else Outcome(error="no audio")

    async def _ask(self, data: bytes) -> AsyncIterator[bytes]:
        """The answer's body, piece by piece. Raises `Refused`, `EOFError` or `OSError`."""
        connection = self._free.pop() if self._free else await _Connection.open(*self._address)
        try:
            async for piece in connection.ask(data):
                yield piece
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)

    def close(self) -> None:
        """Ends all connections."""
        for connection in self._free:
            connection.close()


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> _Connection:
        """Connects. Raises `OSError`."""
        return cls(*await asyncio.open_connection(host, port, limit=_BUFFER))

    async def ask(self, data: bytes) -> AsyncIterator[bytes]:
        """Sends a request and gives the chunks of its answer."""
        self._writer.write(data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode()
        if status != "200":
            raise Refused(f"http {status}")
        if b"transfer-encoding: chunked" not in head.lower():
            raise Refused("no stream")
        while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def close(self) -> None:
        """Drops it."""
        self._writer.close()
