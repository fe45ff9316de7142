"""The rules in CEL: typed as strictly as the API server types them, and worded for people."""

import copy

import pytest

from support.admission import storage_schema
from support.cel_types import BOOL, CelTypeError, type_of
from syrinx_operator.resource.crd import custom_resource

ROOT = copy.deepcopy(storage_schema(custom_resource()))
ROOT["required"] = ["metadata"]
ROOT["properties"]["metadata"]["required"] = ["name"]  # The API server sees to both.


def rules(schema=ROOT, path=""):
    for rule in schema.get("x-kubernetes-validations", ()):
        yield pytest.param(rule, schema, id=f"{path or 'resource'}: {rule['rule'][:60]}")
    for name, child in schema.get("properties", {}).items():
        yield from rules(child, f"{path}.{name}".lstrip("."))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from rules(schema[inner], f"{path}[]")


@pytest.mark.parametrize(("rule", "schema"), list(rules()))
def test_every_rule_is_one_the_api_server_takes(rule, schema):
    assert type_of(rule["rule"], schema) == BOOL
    if "messageExpression" in rule:
        assert type_of(rule["messageExpression"], schema)["type"] == "string"
    assert rule["message"].strip() and "\n" not in rule["message"]
    assert rule.get("reason", "FieldValueInvalid").startswith("FieldValue")
    if "fieldPath" in rule:
        node = schema
        for name in rule["fieldPath"].lstrip(".").split("."):
            node = node["properties"][name]


def test_rules_of_kinds_hold_for_changes_only():
    changes = [param.values[0] for param in rules() if "oldSelf" in param.values[0]["rule"]]
    assert len(changes) >= 5
    assert {rule["reason"] for rule in changes} == {"FieldValueForbidden"}


SCHEMA = {
    "type": "object",
    "required": ["must"],
    "properties": {
        "must": {"type": "string"},
        "may": {"type": "string"},
        "count": {"type": "integer", "default": 1},
        "share": {"type": "number", "default": 1},
        "quantity": {"x-kubernetes-int-or-string": True, "default": 1},
        "names": {"type": "array", "items": {"type": "string"}, "default": []},
        "namespace": {"type": "string", "default": "x"},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
    },
}


@pytest.mark.parametrize(
    "expression",
    [
        "self.must.size() > self.count",
        "!has(self.may) || self.may.startsWith('a')",
        "has(self.may) && self.may == self.must",
        "has(self.may) ? self.may.matches('a') : self.count == 1",
        "self.names.all(name, name in ['a', self.must])",
        "self.__namespace__ == 'x'",
        "int(self.quantity) > self.count",
        "!has(self.anything)",
        "self.labels.size() == 0",
    ],
)
def test_what_is_taken(expression):
    assert type_of(expression, SCHEMA) == BOOL


@pytest.mark.parametrize(
    "expression",
    [
        "self.may == 'a'",
        "has(self.may) || self.may == 'a'",
        "self.other == 'a'",
        "has(self.other)",
        "self.share == 1",
        "self.count < 2.0",
        "self.count == '1'",
        "self.count ? true : false",
        "self.must.split('a').size() == 1",
        "self.names == 'a'",
        "self.names.all(name, name)",
        "self.quantity > 1",
        "'a' in self.must",
        "1 in ['a']",
        "string(self.count) == '1'",
        "int(self.names) == 1",
        "int(self.quantity) == '1'",
        "name == 'a'",
        "self.count.matches('a')",
        "self.must.all(name, true)",
        # A real API server: "found no matching overload for 'size' applied to 'object.()'".
        "has(self.anything) && self.anything.size() == 0",
    ],
)
def test_what_the_api_server_refuses_though_cel_python_may_not(expression):
    with pytest.raises(CelTypeError):
        type_of(expression, SCHEMA)
