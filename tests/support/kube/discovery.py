"""API discovery."""

from __future__ import annotations

from typing import Any

from support.kube.errors import not_found
from support.kube.kinds import Kind, Kinds

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def serve(kinds: Kinds, path: str) -> dict[str, Any] | None:
    """Returns the response to a discovery path; None for other paths. Raises ApiError 404 for an unserved group."""
    steps = path.strip("/").split("/")
    if steps == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if steps == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in _groups(kinds)]}
    if steps[0] == "api" and len(steps) == 2:
        return _resources(kinds, "", steps[1], path)
    if steps[0] == "apis" and len(steps) == 3:
        return _resources(kinds, steps[1], steps[2], path)
    return None


def _groups(kinds: Kinds) -> list[str]:
    return sorted({kind.group for kind in kinds if kind.group})


def _group(kinds: Kinds, name: str) -> dict[str, Any]:
    found = [kind for kind in kinds if kind.group == name]
    preferred = sorted({kind.version for kind in found})
    versions = [*preferred, *sorted({version for kind in found for version in kind.former})]
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(kinds: Kinds, group: str, version: str, path: str) -> dict[str, Any]:
    found = [kind for kind in kinds if kind.group == group and version in (kind.version, *kind.former)]
    if not found:
        raise not_found("the server could not find the requested resource", path)
    listed = [entry for kind in found for entry in _entries(kind)]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _entries(kind: Kind) -> list[dict[str, Any]]:
    common = {"namespaced": kind.namespaced, "kind": kind.kind, "singularName": kind.kind.lower()}
    main = {"name": kind.plural, **common, "verbs": _VERBS} | ({"shortNames": list(kind.short)} if kind.short else {})
    return [
        main,
        *(
            {"name": f"{kind.plural}/{sub}", **common, "singularName": "", "verbs": ["get", "patch", "update"]}
            for sub in sorted(kind.subresources)
        ),
    ]
