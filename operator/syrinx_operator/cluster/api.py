"""The Kubernetes API, as little of it as the operator needs: every call has a deadline and ends in an `ApiError`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from syrinx_operator import __version__
from syrinx_operator.cluster.kinds import Kind
from syrinx_operator.cluster.names import FIELD_MANAGER
from syrinx_operator.cluster.state import Manifest
from syrinx_operator.cluster.telemetry import Telemetry

TIMEOUT: Final = 15.0
"""Seconds that one request may take: longer than a webhook behind it, which the server gives 10 by default."""
PAGE: Final = 500
"""Objects per answer of a list."""
RENEW_SECONDS: Final = 5.0
"""Between two attempts to get new credentials."""
UNREACHABLE: Final = "Unreachable"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_GONE = 410


class ApiError(Exception):
    """The API server did not do it; the message is its own. `status` 0: it did not answer."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such kind."""
        return self.status == 404

    @property
    def unavailable(self) -> bool:
        """It is the server's trouble more than the request's: it is given a rest."""
        return self.status in (0, 401, 429, 503, 504)

    @property
    def futile(self) -> bool:
        """No other request would do better now, or the server asks for none."""
        return self.status in (401, 429) or self.reason == UNREACHABLE


class Api:
    """A connection to the API server. Use as `async with`."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._client: client.ApiClient | None = None
        self._renewed_at = -RENEW_SECONDS
        self._renewing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._client = client.ApiClient(await load_configuration())
        self._client.user_agent = f"{FIELD_MANAGER}/{__version__}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """An object. Raises `ApiError`."""
        return await self.json("GET", kind.path(namespace, name))

    async def get_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """An object's metadata, and nothing else of it."""
        return await self.json("GET", kind.path(namespace, name), accept=METADATA_ONLY)

    async def list_objects(self, kind: Kind, namespace: str, selector: str = "") -> list[Manifest]:
        """All objects of a namespace that a label selector matches."""
        try:
            return await self._list(kind, namespace, selector)
        except ApiError as error:
            if error.status != _GONE:
                raise
            # The snapshot that the pages were cut from has expired: from the first page again, once.
            return await self._list(kind, namespace, selector)

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, subresource: str | None = None) -> Manifest:
        """Server-side apply: the manifest's fields become ours. `metadata.uid` in it is a precondition."""
        path = kind.path(namespace, manifest["metadata"]["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.json("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def create(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        """A new object; 409 if one of its name is there."""
        return await self.json("POST", kind.path(namespace), query={"fieldManager": FIELD_MANAGER}, body=manifest)

    async def replace(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        """The object with this content; 409 if it is not the version that `metadata.resourceVersion` names."""
        path = kind.path(namespace, manifest["metadata"]["name"])
        return await self.json("PUT", path, query={"fieldManager": FIELD_MANAGER}, body=manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes exactly the object that has this UID, and what it owns after it."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self.json("DELETE", kind.path(namespace, name), body=body)

    async def serves(self, kind: Kind) -> bool:
        """Whether the cluster has this kind."""
        try:
            found = await self.json("GET", kind.group_path)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(resource["name"] == kind.plural for resource in found.get("resources", []))

    async def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Manifest:
        """A request whose answer is an object. Raises `ApiError`."""
        status, data, headers = await self.request(
            method, path, query=query, body=body, headers={"Accept": accept, "Content-Type": content_type}
        )
        if not 200 <= status < 300:
            raise _error(status, data, headers)
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ApiError(0, "NoAnswer", f"the API server's answer to {method} {path} is not an object")
        return answer

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
        """Any request: status, body and headers of the answer. Raises `ApiError` if there is none."""
        asked_at = time.monotonic()
        answer = await self._send(method, path, query, body, headers or {}, seconds)
        if answer[0] != 401 or not await self._renew_credentials(asked_at):
            return answer
        return await self._send(method, path, query, body, headers or {}, seconds)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        headers: Mapping[str, str],
        seconds: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        used = self._client
        assert used is not None, "used within `async with`"
        status = 0
        try:
            async with asyncio.timeout(seconds):
                call = await used.param_serialize(
                    method, path, header_params=dict(headers), body=body, auth_settings=["BearerToken"]
                )
                url = f"{call[1]}?{urlencode(query)}" if query else call[1]
                answer = await used.rest_client.request(  # type: ignore[no-untyped-call]
                    method, url, headers=call[2], body=call[3], _request_timeout=aiohttp.ClientTimeout(total=seconds)
                )
                data: bytes = await answer.read()
            status = answer.status
            return status, data, answer.headers
        except TimeoutError:
            raise ApiError(0, "Timeout", f"the API server did not answer {method} {path} in {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ApiError(0, UNREACHABLE, f"the API server cannot be reached ({method} {path}): {why}") from None
        finally:
            self._telemetry.requests.labels(method, str(status)).inc()

    async def _list(self, kind: Kind, namespace: str, selector: str) -> list[Manifest]:
        items: list[Manifest] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self.json("GET", kind.path(namespace), query=query)
            # Items of a list do not say what they are.
            items += ({**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or ())
            token = page.get("metadata", {}).get("continue")
            if not token:
                return items
            query["continue"] = token

    async def _renew_credentials(self, asked_at: float) -> bool:
        """After a 401: whether there are credentials that are newer than the request."""
        async with self._renewing:
            if self._renewed_at < asked_at and time.monotonic() - self._renewed_at >= RENEW_SECONDS:
                self._renewed_at = time.monotonic()
                try:
                    fresh = await load_configuration()
                except (config.ConfigException, OSError) as error:
                    raise ApiError(401, "Unauthorized", f"no credentials for the API server: {error}") from None
                assert self._client is not None
                self._client.configuration.api_key = fresh.api_key
            return self._renewed_at >= asked_at


async def load_configuration() -> client.Configuration:
    """Where the API server is and who we are: KUBECONFIG or ~/.kube/config, else the pod's service account.

    Raises `ConfigException`.
    """
    loaded = client.Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        config.load_incluster_config(loaded)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            client_configuration=loaded, persist_config=False
        )
    return loaded


def _error(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        answer = json.loads(data)
        reason, message = str(answer.get("reason") or ""), str(answer.get("message") or "")
    except (ValueError, AttributeError):
        reason, message = "", data[:200].decode(errors="replace")
    return ApiError(
        status, reason or f"HTTP{status}", message or f"HTTP status {status}", _seconds(headers.get("Retry-After"))
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
