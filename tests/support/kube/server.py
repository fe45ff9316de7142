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
import yaml
from aiohttp import web

from support.kube import discovery, select
from support.kube.api import APPLY, Api, Write
from support.kube.errors import ApiError, bad_request, not_found
from support.kube.faults import Faults
from support.kube.kinds import Kind
from support.kube.rights import Asked, Rights
from support.kube.watch import Watches

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
        body = _parsed(await raw.read())
        agent = raw.headers.get("User-Agent", "")
        self.seen.append(Request(raw.method, raw.path, dict(raw.query), body, agent))
        try:
            if self.faults.refuses(raw.method):
                self.watches.drop()
                return _cut(raw)
            await asyncio.sleep(self.faults.latency)
            fault = self.faults.next(raw.method, raw.path_qs)
            if fault is not None:
                if fault.hang:
                    await fault.released.wait()
                if fault.error:
                    raise fault.error
                if fault.reset:
                    if fault.served:
                        await self._serve(raw, body)
                    return _cut(raw)
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
        if len(steps) > 2 and steps[0] == "namespaces" and steps[2] not in ("status", "finalize"):
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
            found = self._list(kind, namespace, query, raw)
            items = [_in_version(each, target) for each in found["items"]]
            return _json({**_in_version(found, target), "items": items}, write)
        if verb == "create":
            result, status = self.api.create(kind, namespace, _object(body), write), 201
        elif verb == "delete":
            deleted = self.api.delete(kind, namespace, name, body if isinstance(body, dict) else {})
            result = deleted if self.api.store.get(kind, namespace, name) else _success(kind, deleted)
        elif target.subresource == "log":
            return web.Response(text=self._log(name, query))
        elif verb == "get":
            result = self.api.get(kind, namespace, name)
        elif verb == "update":
            result = self.api.replace(kind, namespace, name, _object(body), write, target.subresource)
        else:
            form = raw.headers.get("Content-Type", "").partition(";")[0]
            result, created = self.api.patch(kind, namespace, name, body, form, write, target.subresource)
            status = 201 if created else 200
        result = _in_version(result, target)
        return _json(result, write, status)

    def _log(self, pod: str, query: Any) -> str:
        lines = self.read_log(pod).splitlines(keepends=True)
        return "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])

    def _write(self, raw: web.BaseRequest, target: Target) -> Write:
        query = raw.query
        form = raw.headers.get("Content-Type", "").partition(";")[0]
        agent = raw.headers.get("User-Agent", "unknown").partition("/")[0]
        return Write(
            manager=query.get("fieldManager", "" if form == APPLY else agent),
            dry_run=query.get("dryRun") == "All",
            validation=query.get("fieldValidation", "Warn"),
            force=query.get("force") in ("true", "1"),
            before_create=lambda: self._authorise("create", target),
        )

    def _list(self, kind: Kind, namespace: str | None, query: dict[str, str], raw: web.BaseRequest) -> dict[str, Any]:
        test = select.by_query(query.get("labelSelector", ""))
        found = [obj for obj in self.api.store.all(kind, namespace) if test(obj)]
        version, after = self.api.store.version, ""
        if token := query.get("continue"):
            version, after = json.loads(base64.urlsafe_b64decode(token))
            found = [obj for obj in found if _place(obj) > after]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        limit = int(query.get("limit", 0))
        if limit and len(found) > limit:
            meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
            meta["continue"] = base64.urlsafe_b64encode(json.dumps([version, _place(found[-1])]).encode()).decode()
        if "PartialObjectMetadata" in raw.headers.get("Accept", ""):
            items = [_partial(obj) for obj in found]
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": meta,
                "items": items,
            }
        if kind.crd is None:
            # Like a real server: items of built-in lists have no apiVersion and kind.
            found = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": found}

    async def _watch(self, raw: web.BaseRequest, target: Target) -> web.StreamResponse:
        query = dict(raw.query)
        test = select.by_query(query.get("labelSelector", ""))
        partial = "PartialObjectMetadata" in raw.headers.get("Accept", "")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(raw)
        try:
            async for event in self.watches.events(target.kind, target.namespace, test, query):
                event = {**event, "object": _in_version(event["object"], target)}
                if partial and event["type"] != "ERROR":
                    event = {**event, "object": _partial(event["object"])}
                await response.write(msgspec.json.encode(event) + b"\n")
            await response.write_eof()
        except ConnectionError:
            pass
        return response

    async def _proxy(self, raw: web.BaseRequest, target: Target) -> web.StreamResponse:
        name, _, port = target.name.partition(":")
        address = self.api.get(target.kind, target.namespace, name).get("status", {}).get("podIP")
        if not address:
            raise bad_request("address not allowed")
        url = f"http://{address}:{port or 80}/{target.rest}"
        if self.proxied is None:
            self.proxied = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        # The API server consumes `Authorization` itself.
        headers = {key: value for key, value in raw.headers.items() if key.lower() not in _NOT_PROXIED}
        try:
            async with self.proxied.request(
                raw.method, url, params=raw.query, data=await raw.read() or None, headers=headers
            ) as answer:
                content = await answer.read()
                return web.Response(status=answer.status, body=content, content_type=answer.content_type)
        except aiohttp.ClientError as error:
            detail = f"error trying to reach service: {error}"
            raise ApiError(503, "ServiceUnavailable", detail) from None


_NOT_PROXIED = ("authorization", "host", "content-length", "transfer-encoding", "connection", "accept-encoding")


def _parsed(body: bytes) -> Any:
    if not body:
        return None
    try:
        return yaml.safe_load(body) if body[:1] not in (b"{", b"[") else msgspec.json.decode(body)
    except (msgspec.MsgspecError, yaml.YAMLError):
        return None


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized")
    return body


def _place(obj: dict[str, Any]) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _in_version(obj: dict[str, Any], target: Target) -> dict[str, Any]:
    """Returns a custom object, or a list of these, in the requested version."""
    kinds = (target.kind.kind, f"{target.kind.kind}List")
    is_custom = target.kind.crd is not None and obj.get("kind") in kinds
    return {**obj, "apiVersion": target.version} if is_custom else obj


def _partial(obj: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _success(kind: Kind, deleted: dict[str, Any]) -> dict[str, Any]:
    details = {
        "name": deleted["metadata"]["name"],
        "group": kind.group,
        "kind": kind.plural,
        "uid": deleted["metadata"]["uid"],
    }
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _json(body: dict[str, Any], write: Write, status: int = 200) -> web.Response:
    response = web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
    for warning in write.warnings:
        response.headers.add("Warning", f'299 - "{warning}"')
    return response


def _cut(raw: web.BaseRequest) -> web.Response:
    """Closes the connection without a response."""
    if raw.transport is not None:
        raw.transport.abort()
    return web.Response(status=503)
