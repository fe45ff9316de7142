"""API discovery."""

from __future__ import annotations

from typing import Any

from support.kube.kinds import Kind, Kinds

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def serve(kinds: Kinds, path: str) -> dict[str, Any] | None:
    """Returns the response to a discovery path; None for other paths."""
    served: dict[str, list[Kind]] = {}
    for kind in kinds:
        for version in kind.api_versions:
            served.setdefault(version, []).append(kind)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups: dict[str, list[dict[str, str]]] = {}
        for each in sorted(served, reverse=True):
            group, _, version = each.rpartition("/")
            groups.setdefault(group, []).append({"groupVersion": each, "version": version})
        del groups[""]
        listed = [{"name": name, "versions": of, "preferredVersion": of[0]} for name, of in groups.items()]
        return {"kind": "APIGroupList", "groups": listed}
    name = path.removeprefix("/apis/").removeprefix("/api/")
    if name not in served:
        return None
    resources = [entry for kind in served[name] for entry in _entries(kind)]
    return {"kind": "APIResourceList", "groupVersion": name, "resources": resources}


def _entries(kind: Kind) -> list[dict[str, Any]]:
    common = {"namespaced": kind.namespaced, "kind": kind.kind, "singularName": kind.kind.lower(), "verbs": _VERBS}
    names = (kind.plural, *(f"{kind.plural}/{each}" for each in sorted(kind.subresources)))
    return [{"name": name, **common} for name in names]
