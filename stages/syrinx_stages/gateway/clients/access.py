"""API keys: an ASGI layer that refuses requests without a valid key or above a limit, before it reads their bodies."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.api_keys import MAX_BYTES, Keys, KeysError, digest, parse_keys
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.gateway.clients.allowance import Allowance, LimitExceeded
from syrinx_stages.gateway.clients.client import Client, current_client
from syrinx_stages.gateway.errors import ApiError, error_response, invalid_key
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.http.watched_files import WatchedFiles
from syrinx_stages.runtime.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

KEY_PROTOCOL = "openai-insecure-api-key."
"""Before the key in the list of subprotocols of a WebSocket, as in OpenAI's Realtime API."""
API_PREFIX = "/v1/"
"""Paths that need a key."""


class ApiKeys:
    """The keys in a file, and the allowances of their clients. Changes of the file take effect at the next request."""

    def __init__(self, file: str, metrics: Metrics) -> None:
        """Loads the file. Raises `StartError`."""
        self._file = Path(file)
        self.metrics = metrics
        self._files = WatchedFiles(self._file)
        self._names: dict[bytes, str] = {}
        self._allowances: dict[str, Allowance] = {}
        try:
            self._set(self._load())
        except (OSError, KeysError) as error:
            raise StartError(f"API keys: {self._problem(error)}") from None

    async def run(self) -> None:
        """Reloads the file when it changes, until cancelled. An invalid file leaves the keys as they are."""
        await self._files.follow(self._reload)

    async def _reload(self) -> None:
        try:
            keys = await asyncio.to_thread(self._load)
        except (OSError, KeysError) as error:
            log.error("the earlier API keys remain valid: %s", self._problem(error))
            self.metrics[m.FILE_VALID].labels("api_keys").set(0)
        else:
            self._set(keys)
            log.info("loaded %d API keys of %d clients", len(keys.names), len(keys.limits))

    def _load(self) -> Keys:
        with self._file.open("rb") as stream:
            return parse_keys(stream.read(MAX_BYTES + 1))

    def _problem(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"cannot read {self._file}: {error.strerror}"
        return f"{self._file}: {error}"

    def _set(self, keys: Keys) -> None:
        now = monotonic()
        before, self._names = self._allowances, keys.names
        self._allowances = {name: before.get(name) or Allowance(limits, now) for name, limits in keys.limits.items()}
        for name, limits in keys.limits.items():
            self._allowances[name].limits = limits
            # These series must exist before the first event: `rate` ignores the first value of a series.
            self.metrics[m.CLIENT_REQUESTS].labels(name, EndReason.STOP)
            self.metrics[m.CLIENT_AUDIO_SECONDS].labels(name)
        self.metrics[m.FILE_VALID].labels("api_keys").set(1)

    def identify(self, authorization: str) -> Client:
        """Returns the client of an `Authorization` header. Raises 401."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise invalid_key("no API key; send the header Authorization: Bearer KEY")
        # Looking up the digest takes a time that depends on the digest only, which reveals nothing about valid keys.
        name = self._names.get(digest(key.strip().encode("latin-1")))
        if name is None:
            raise invalid_key("this API key is not valid")
        return Client(name, self._allowances[name])


@contextlib.contextmanager
def use_allowance(keys: ApiKeys | None) -> Iterator[None]:
    """Counts a request of the current client. Raises `ApiError` 429 above a limit."""
    client = current_client.get()
    if keys is None or client is None:
        yield
        return
    began = monotonic()
    try:
        client.allowance.begin(began)
    except LimitExceeded as exceeded:
        keys.metrics[m.CLIENT_LIMITED].labels(client.name, exceeded.limit).inc()
        raise exceeded.error from None
    try:
        yield
    finally:
        client.allowance.end(monotonic() - began)


def _authorization(scope: Scope) -> str:
    """Returns the `Authorization` header, or what stands for it: browsers cannot send it when they open a WebSocket."""
    header = Headers(scope=scope).get("authorization", "")
    keys = [each.removeprefix(KEY_PROTOCOL) for each in scope.get("subprotocols", ()) if each.startswith(KEY_PROTOCOL)]
    return header or (f"Bearer {keys[0]}" if keys else "")


class RequireKey:
    """Wraps the application. Everything under `API_PREFIX` needs a key; the limits apply to what is posted there.

    On a WebSocket they apply to each utterance; see `use_allowance`.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one request."""
        if scope["type"] == "lifespan" or not scope["path"].startswith(API_PREFIX):
            return await self._app(scope, receive, send)
        try:
            client = self._keys.identify(_authorization(scope))
        except ApiError as error:
            self._keys.metrics[m.UNAUTHORIZED].inc()
            return await error_response(error)(scope, receive, send)
        current_client.set(client)  # Of this request's task.
        if scope.get("method") != "POST":
            return await self._app(scope, receive, send)
        with contextlib.ExitStack() as counted:
            try:
                counted.enter_context(use_allowance(self._keys))
            except ApiError as error:
                return await error_response(error)(scope, receive, send)
            await self._app(scope, receive, send)
