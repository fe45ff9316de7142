"""Generates the CustomResourceDefinition from the typed resource: schema, rules, printer columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml
from msgspec import NODEFAULT, Struct, inspect
from msgspec.structs import FieldInfo

from syrinx_operator.resource.pods import fields_of
from syrinx_operator.resource.rules import rules_of
from syrinx_operator.resource.spec import API_VERSION, KIND, TTSPipeline
from syrinx_operator.resource.status import PipelineStatus

GROUP, VERSION = API_VERSION.split("/")
PLURAL: Final = "ttspipelines"
NAME: Final = f"{PLURAL}.{GROUP}"

Schema = dict[str, Any]

_COLUMNS = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether the service is available.", 0),
    ("Talker", "string", ".status.talker.summary", "Ready and desired talkers.", 0),
    ("Codec", "string", ".status.codec.summary", "Ready and desired codecs.", 0),
    ("Mode", "string", ".spec.tuning.mode", "Tuning mode.", 0),
    ("Tune", "string", ".status.tuning.phase", "Tuning phase.", 0),
    ("TTFA-p95", "string", ".status.ttfaP95", "95th percentile time to first audio of the slowest task type.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
    ("Model", "string", ".status.model", "Name that clients send as model.", 1),
    ("Endpoint", "string", ".status.endpoint", "URL of the API in the cluster.", 1),
    ("Generation", "string", ".status.modelGeneration", "Desired model generation.", 1),
)
"""Name, type, path, description and priority; priority 1 is shown with `-o wide`."""


def custom_resource() -> dict[str, Any]:
    """Returns the CustomResourceDefinition."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.talker.replicas",
                "statusReplicasPath": ".status.talker.replicas",
                "labelSelectorPath": ".status.talker.selector",
            },
        },
        "additionalPrinterColumns": [_column(*each) for each in _COLUMNS],
        "schema": {"openAPIV3Schema": root_schema()},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["ttsp"],
        "categories": ["all", "syrinx"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def root_schema() -> Schema:
    """Returns the schema of a whole resource."""
    text = {"type": "string"}
    return {
        "description": _sentence(TTSPipeline),
        "type": "object",
        "properties": {
            "apiVersion": {"description": f"Version of this schema: {API_VERSION}.", **text},
            "kind": {"description": f"Kind of resource: {KIND}.", **text},
            "metadata": {"type": "object", "properties": {"name": {**text, "maxLength": 253}}},
            "spec": _spec_field(next(field for field in fields_of(TTSPipeline) if field.name == "spec")),
            "status": {**_struct(PipelineStatus), "description": _sentence(PipelineStatus)},
        },
        "x-kubernetes-validations": [rule.manifest() for rule in rules_of(TTSPipeline)],
    }


def schema_of(kind: inspect.Type) -> Schema:
    """Returns the structural schema of a type. Raises `TypeError` for unsupported types."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return {**schema_of(inner), **(extra or {})}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_range(kind)}
        case inspect.FloatType():
            return {"type": "number", **_range(kind)}
        case inspect.StrType(min_length=minimum, max_length=maximum, pattern=pattern):
            return _given(type="string", minLength=minimum, maxLength=maximum, pattern=pattern)
        case inspect.LiteralType(values=values):
            return {"type": "string" if isinstance(values[0], str) else "integer", "enum": list(values)}
        case inspect.EnumType(cls=enum):
            return {"type": "string", "enum": [member.value for member in enum]}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.VarTupleType(item_type=item, min_length=minimum, max_length=maximum):
            return _given(type="array", minItems=minimum, maxItems=maximum, items=schema_of(item))
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType():
            return _map(kind)
        case inspect.StructType(cls=struct):
            return _struct(struct)
        case inspect.UnionType(types=types):
            return _union([each for each in types if not isinstance(each, inspect.NoneType)])
    raise TypeError(f"a structural schema cannot express {kind}")


def encoded_default(field: FieldInfo) -> Any:
    """Returns a field's default as JSON without absent and empty values, or None."""
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    else:
        default = None if field.default is NODEFAULT else field.default
    return _without_empty(json.loads(msgspec.json.encode(default)))


def _struct(struct: type[Struct]) -> Schema:
    fields = fields_of(struct)
    required = [field.encode_name for field in fields if field.required]
    rules = [rule.manifest() for rule in rules_of(struct)]
    described = _status_field if struct.__struct_config__.omit_defaults else _spec_field
    return {
        "description": _sentence(struct),
        "type": "object",
        **({"required": required} if required else {}),
        "properties": {field.encode_name: described(field) for field in fields},
        **({"x-kubernetes-validations": rules} if rules else {}),
    }


def _spec_field(field: FieldInfo) -> Schema:
    """Returns a field's schema with its default. The description also states a default that is not an object."""
    schema, default = schema_of(inspect.type_info(field.type)), encoded_default(field)
    if default is None:
        return schema
    description = schema["description"]
    if not isinstance(default, dict) and "Default:" not in description:
        shown = default if isinstance(default, str) else json.dumps(default)
        description = f"{description} Default: {shown}."
    return {**schema, "description": description, "default": default}


def _status_field(field: FieldInfo) -> Schema:
    """Returns the schema of a status field. It has no default, because the API server must not set it."""
    schema, default = schema_of(inspect.type_info(field.type)), encoded_default(field)
    if default is None or field.default is NODEFAULT:
        return schema
    return {**schema, "description": f"{schema['description']} Absent: {json.dumps(default)}."}


def _map(kind: inspect.DictType) -> Schema:
    keys = kind.key_type.type if isinstance(kind.key_type, inspect.Metadata) else kind.key_type
    assert isinstance(keys, inspect.StrType), "JSON keys are strings"
    schema = _given(type="object", maxProperties=kind.max_length, additionalProperties=schema_of(kind.value_type))
    if keys.pattern is not None:
        schema["x-kubernetes-validations"] = [
            {
                "rule": f"self.all(key, key.matches({json.dumps(keys.pattern)}))",
                "message": "keys must be up to 63 letters, digits, '-', '_' and '.', optionally with a domain prefix, "
                "for example example.org/name",
            }
        ]
    return schema


def _union(types: list[inspect.Type]) -> Schema:
    if len(types) == 1:
        return schema_of(types[0])
    integer, text = (schema_of(each) for each in types)
    if (integer["type"], text["type"]) != ("integer", "string"):
        raise TypeError(f"a structural schema cannot express the union {types}")
    bounds = {name: bound for each in (integer, text) for name, bound in each.items() if name not in ("type", "format")}
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True, **bounds}


def _range(kind: inspect.IntType | inspect.FloatType) -> Schema:
    if kind.gt is not None:
        return _given(minimum=kind.gt, exclusiveMinimum=True, maximum=kind.le)
    return _given(minimum=kind.ge, maximum=kind.le)


def _given(**fields: Any) -> Schema:
    return {name: value for name, value in fields.items() if value is not None}


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        cleaned = {name: _without_empty(each) for name, each in value.items()}
        return {name: each for name, each in cleaned.items() if each is not None} or None
    if isinstance(value, list):
        return [_without_empty(each) for each in value] or None
    return value if value != "" else None


def _sentence(struct: type[Struct]) -> str:
    return " ".join((struct.__doc__ or "").split())


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path}
    return column | ({"description": description} if description else {}) | ({"priority": priority} if priority else {})


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """Returns a manifest as YAML, with fields in order and without aliases."""
    plain = json.loads(json.dumps(manifest))  # Copies shared values, which would become aliases.
    return yaml.safe_dump(plain, sort_keys=False, width=110, allow_unicode=True)


def crd_file() -> str:
    """Returns the text of `crds/ttspipelines.syrinx.dev.yaml`."""
    header = "# Generated by `make generate` from operator/syrinx_operator/resource/spec.py. Do not edit.\n"
    return header + to_yaml(custom_resource())
