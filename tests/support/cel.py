"""Checks and evaluates CEL rules with Google's CEL library, against the types that Kubernetes derives from a schema.

Expressions are type-checked against protobuf messages, which have declared fields, and evaluated on plain dicts, where
reading an absent field is an error: the API server does the same.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import re2
from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, timestamp_pb2

Schema = dict[str, Any]
Field = descriptor_pb2.FieldDescriptorProto

_PACKAGE = "rules"
_RESERVED_WORDS = frozenset({"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for"}) | {
    *("function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while")
}
_SCALARS = {
    "boolean": (Field.TYPE_BOOL, cel.Type.BOOL),
    "integer": (Field.TYPE_INT64, cel.Type.INT),
    "number": (Field.TYPE_DOUBLE, cel.Type.DOUBLE),
    "string": (Field.TYPE_STRING, cel.Type.STRING),
}
_FORMATS = {"date-time": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


class CelError(Exception):
    """The expression does not compile, or its evaluation failed."""


def return_type(expression: str, schema: Schema) -> cel.Type:
    """The type of an expression in which `self` and `oldSelf` have the schema. Raises `CelError`."""
    try:
        return _environment(json.dumps(schema)).compile(expression).return_type()
    except RuntimeError as error:
        raise CelError(str(error)) from None


def evaluate(expression: str, variables: dict[str, Any]) -> Any:
    """The value of an expression, with variables from `to_cel`. Raises `CelError`."""
    result = _program(expression).eval(data=variables)
    if result.type() == cel.Type.ERROR:
        raise CelError(str(result.plain_value()))
    return result.plain_value()


def to_cel(value: Any, schema: Schema) -> Any:
    """A value as rules see it: only declared fields, with reserved words escaped."""
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        return {escaped(name): to_cel(each, properties[name]) for name, each in value.items() if name in properties}
    if isinstance(value, dict) and schema.get("x-kubernetes-preserve-unknown-fields"):
        return {}
    if isinstance(value, dict):
        return {name: to_cel(each, schema["additionalProperties"]) for name, each in value.items()}
    if isinstance(value, list):
        return [to_cel(each, schema["items"]) for each in value]
    return float(value) if schema.get("type") == "number" else value


def escaped(name: str) -> str:
    """The name of a field in an expression."""
    return f"__{name}__" if name in _RESERVED_WORDS else name


def absent_field_error(expression: str, schema: Schema, attempts: int = 400) -> str | None:
    """An error from reading an absent field without a `has()` guard, found by evaluating random values; or None."""
    generator = random.Random(0)
    schema = _mentioned(schema, expression)
    names = [name for name in ("self", "oldSelf") if name in expression]
    seen = set()
    for _ in range(attempts):
        variables = {name: to_cel(_sample(schema, generator), schema) for name in names}
        content = json.dumps(variables)
        if content in seen:
            continue
        seen.add(content)
        try:
            evaluate(expression, variables)
        except CelError as error:
            if "Key not found" in str(error):
                return str(error)
    return None


def _mentioned(schema: Schema, expression: str) -> Schema:
    """The schema without the fields whose names the expression does not contain."""
    nested = {
        name: _mentioned(schema[name], expression) for name in ("items", "additionalProperties") if name in schema
    }
    if "properties" in schema:
        fields = schema["properties"].items()
        nested["properties"] = {name: _mentioned(each, expression) for name, each in fields if name in expression}
    return {**schema, **nested}


def _sample(schema: Schema, generator: random.Random) -> Any:
    """A random value of the schema's types; patterns are ignored. Fields without a default may be absent."""
    if "enum" in schema:
        return generator.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return generator.choice([1, "2", "1Gi"])
    match schema["type"]:
        case "object" if "properties" in schema:
            certain = {name for name, each in schema["properties"].items() if "default" in each}
            certain.update(schema.get("required", ()))
            return {
                name: _sample(each, generator)
                for name, each in schema["properties"].items()
                if name in certain or generator.random() < 0.5
            }
        case "object":
            values = schema.get("additionalProperties")
            names = [name for name in ("a", "nvidia.com/gpu") if generator.random() < 0.5]
            return {name: _sample(values, generator) for name in names} if values else {}
        case "array":
            return [_sample(schema["items"], generator) for _ in range(generator.randrange(3))]
        case "boolean":
            return generator.random() < 0.5
        case "string":
            return generator.choice(["", "a", "rediss://host", "/a"])
    return generator.choice([schema.get("minimum", 0), schema.get("maximum", 100), 2])


def _index_of(values: list[Any], value: Any) -> int:
    return values.index(value) if value in values else -1


def _find(text: str, pattern: str) -> str:
    found = re2.search(pattern, text)
    return found[0] if found else ""


def _new_environment(
    self_type: cel.Type, object_type: cel.Type, pool: descriptor_pool.DescriptorPool | None = None
) -> cel.Env:
    """An environment with the part of Kubernetes' CEL libraries that the rules use: indexOf() and find()."""
    parameters = [cel.Type.List(cel.Type.DYN), object_type]
    find = cel.Overload("string_find", cel.Type.STRING, [cel.Type.STRING, cel.Type.STRING], is_member=True, impl=_find)
    index_of = cel.Overload("list_index_of", cel.Type.INT, parameters, is_member=True, impl=_index_of)
    return cel.NewEnv(
        descriptor_pool=pool,
        variables={"self": self_type, "oldSelf": self_type},
        functions=[cel.FunctionDecl("indexOf", [index_of]), cel.FunctionDecl("find", [find])],
    )


@functools.cache
def _program(expression: str) -> cel.Expression:
    return _new_environment(cel.Type.DYN, cel.Type.Map(cel.Type.DYN, cel.Type.DYN)).compile(expression)


@functools.lru_cache(maxsize=256)
def _environment(schema_json: str) -> cel.Env:
    messages = _Messages()
    self_type = messages.type_of(json.loads(schema_json))
    return _new_environment(self_type, cel.Type.DYN, messages.pool())


class _Messages:
    """Protobuf messages made from a structural schema, one for each object with declared fields."""

    def __init__(self) -> None:
        self._file = descriptor_pb2.FileDescriptorProto(name="rules.proto", package=_PACKAGE, syntax="proto3")

    def pool(self) -> descriptor_pool.DescriptorPool:
        pool = descriptor_pool.DescriptorPool()
        for module in (struct_pb2, timestamp_pb2, duration_pb2):
            file = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            pool.Add(file)
            self._file.dependency.append(file.name)
        pool.Add(self._file)
        return pool

    def type_of(self, schema: Schema) -> cel.Type:
        """The type of `self` for rules of a schema."""
        if schema.get("x-kubernetes-int-or-string"):
            return cel.Type.DYN
        if schema["type"] == "array":
            return cel.Type.List(self.type_of(schema["items"]))
        if "additionalProperties" in schema:
            return cel.Type.Map(cel.Type.STRING, self.type_of(schema["additionalProperties"]))
        if schema["type"] == "object":
            return cel.Type(self._message(schema))
        return _SCALARS[schema["type"]][1]

    def _message(self, schema: Schema) -> str:
        """Adds the message of an object and returns its full name. An object without declared fields has none."""
        message = self._file.message_type.add(name=f"Object{len(self._file.message_type)}")
        for number, (name, each) in enumerate(schema.get("properties", {}).items(), 1):
            field = message.field.add(name=escaped(name), number=number, label=Field.LABEL_OPTIONAL)
            if each.get("type") == "array":
                field.label = Field.LABEL_REPEATED
                self._set_type(field, each["items"])
            elif "additionalProperties" in each:
                field.label = Field.LABEL_REPEATED
                entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")  # Protobuf insists on it.
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
                self._set_type(
                    entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), each["additionalProperties"]
                )
                field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
            else:
                self._set_type(field, each)
        return f"{_PACKAGE}.{message.name}"

    def _set_type(self, field: descriptor_pb2.FieldDescriptorProto, schema: Schema) -> None:
        """Sets the type of a field, of an item of a list, or of a value of a map."""
        kind = schema.get("type")
        if kind in _SCALARS and schema.get("format") not in _FORMATS:
            field.type = _SCALARS[kind][0]
            return
        if schema.get("x-kubernetes-int-or-string"):
            name = "google.protobuf.Value"  # The dynamic type.
        elif kind == "array":
            name = "google.protobuf.ListValue"  # A list in a list: protobuf has no type for it, so items are dynamic.
        elif "additionalProperties" in schema:
            name = "google.protobuf.Struct"  # A map in a list or a map: values are dynamic for the same reason.
        elif kind == "object":
            name = self._message(schema)
        else:
            name = _FORMATS[schema["format"]]
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{name}"
