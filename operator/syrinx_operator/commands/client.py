"""The gateway's API as its clients see it: one way to ask for speech, and the server's own words when it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import msgspec

CONNECT_SECONDS = 5.0
READ_SECONDS = 120.0
"""The longest silence between two pieces of an answer."""

Body = Mapping[str, Any]


class SpeechError(Exception):
    """The gateway did not speak. `kind` groups failures: `http 503`, `timeout`, `connection`, `cut off`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def connect(url: str) -> httpx.AsyncClient:
    """A client of the gateway at `url`, for any number of requests at once."""
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
    )


@contextlib.asynccontextmanager
async def speech(client: httpx.AsyncClient, body: Body) -> AsyncIterator[AsyncIterator[bytes]]:
    """Asks for speech; gives the audio's bytes as they arrive. Raises `SpeechError`, also while they are read."""
    with _failures(client):
        async with client.stream("POST", "/v1/audio/speech", json=dict(body)) as response:
            if response.status_code != httpx.codes.OK:
                raise refusal(response.status_code, await response.aread())
            yield response.aiter_raw()


async def voices(client: httpx.AsyncClient) -> list[str]:
    """The names of the gateway's voices; empty if the model has none. Raises `SpeechError`."""
    with _failures(client):
        response = await client.get("/v1/audio/voices")
        if response.status_code != httpx.codes.OK:
            raise refusal(response.status_code, response.content)
        return list(response.json()["voices"])


def refusal(status: int, content: bytes) -> SpeechError:
    """The error of an OpenAI-shaped answer, or of whatever came instead."""
    kind = f"http {status}"
    with contextlib.suppress(msgspec.DecodeError, TypeError, KeyError):
        return SpeechError(kind, str(msgspec.json.decode(content)["error"]["message"]))
    return SpeechError(kind, f"the server answered {status}: {content[:200].decode('utf-8', 'replace')}")


@contextlib.contextmanager
def _failures(client: httpx.AsyncClient) -> Iterator[None]:
    """Turns the HTTP library's failures into `SpeechError`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise SpeechError("timeout", f"no answer in time from {client.base_url} ({type(error).__name__})") from None
    except httpx.RemoteProtocolError as error:
        raise SpeechError("cut off", f"the answer was cut off: {error}") from None
    except httpx.RequestError as error:
        raise SpeechError("connection", f"cannot reach {client.base_url}: {error}") from None
