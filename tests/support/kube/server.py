"""The HTTP API."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from support.kube import discovery, select
from support.kube.api import Api, Write
from support.kube.errors import ApiError, not_found
from support.kube.faults import Faults
from support.kube.kinds import Kind
from support.kube.rights import Asked, Rights
from support.kube.watch import Watches
from syrinx_stages.contract.settings import TOKEN_HEADER

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """An HTTP request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    agent: str


@dataclass
class Target:
    """The resource or object that a path names."""

    kind: Kind
    version: str
    """The requested `apiVersion`."""
    namespace: str | None
    name: str
    subresource: str
    rest: str


class Server:
    """Answers requests."""

    def __init__(self, api: Api, watches: Watches, faults: Faults, rights: Rights | None) -> None:
        self.api = api
        self.watches = watches
        self.faults = faults
        self.rights = rights
        self.seen: list[Request] = []
        self.proxied: aiohttp.ClientSession | None = None
        self.read_log: Callable[[str], str] = lambda pod: ""
        """Returns the output of a pod's containers."""

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Handles a request with faults, and with errors as `Status`."""
        body = msgspec.json.decode(await raw.read() or b"null")
        agent = raw.headers.get("User-Agent", "")
        self.seen.append(Request(raw.method, raw.path, dict(raw.query), body, agent))
        try:
            if self.faults.refuses(raw.method):
                self.watches.drop()
                return _cut(raw)
            await asyncio.sleep(self.faults.latency)
            fault = self.faults.next(raw.method, raw.path_qs)
            if fault is not None and fault.error:
                raise fault.error
            if fault is not None and fault.reset:
                if fault.served:
                    await self._serve(raw, body)
                return _cut(raw)
            if fault is not None:
                await fault.released.wait()
            return await self._serve(raw, body)
        except ApiError as error:
            return web.json_response(error.status(), status=error.code)

    async def _serve(self, raw: web.BaseRequest, body: Any) -> web.StreamResponse:
        answer = discovery.serve(self.api.kinds, raw.path) if raw.method == "GET" else None
        if answer is not None:
            return web.json_response(answer)
        target = self._target(raw.path)
        verb = self._verb(raw, target)
        self._authorise(verb, target)
        if target.subresource == "proxy":
            return await self._proxy(raw, target)
        if verb == "watch":
            return await self._watch(raw, target)
        return self._answer(raw, verb, target, body)

    def _target(self, path: str) -> Target:
        steps = path.strip("/").split("/")
        if steps[0] not in ("api", "apis") or len(steps) < 3:
            raise not_found("the server could not find the requested resource", path)
        group, version, steps = ("", steps[1], steps[2:]) if steps[0] == "api" else (steps[1], steps[2], steps[3:])
        namespace = None
        if len(steps) > 2 and steps[0] == "namespaces":
            namespace, steps = steps[1], steps[2:]
        kind = self.api.kinds.at(group, version, steps[0]) if steps else None
        if kind is None:
            raise not_found("the server could not find the requested resource", path)
        name, subresource = [*steps[1:], "", ""][:2]
        if subresource and subresource not in kind.subresources:
            raise not_found("the server could not find the requested resource", path)
        requested = f"{group}/{version}" if group else version
        return Target(kind, requested, namespace, name, subresource, "/".join(steps[3:]))

    def _verb(self, raw: web.BaseRequest, target: Target) -> str:
        if raw.method == "GET" and raw.query.get("watch") in ("1", "true"):
            return "watch"
        verb = _VERBS.get(raw.method)
        if verb is None or (not target.name and verb in ("update", "patch", "delete")):
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if not target.name:
            return "list" if verb == "get" else verb
        return verb

    def _authorise(self, verb: str, target: Target) -> None:
        if self.rights is not None:
            resource = target.kind.plural + (f"/{target.subresource}" if target.subresource else "")
            name = target.name.partition(":")[0] if target.subresource == "proxy" else target.name
            namespace = target.namespace or (target.name if target.kind.kind == "Namespace" else "")
            self.rights.check(Asked(verb, target.kind.group, resource, namespace, name))

    def _answer(self, raw: web.BaseRequest, verb: str, target: Target, body: Any) -> web.Response:
        kind, namespace, name, query = target.kind, target.namespace, target.name, dict(raw.query)
        write = self._write(raw, target)
        status = 200
        if verb == "list":
            return _json(self._list(target, query))
        if verb == "create":
            result, status = self.api.create(kind, namespace, body, write), 201
        elif verb == "delete":
            result = self.api.delete(kind, namespace, name, body or {})
        elif target.subresource == "log":
            return web.Response(text=self._log(name, query))
        elif verb == "get":
            result = self.api.get(kind, namespace, name)
            if "PartialObjectMetadata" in raw.headers.get("Accept", ""):
                result = {"kind": "PartialObjectMetadata", "metadata": result["metadata"]}
        elif verb == "update":
            result = self.api.replace(kind, namespace, name, body, write, target.subresource)
        else:
            form = raw.headers.get("Content-Type", "").partition(";")[0]
            result, created = self.api.patch(kind, namespace, name, body, form, write, target.subresource)
            status = 201 if created else 200
        return _json(_in_version(result, target), status)

    def _log(self, pod: str, query: Any) -> str:
        lines = self.read_log(pod).splitlines(keepends=True)
        return "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])

    def _write(self, raw: web.BaseRequest, target: Target) -> Write:
        return Write(
            manager=raw.query.get("fieldManager", ""),
            dry_run=raw.query.get("dryRun") == "All",
            force=raw.query.get("force") == "true",
            before_create=lambda: self._authorise("create", target),
        )

    def _list(self, target: Target, query: dict[str, str]) -> dict[str, Any]:
        kind, test = target.kind, select.by_query(query.get("labelSelector", ""))
        found = [obj for obj in self.api.store.all(kind, target.namespace) if test(obj)]
        version, after = self.api.store.version, ""
        if token := query.get("continue"):
            version, after = json.loads(base64.urlsafe_b64decode(token))
            found = [obj for obj in found if _place(obj) > after]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        limit = int(query.get("limit", len(found)))
        if len(found) > limit:
            found = found[:limit]
            meta["continue"] = base64.urlsafe_b64encode(json.dumps([version, _place(found[-1])]).encode()).decode()
        if kind.crd is None:
            # Like a real server: items of built-in lists have no apiVersion and kind.
            found = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
        items = [_in_version(obj, target) for obj in found]
        return {"kind": f"{kind.kind}List", "apiVersion": target.version, "metadata": meta, "items": items}

    async def _watch(self, raw: web.BaseRequest, target: Target) -> web.StreamResponse:
        test = select.by_query(raw.query.get("labelSelector", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(raw)
        try:
            async for event in self.watches.events(target.kind, target.namespace, test, dict(raw.query)):
                event = {**event, "object": _in_version(event["object"], target)}
                await response.write(msgspec.json.encode(event) + b"\n")
            await response.write_eof()
        except ConnectionError:
            pass
        return response

    async def _proxy(self, raw: web.BaseRequest, target: Target) -> web.StreamResponse:
        name, _, port = target.name.partition(":")
        address = self.api.get(target.kind, target.namespace, name).get("status", {}).get("podIP")
        url = f"http://{address}:{port or 80}/{target.rest}"
        if self.proxied is None:
            self.proxied = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        headers = {TOKEN_HEADER: raw.headers.get(TOKEN_HEADER, "")}
        try:
            async with self.proxied.request(
                raw.method, url, params=raw.query, data=await raw.read() or None, headers=headers
            ) as answer:
                content = await answer.read()
                return web.Response(status=answer.status, body=content, content_type=answer.content_type)
        except aiohttp.ClientError as error:
            detail = f"error trying to reach service: {error}"
            raise ApiError(503, "ServiceUnavailable", detail) from None


def _place(obj: dict[str, Any]) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _in_version(obj: dict[str, Any], target: Target) -> dict[str, Any]:
    """Returns a custom object in the requested version."""
    is_custom = target.kind.crd is not None and obj.get("kind") == target.kind.kind
    return {**obj, "apiVersion": target.version} if is_custom else obj


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _cut(raw: web.BaseRequest) -> web.Response:
    """Closes the connection without a response."""
    if raw.transport is not None:
        raw.transport.abort()
    return web.Response(status=503)
