"""Client of the gateway's HTTP API."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

PRIVATE_CA = "for a private CA, set SSL_CERT_FILE to the file of its certificate"
CONNECT_SECONDS = 5.0
READ_SECONDS = 120.0
"""Maximum time between two chunks of a response."""


class SpeechError(Exception):
    """A speech request failed. `kind` is `http 503` etc., `timeout`, `connection`, `cut off` or `no audio`.

    `code` is that of an error response, or empty.
    """

    def __init__(self, kind: str, message: str, code: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


class SpeechClient:
    """Client of the gateway at `url`, without a limit on concurrent requests. Use as `async with`.

    The environment variable SYRINX_API_KEY has its API key; OpenSSL reads SSL_CERT_FILE.

    aiohttp, because httpx adds milliseconds per request under load, which would be attributed to the gateway.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """`url` may lack its scheme, and end as that of OpenAI's clients. `options`: of `aiohttp.ClientSession`."""
        address = url.strip().rstrip("/").removesuffix("/v1")
        self._url = address if "://" in address else f"http://{address}"
        self._options = options

    async def __aenter__(self) -> Self:
        address = urlsplit(self._url)
        proxy = None if proxy_bypass(address.hostname or "") else getproxies().get(address.scheme)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        key = os.environ.get("SYRINX_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        defaults: dict[str, Any] = {"connector": connector, "timeout": timeout, "proxy": proxy, "headers": headers}
        self._http = aiohttp.ClientSession(**(defaults | self._options))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    @contextlib.asynccontextmanager
    async def speech(self, body: Mapping[str, object]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Requests speech and yields an iterator of the audio bytes. Raises `SpeechError`, also during iteration."""
        async with self.post(body) as response:
            yield response.content.iter_any()

    def post(self, body: Mapping[str, object]) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Requests speech and yields the response. Raises `SpeechError`, also while it is read."""
        return self._request("POST", "/v1/audio/speech", json=body)

    async def voices(self) -> list[str]:
        """Returns the names of the gateway's voices. Raises `SpeechError`."""
        async with self._request("GET", "/v1/audio/voices") as response:
            return list((await response.json())["names"])

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._http.request(method, self._url + path, **options) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                yield response
        except TimeoutError as error:
            raise SpeechError("timeout", f"timeout at {self._url} ({type(error).__name__})") from None
        except aiohttp.ClientConnectorCertificateError as error:
            reason = error.certificate_error
            raise SpeechError("connection", f"cannot verify {self._url}: {reason}; {PRIVATE_CA}") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            message = f"{self._url} is not the URL of a gateway; an example is http://127.0.0.1:8000"
            raise SpeechError("connection", message) from None
        except aiohttp.ClientConnectorError as error:
            raise SpeechError("connection", f"cannot connect to {self._url}: {error}") from None
        except aiohttp.ClientError as error:
            raise SpeechError("cut off", f"the response was cut off: {error}") from None


def _refusal(status: int, content: bytes) -> SpeechError:
    """Returns the error of a response, in OpenAI's format or any other."""
    kind = f"http {status}"
    with contextlib.suppress(msgspec.DecodeError, TypeError, KeyError):
        error = msgspec.json.decode(content)["error"]
        return SpeechError(kind, str(error["message"]), str(error.get("code", "")))
    return SpeechError(kind, f"the server answered {status}: {content[:200].decode('utf-8', 'replace')}")
