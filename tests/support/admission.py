"""Emulates admission of custom resources by the API server: pruning, defaulting, validation, CEL rules.

Follows the order, paths and messages of Kubernetes 1.36. An update may keep an unchanged value that breaks a rule
(ratcheting). Not emulated: `metadata` beyond the schema, and ratcheting of anything but rules.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import re2
from msgspec import Struct

from support.cel import CelError, evaluate, to_cel

Schema = dict[str, Any]
_BLOCKING = ("Unsupported value", "Required value", "Too long", "Too many", "Invalid type")
_BLOCKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}


class Refused(Exception):
    """The API server refused a resource, with one message per problem."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


class Error(Struct, frozen=True):
    """A problem."""

    path: str
    kind: str
    """`Invalid value`, `Required value`, ...; `Invalid type` reads as `Invalid value`."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path or '<nil>'}: {self.kind.replace('Invalid type', 'Invalid value')}{self.detail}"


def admit(crd: dict[str, Any], new: dict[str, Any], old: dict[str, Any] | None = None, *, strict: bool = True) -> Any:
    """Returns the resource as it is stored. Raises `Refused`.

    `old` is the stored resource of an update. `strict` refuses unknown fields, like kubectl, instead of dropping them.
    """
    schema = storage_schema(crd)
    stored = json.loads(json.dumps(new))  # Copies shared parts, like the wire format.
    unknown = list(_prune(stored, schema, "", root=True))
    if strict and unknown:
        raise Refused([f'strict decoding error: unknown field "{path}"' for path in unknown])
    apply_defaults(stored, schema)
    _drop_nulls(stored, schema)
    errors = [*_schema_errors(stored, schema, ""), *_duplicates(stored, schema, "")]
    if any(error.kind in _BLOCKING for error in errors):
        errors.append(Error("", "Invalid value", f": null: {_BLOCKED}"))
    else:
        errors += _rule_errors(schema, stored, old, "")
    if errors:
        raise Refused([str(error) for error in errors])
    return stored


def storage_schema(crd: dict[str, Any]) -> Schema:
    """Returns the schema of the storage version."""
    schema: Schema = next(version for version in crd["spec"]["versions"] if version["storage"])["schema"]
    return schema["openAPIV3Schema"]


def _children(value: Any, schema: Schema, path: str = "") -> Iterator[tuple[Any, Any, Schema, str]]:
    """Yields key, value, schema and path of each child with a schema."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in schema.get("properties", {}):
                yield key, each, schema["properties"][key], f"{path}.{key}" if path else key
            elif isinstance(schema.get("additionalProperties"), dict):
                yield key, each, schema["additionalProperties"], f"{path}[{key}]" if "." in key else f"{path}.{key}"
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield index, each, schema["items"], f"{path}[{index}]"


def _prune(value: Any, schema: Schema, path: str, *, root: bool = False) -> Iterator[str]:
    """Drops unknown fields and yields their paths."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or (root is False and path == "metadata"):
        return
    if isinstance(value, dict) and "additionalProperties" not in schema:
        for name in [name for name in value if name not in schema.get("properties", {})]:
            del value[name]
            yield f"{path}.{name}" if path else name
    for _, each, node, where in _children(value, schema, path):
        yield from _prune(each, node, where)


def apply_defaults(value: Any, schema: Schema) -> None:
    """Sets the defaults of fields that are absent, or null without being nullable."""
    if isinstance(value, dict):
        for name, node in schema.get("properties", {}).items():
            if "default" in node and value.get(name) is None and not (name in value and node.get("nullable")):
                value[name] = copy.deepcopy(node["default"])
    for _, each, node, _ in _children(value, schema):
        apply_defaults(each, node)


def _drop_nulls(value: Any, schema: Schema) -> None:
    for key, each, node, _ in list(_children(value, schema)):
        if each is None and isinstance(value, dict) and not node.get("nullable"):
            del value[key]
        else:
            _drop_nulls(each, node)


def _schema_errors(value: Any, schema: Schema, path: str) -> Iterator[Error]:
    kinds = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema["type"]]
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(str(each)) for each in schema["enum"])
        yield Error(path, "Unsupported value", f": {json.dumps(value)}: supported values: {supported}")
    if not any(_TYPES[kind](value) for kind in kinds):
        shown = "null" if value is None else next(kind for kind, fits in _TYPES.items() if fits(value))
        expected = ",".join(kinds)
        yield Error(path, "Invalid type", f': "{shown}": {path} in body must be of type {expected}: "{shown}"')
        return
    for kind, detail in _bound_errors(value, schema, path):
        yield Error(path, kind, detail)
    for name in schema.get("required", ()):
        if name not in value:
            yield Error(f"{path}.{name}" if path else name, "Required value", "")
    for _, each, node, where in _children(value, schema, path):
        yield from _schema_errors(each, node, where)


def _bound_errors(value: Any, schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    invalid = f": {json.dumps(value)}: {path} in body should"
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            yield "Too long", f": may not be more than {schema['maxLength']} bytes"
        elif len(value) < schema.get("minLength", 0):
            yield "Invalid value", f"{invalid} be at least {schema['minLength']} chars long"
        elif "pattern" in schema and not re2.search(schema["pattern"], value):
            yield "Invalid value", f"{invalid} match '{schema['pattern']}'"
    elif isinstance(value, int | float):
        least, most = schema.get("minimum"), schema.get("maximum")
        if least is not None and schema.get("exclusiveMinimum") and value <= least:
            yield "Invalid value", f"{invalid} be greater than {least}"
        elif least is not None and value < least:
            yield "Invalid value", f"{invalid} be greater than or equal to {least}"
        if most is not None and value > most:
            yield "Invalid value", f"{invalid} be less than or equal to {most}"
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield "Too many", f": {len(value)}: must have at most {schema['maxItems']} items"
        if len(value) < schema.get("minItems", 0):
            yield "Invalid value", f": {len(value)}: {path} in body should have at least {schema['minItems']} items"
    elif len(value) > schema.get("maxProperties", len(value)):
        yield "Too many", f": {len(value)}: must have at most {schema['maxProperties']} items"


def _duplicates(value: Any, schema: Schema, path: str) -> Iterator[Error]:
    """Yields the items of a list-map with duplicate keys."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys and isinstance(value, list):
        identities = [{key: item.get(key) for key in keys if key in item} for item in value if isinstance(item, dict)]
        for index, identity in enumerate(identities):
            if identities[:index].count(identity) == 1:  # Reported once.
                yield Error(f"{path}[{index}]", "Duplicate value", f": {json.dumps(identity)}")
    for _, each, node, where in _children(value, schema, path):
        yield from _duplicates(each, node, where)


def _rule_errors(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Error]:
    rules = schema.get("x-kubernetes-validations", ())
    is_unchanged = bool(rules) and old is not None and value == old
    for rule in rules:
        if is_unchanged and not _is_transition(rule):
            continue
        error = _broken(rule, schema, value, old, path)
        if error is not None:
            yield error
    for key, each, node, where in _children(value, schema, path):
        yield from _rule_errors(node, each, _correlated(schema, old, key, each), where)


def _correlated(schema: Schema, old: Any, key: Any, value: Any) -> Any:
    """Returns the old value of a child; None if it cannot be correlated."""
    if isinstance(old, dict):
        return old.get(key)
    keys = schema.get("x-kubernetes-list-map-keys")
    if not isinstance(old, list) or not keys:
        return None
    return next((each for each in old if all(each.get(name) == value.get(name) for name in keys)), None)


def _is_transition(rule: dict[str, str]) -> bool:
    return re.search(r"\boldSelf\b", rule["rule"]) is not None


def _broken(rule: dict[str, str], schema: Schema, value: Any, old: Any, path: str) -> Error | None:
    if _is_transition(rule) and old is None:
        return None
    variables = {"self": to_cel(value, schema)} | ({} if old is None else {"oldSelf": to_cel(old, schema)})
    try:
        if evaluate(rule["rule"], variables):
            return None
    except CelError as error:
        return Error(path, "Invalid value", f": {error} evaluating rule: {rule['message']}")
    message = rule["message"]
    if "messageExpression" in rule:
        message = evaluate(rule["messageExpression"], variables)
    where = (path + rule.get("fieldPath", "")).removeprefix(".")
    reason = {"FieldValueForbidden": "Forbidden", "FieldValueDuplicate": "Duplicate value"}.get(
        rule.get("reason", ""), "Invalid value"
    )
    return Error(where, reason, f": {message}")
