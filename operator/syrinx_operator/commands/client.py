"""Client of the gateway's HTTP API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import msgspec

CONNECT_SECONDS = 5.0
READ_SECONDS = 120.0
"""Maximum time between two chunks of a response."""

Body = Mapping[str, Any]


class SpeechError(Exception):
    """A speech request failed. `kind` is `http 503` etc., `timeout`, `connection`, `cut off` or `no audio`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def connect(url: str) -> httpx.AsyncClient:
    """Returns an HTTP client for the gateway at `url` without a limit on concurrent requests."""
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
    )


@contextlib.asynccontextmanager
async def speech(client: httpx.AsyncClient, body: Body) -> AsyncIterator[AsyncIterator[bytes]]:
    """Requests speech and yields an iterator of the audio bytes. Raises `SpeechError`, also during iteration."""
    with _failures(client):
        async with client.stream("POST", "/v1/audio/speech", json=dict(body)) as response:
            if response.status_code != httpx.codes.OK:
                raise refusal(response.status_code, await response.aread())
            yield response.aiter_raw()


async def voices(client: httpx.AsyncClient) -> list[str]:
    """Returns the names of the gateway's voices. Raises `SpeechError`."""
    with _failures(client):
        response = await client.get("/v1/audio/voices")
        if response.status_code != httpx.codes.OK:
            raise refusal(response.status_code, response.content)
        return list(response.json()["voices"])


def refusal(status: int, content: bytes) -> SpeechError:
    """Returns the error of a response, in OpenAI's format or any other."""
    kind = f"http {status}"
    with contextlib.suppress(msgspec.DecodeError, TypeError, KeyError):
        return SpeechError(kind, str(msgspec.json.decode(content)["error"]["message"]))
    return SpeechError(kind, f"the server answered {status}: {content[:200].decode('utf-8', 'replace')}")


@contextlib.contextmanager
def _failures(client: httpx.AsyncClient) -> Iterator[None]:
    """Converts httpx errors to `SpeechError`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise SpeechError("timeout", f"timeout at {client.base_url} ({type(error).__name__})") from None
    except httpx.RemoteProtocolError as error:
        raise SpeechError("cut off", f"the response was cut off: {error}") from None
    except httpx.RequestError as error:
        raise SpeechError("connection", f"cannot connect to {client.base_url}: {error}") from None
