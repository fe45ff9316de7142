"""Client of the Kubernetes API with the calls that the operator needs. Every call has a timeout and raises ApiError."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio import client, config
from msgspec import Struct

from syrinx_operator import __version__
from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.cluster.objects.kinds import Kind
from syrinx_operator.cluster.objects.names import FIELD_MANAGER
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.watch.telemetry import Telemetry

TIMEOUT: Final = 15.0
"""Seconds per request; longer than the default timeout of admission webhooks (10 s)."""
SILENCE: Final = 90.0
"""Seconds after which a watch without events ends: API servers send a bookmark about once a minute."""
PAGE_SIZE: Final = 500
RENEW_SECONDS: Final = 5.0
"""Minimum seconds between two attempts to renew credentials."""
UNREACHABLE: Final = "Unreachable"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

Configure = Callable[[], Awaitable[client.Configuration]]
"""Returns the API server's address and fresh credentials. Raises ConfigException."""

_UNAVAILABLE = frozenset({0, 401, 429, 500, 502, 503, 504})
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """The API server refused or did not answer a request. `status` is 0 without an answer."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        """The object or its kind does not exist."""
        return self.status == 404

    @property
    def unavailable(self) -> bool:
        """The server is the cause rather than the request, so retry later."""
        # A field that the CRD does not declare is a 500 too, without a reason of its own.
        return self.status in _UNAVAILABLE and "not declared in schema" not in str(self)

    @property
    def affects_all_requests(self) -> bool:
        """Every other request would fail now too, or the server is rate limiting."""
        return self.status in (401, 429) or self.reason == UNREACHABLE


async def if_found(request: Awaitable[Manifest]) -> Manifest | None:
    """Returns the object of a request; None if there is none. Raises ApiError."""
    try:
        return await request
    except ApiError as error:
        if error.not_found:
            return None
        raise


class _Status(Struct):
    """The body of an error response (`kind: Status`)."""

    reason: str | None = None
    message: str | None = None


class Listing(Struct, frozen=True):
    """The objects of a kind at a resource version."""

    items: list[Manifest]
    version: str


class WatchEvent(Struct, frozen=True):
    """A change of an object, or a bookmark: an object with nothing but a resource version."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    object: Manifest


class Api:
    """A connection to the API server. Use as `async with`."""

    def __init__(self, telemetry: Telemetry, configuration: Configure | None = None) -> None:
        """`configuration` returns address and credentials, by default `load_configuration`'s."""
        self._telemetry = telemetry
        self._configuration = configuration or load_configuration
        self._client: client.ApiClient | None = None
        self._renewed_at = -RENEW_SECONDS
        self._renewing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        loaded = await self._configuration()
        # Each watch keeps a connection; the work queue limits the other requests.
        loaded.connection_pool_maxsize = 0
        self._client = client.ApiClient(loaded)
        self._client.user_agent = f"{FIELD_MANAGER}/{__version__}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Returns an object."""
        return await self.json("GET", kind.path(namespace, name))

    async def get_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Returns only an object's metadata."""
        return await self.json("GET", kind.path(namespace, name), accept=METADATA_ONLY)

    async def list_objects(self, kind: Kind, namespace: str | None, selector: str = "") -> Listing:
        """Returns all objects in a namespace, or in all (None), that match a label selector."""
        first_page = {"limit": str(PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
        items: list[Manifest] = []
        query, restarts = first_page, 0
        while True:
            try:
                page = await self.json("GET", kind.path(namespace), query=query)
            except ApiError as error:
                # The continue token has expired: start over from the first page, once.
                if error.status != 410 or restarts:
                    raise
                items, query, restarts = [], first_page, 1
                continue
            # Items of a list have no apiVersion and kind.
            items += ({**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(items, metadata.get("resourceVersion", ""))
            query = {**first_page, "continue": metadata["continue"]}

    @contextlib.asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Yields the changes since a resource version, for at most `seconds`. Use as `async with`.

        The changes end without an error if the connection is lost or silent. Raises ApiError if the server refuses,
        with status 410 if the version is too old.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(max(1, round(seconds)))} | ({"labelSelector": selector} if selector else {})
        url = f"{kind.path(namespace)}?{urlencode(query)}"
        timeout = aiohttp.ClientTimeout(total=seconds + TIMEOUT, sock_read=SILENCE)
        asked_at = monotonic()
        answer = await self._open("GET", url, None, {"Accept": _JSON}, timeout, verb="WATCH")
        if answer.status == 401 and await self._renew_credentials(asked_at):
            answer.close()
            answer = await self._open("GET", url, None, {"Accept": _JSON}, timeout, verb="WATCH")
        try:
            if answer.status != 200:
                raise _error(answer.status, await _body(answer), answer.headers)
            yield _events(answer)
        finally:
            answer.close()

    async def apply(
        self, kind: Kind, namespace: str, manifest: Manifest, subresource: str | None = None, *, dry_run: bool = False
    ) -> Manifest:
        """Server-side apply with force; returns the live object. `metadata.uid` acts as a precondition.

        With `dry_run` nothing is stored, and the returned object is what would be.
        """
        path = kind.path(namespace, manifest["metadata"]["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return await self.json("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Manifest:
        """Changes the given fields of an object (JSON merge patch). `metadata.uid` acts as a precondition."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self.json("PATCH", kind.path(namespace, name), query=query, body=body, content_type=_MERGE)

    async def create(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        """Creates an object and returns it. Raises ApiError with status 409 if it exists."""
        return await self.json("POST", kind.path(namespace), query={"fieldManager": FIELD_MANAGER}, body=manifest)

    async def replace(self, kind: Kind, namespace: str, manifest: Manifest, seconds: float = TIMEOUT) -> Manifest:
        """Replaces an object. Raises ApiError with status 409 if `metadata.resourceVersion` is outdated."""
        path = kind.path(namespace, manifest["metadata"]["name"])
        return await self.json("PUT", path, query={"fieldManager": FIELD_MANAGER}, body=manifest, seconds=seconds)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes the object with this UID, and its dependents in the background."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self.json("DELETE", kind.path(namespace, name), body=body)

    async def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = TIMEOUT,
    ) -> Manifest:
        """Sends a request and returns the object in the response. Raises ApiError unless the status is 2xx."""
        status, data, headers = await self.request(
            method,
            path,
            query=query,
            body=body,
            headers={"Accept": accept, "Content-Type": content_type},
            seconds=seconds,
        )
        _check(status, data, headers)
        try:
            return msgspec.json.decode(data, type=Manifest)
        except msgspec.MsgspecError:
            message = f"the API server's answer to {method} {path} is not an object"
            raise ApiError(0, "InvalidAnswer", message) from None

    async def text(self, path: str, query: Mapping[str, str]) -> str:
        """Returns the text of a GET request. Raises ApiError unless the status is 2xx."""
        status, data, headers = await self.request("GET", path, query=query)
        _check(status, data, headers)
        return data.decode(errors="replace")

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = TIMEOUT,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Sends a request and returns status, body and headers of the response. Raises ApiError without a response."""
        url = f"{path}?{urlencode(query)}" if query else path
        asked_at = monotonic()
        answer = await self._send(method, url, body, headers, seconds)
        if answer[0] == 401 and await self._renew_credentials(asked_at):
            answer = await self._send(method, url, body, headers, seconds)
        return answer

    async def _send(
        self, method: str, url: str, body: Any, headers: Mapping[str, str] | None, seconds: float
    ) -> tuple[int, bytes, Mapping[str, str]]:
        with _answered(method, url, seconds):
            async with asyncio.timeout(seconds):
                answer = await self._open(method, url, body, headers, aiohttp.ClientTimeout(total=seconds))
                return answer.status, await answer.read(), answer.headers

    async def _open(
        self,
        method: str,
        url: str,
        body: Any,
        headers: Mapping[str, str] | None,
        limits: aiohttp.ClientTimeout,
        verb: str = "",
    ) -> aiohttp.ClientResponse:
        """Sends a request and returns the response, whose body is still to be read. Raises ApiError without one."""
        assert self._client is not None, "used outside `async with`"
        status = 0
        try:
            with _answered(method, url, min(TIMEOUT, limits.total or TIMEOUT)):
                async with asyncio.timeout(TIMEOUT):
                    call = await self._client.param_serialize(
                        method, url, header_params=dict(headers or {}), body=body, auth_settings=["BearerToken"]
                    )
                    answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
                        method, call[1], headers=call[2], body=call[3], _request_timeout=limits
                    )
            status = answer.status
            response: aiohttp.ClientResponse = answer.response
            return response
        finally:
            self._telemetry.api_requests.labels(verb or method, str(status)).inc()

    async def _renew_credentials(self, asked_at: float) -> bool:
        """Returns whether there are credentials newer than the request that got a 401."""
        async with self._renewing:
            if self._renewed_at < asked_at and monotonic() - self._renewed_at >= RENEW_SECONDS:
                self._renewed_at = monotonic()
                try:
                    fresh = await self._configuration()
                except (config.ConfigException, OSError) as error:
                    raise ApiError(401, "Unauthorized", f"no credentials for the API server: {error}") from None
                assert self._client is not None
                self._client.configuration.api_key = fresh.api_key
            return self._renewed_at >= asked_at


async def load_configuration() -> client.Configuration:
    """Returns address and credentials from KUBECONFIG, ~/.kube/config, or the pod. Raises ConfigException."""
    loaded = client.Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        config.load_incluster_config(loaded)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            client_configuration=loaded, persist_config=False
        )
    return loaded


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await answer.read()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return b""


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
    """Yields the events of a watch until its connection ends. Raises ApiError for an event of type ERROR."""
    line = bytearray()
    try:
        async for chunk in answer.content.iter_any():
            *lines, rest = chunk.split(b"\n")
            for end in lines:
                line += end
                if line:
                    yield _event(bytes(line))
                line.clear()
            line += rest
    except (TimeoutError, aiohttp.ClientError, OSError):
        return


def _event(line: bytes) -> WatchEvent:
    try:
        event = msgspec.json.decode(line, type=WatchEvent)
    except msgspec.MsgspecError:
        raise ApiError(0, "InvalidAnswer", f"an event of a watch is not one: {line[:200]!r}") from None
    if event.type == "ERROR":
        raise _error(int(event.object.get("code") or 0), msgspec.json.encode(event.object), {})
    return event


@contextlib.contextmanager
def _answered(method: str, url: str, seconds: float) -> Iterator[None]:
    """Raises ApiError if a request is not answered, for which it had `seconds`."""
    path = url.partition("?")[0]
    try:
        yield
    except TimeoutError:
        raise ApiError(0, "Timeout", f"the API server did not answer {method} {path} in {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        cause = str(error) or type(error).__name__
        raise ApiError(0, UNREACHABLE, f"the API server is unreachable ({method} {path}): {cause}") from None


def _check(status: int, data: bytes, headers: Mapping[str, str]) -> None:
    """Raises ApiError unless the status is 2xx."""
    if not 200 <= status < 300:
        raise _error(status, data, headers)


def _error(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        body = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        body = _Status(message=data[:200].decode(errors="replace"))
    retry_after = headers.get("Retry-After", "")
    return ApiError(
        status,
        body.reason or f"HTTP{status}",
        body.message or f"HTTP status {status}",
        float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
    )
