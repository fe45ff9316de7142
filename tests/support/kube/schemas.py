"""Schemas of built-in kinds (Kubernetes OpenAPI) and of custom resources."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate.utils as published
from referencing import Registry, Resource

from support.kube.errors import bad_request, invalid
from support.kube.quantities import canonical

VERSION = "1.37.0"
Node = dict[str, Any] | None
"""A schema; None is a value of any type."""

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_POINTERS = {"storageClassName", "holderIdentity", "volumeName", "subPathExpr", "path"}
"""String fields that are kept if empty."""
_ZEROES = {"minReadySeconds", "initialDelaySeconds", "hostPort", "nodePort", "healthCheckNodePort"}
_FALSES = {"hostNetwork", "hostPID", "hostIPC", "tty", "stdin", "stdinOnce", "readOnly", "paused", "hostUsers"} | {
    "publishNotReadyAddresses"
}
"""Number and boolean fields that are omitted if zero."""


@cache
def _published() -> dict[str, Any]:
    path = f"kubernetes-json-schema/v{VERSION}-local-strict/_definitions.json"
    found: dict[str, Any] = published.schema_contents(path, VERSION)
    return found


@cache
def _by_kind() -> dict[tuple[str, str, str], str]:
    return {
        (kind["group"], kind["version"], kind["kind"]): name
        for name, node in _published()["$defs"].items()
        if isinstance(node, dict)
        for kind in node.get("x-kubernetes-group-version-kind", [])
    }


def builtin(group: str, version: str, kind: str) -> dict[str, Any]:
    """Returns the schema of a built-in kind. Raises KeyError."""
    return {"$ref": f"#/$defs/{_by_kind()[group, version, kind]}"}


def custom(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a CRD's `openAPIV3Schema`."""
    meta = {"$ref": f"#/$defs/{_META}"}
    any_text = {"type": "string"}
    fields = {**schema.get("properties", {}), "metadata": meta, "apiVersion": any_text, "kind": any_text}
    return {**schema, "properties": fields}


def resolve(node: Node) -> Node:
    while node is not None and "$ref" in node:
        node = _published()["$defs"][node["$ref"].removeprefix("#/$defs/")]
    return node


def child(node: Node, key: str) -> Node:
    """Returns the schema of a field or map value; None if any value is valid."""
    node = resolve(node)
    if node is None:
        return None
    if key in node.get("properties", {}):
        return node["properties"][key]
    extra = node.get("additionalProperties")
    return extra if isinstance(extra, dict) else None


def items(node: Node) -> Node:
    node = resolve(node)
    return node.get("items") if node else None


def shape(node: Node, value: Any) -> str:
    """Returns the merge strategy: `map`, `listmap`, `set` or `leaf` (replaced as a whole)."""
    node = resolve(node)
    if isinstance(value, dict):
        return "leaf" if node and node.get("x-kubernetes-map-type") == "atomic" else "map"
    if isinstance(value, list) and node:
        return {"map": "listmap", "set": "set"}.get(node.get("x-kubernetes-list-type", "atomic"), "leaf")
    return "leaf"


def map_keys(node: Node) -> list[str]:
    node = resolve(node)
    assert node is not None
    return list(node["x-kubernetes-list-map-keys"])


def decode(node: Node, value: Any, path: str, unknown: list[str], *, exact: bool = False) -> Any:
    """Returns an object as stored: without nulls and unknown fields (which are reported), with canonical quantities.

    Built-in objects also lose empty values that say nothing; `exact` keeps those.
    """
    if node and node.get("$ref", "").endswith(_QUANTITY) and not exact:
        try:
            return canonical(value)
        except ValueError as error:
            raise bad_request(f"{path}: {error}") from None
    schema = resolve(node)
    if isinstance(value, dict):
        result = {}
        for key, content in value.items():
            where = f"{path}.{key}".lstrip(".")
            if not _known(schema, key):
                unknown.append(where)
            elif content is not None:
                decoded = decode(child(schema, key), content, where, unknown, exact=exact)
                if exact or not _omitted(schema, key, decoded):
                    result[key] = decoded
        return result
    if isinstance(value, list):
        inner = items(schema)
        return [decode(inner, content, f"{path}[{index}]", unknown, exact=exact) for index, content in enumerate(value)]
    return value


def _known(schema: Node, key: str) -> bool:
    if schema is None or "properties" not in schema or key in schema["properties"]:
        return True
    return bool(schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields"))


def _omitted(schema: Node, key: str, value: Any) -> bool:
    """Returns whether the server omits an empty value."""
    if not schema or key not in schema.get("properties", {}) or key in schema.get("required", []):
        return False
    if value == "":
        return key not in _POINTERS
    if value is False:
        return key in _FALSES
    if value == 0 and isinstance(value, int):
        return key in _ZEROES
    if value == {}:
        return "additionalProperties" in (resolve(child(schema, key)) or {}) and "properties" not in (
            resolve(child(schema, key)) or {}
        )
    return bool(value == [])


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    whole = _published()
    registry: Registry = Resource.from_contents(whole) @ Registry()
    return jsonschema.Draft202012Validator({"$ref": f"{whole['$id']}#/$defs/{name}"}, registry=registry)


def validate(group: str, version: str, kind: str, obj: dict[str, Any]) -> None:
    """Raises ApiError 422 for violations of the published schema, with field names."""
    causes = [
        (".".join(map(str, error.absolute_path)), error.message[:300])
        for error in _validator(_by_kind()[group, version, kind]).iter_errors(obj)
    ]
    if causes:
        raise invalid(kind, obj["metadata"]["name"], *causes)
