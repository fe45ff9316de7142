"""`docs/fields.md`: every field of the resource and its status, with type, bounds, default and meaning. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, inspect

from syrinx_operator.cluster.status import PipelineStatus
from syrinx_operator.crd import encoded_default, schema_of
from syrinx_operator.spec import Metadata, PipelineSpec
from syrinx_operator.spec_pods import PodFields, kubernetes_only

_HEAD = """\
# Fields of a TTSPipeline

Made by `make generate` from `operator/syrinx_operator/spec.py`. `apiVersion` is `syrinx.dev/v1alpha1`, `kind` is
`TTSPipeline`; only `metadata.name` is required. `K8s` marks what says something on Kubernetes only; `syrinx up` names
such fields when it leaves them out. The rules between fields are in [operator.md](operator.md).
"""


def fields_file() -> str:
    """Text of `docs/fields.md`."""
    parts = [_HEAD]
    for root, struct in (("metadata", Metadata), ("spec", PipelineSpec), ("status", PipelineStatus)):
        places: dict[type[Struct], list[str]] = {}
        for place, each in _structs(root, struct):
            places.setdefault(each, []).append(place)
        parts += [_section(each, where) for each, where in places.items()]
        if struct is PipelineSpec:
            pods = [place for each, where in places.items() if issubclass(each, PodFields) for place in where]
            parts.append(_section(PodFields, pods))
    return "\n".join(parts)


def _structs(place: str, struct: type[Struct]) -> Iterator[tuple[str, type[Struct]]]:
    yield place, struct
    for field in _fields(struct):
        for suffix, nested in _nested(field.type):
            yield from _structs(f"{place}.{field.encode_name}{suffix}", nested)


def _nested(kind: inspect.Type) -> Iterator[tuple[str, type[Struct]]]:
    match kind:
        case inspect.Metadata(type=inner):
            yield from _nested(inner)
        case inspect.StructType(cls=struct):
            yield "", struct
        case inspect.VarTupleType(item_type=item):
            yield from ((f"[]{suffix}", struct) for suffix, struct in _nested(item))
        case inspect.UnionType(types=types):
            for each in types:
                yield from _nested(each)


def _section(struct: type[Struct], places: list[str]) -> str:
    """One table; what every stage's pods can be given has a table of its own."""
    shared = struct is not PodFields and issubclass(struct, PodFields)
    rows = [_row(field) for field in _fields(struct) if not (shared and _is_of_pods(struct, field))]
    more = f"\nAnd the fields of [every stage's pods](#{_anchor(PodFields)}).\n" if shared else ""
    title = f'<a id="{_anchor(struct)}"></a>\n## {", ".join(f"`{place}`" for place in places)}'
    head = "| field | type | default | |\n|---|---|---|---|"
    return "\n".join([f"{title}\n\n{' '.join((struct.__doc__ or '').split())}\n", head, *rows, more])


def _is_of_pods(struct: type[Struct], field: inspect.Field) -> bool:
    return any(each.name == field.name and _same_default(each, field) for each in _fields(PodFields))


def _same_default(one: inspect.Field, other: inspect.Field) -> bool:
    return bool(encoded_default(one) == encoded_default(other))


def _row(field: inspect.Field) -> str:
    schema = schema_of(field.type)
    default = encoded_default(field)
    if default is None or default == _defaults_inside(schema):
        shown = "*required*" if field.required else ""
    else:
        shown = f"`{json.dumps(default)}`"
    mark = " **K8s**" if kubernetes_only(field) else ""
    cells = (f"`{field.encode_name}`", _words(schema), shown, schema["description"] + mark)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _defaults_inside(schema: dict[str, Any]) -> dict[str, Any]:
    """What an empty object comes to."""
    fields = schema.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field}


def _words(schema: dict[str, Any]) -> str:
    """Type and bounds."""
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" if value == "" else f"`{value}`" for value in schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    kind: str = schema["type"]
    if kind == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        return f"list of {least} to {most}: {_words(schema['items'])}"
    if "additionalProperties" in schema:
        bound = f" of up to {schema['maxProperties']}" if "maxProperties" in schema else ""
        return f"map{bound}: {_words(schema['additionalProperties'])}"
    if kind in ("integer", "number"):
        return kind + _range(schema)
    longest = schema.get("maxLength")
    return f"{kind}, up to {longest}" if longest else kind


def _range(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None:
        return ""
    over = "above" if schema.get("exclusiveMinimum") else "from"
    return f" {over} {least:g}" + ("" if most is None else f" to {most:,}")


def _fields(struct: type[Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _anchor(struct: type[Struct]) -> str:
    return struct.__name__.lower()
