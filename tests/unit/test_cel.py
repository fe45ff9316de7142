"""CEL rules of the CRD: they compile as on the API server, guard optional fields, and have readable messages."""

import copy
import json

import pytest
from cel_expr_python import cel

from support.admission import storage_schema
from support.cel import CelError, absent_field_error, return_type
from syrinx_operator.resource.generate import custom_resource

ROOT = copy.deepcopy(storage_schema(custom_resource()))
ROOT["required"] = ["metadata"]
ROOT["properties"]["metadata"]["required"] = ["name"]  # The API server ensures both.


def rules(schema=ROOT, path=""):
    for rule in schema.get("x-kubernetes-validations", ()):
        yield pytest.param(rule, schema, id=f"{path or 'resource'}: {rule['rule'][:60]}")
    for name, child in schema.get("properties", {}).items():
        yield from rules(child, f"{path}.{name}".lstrip("."))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from rules(schema[inner], f"{path}[]")


def different_rules():
    """Yields each rule once for each different schema."""
    seen = set()
    for each in rules():
        content = json.dumps(each.values)
        if content not in seen:
            seen.add(content)
            yield each


@pytest.mark.parametrize(("rule", "schema"), list(different_rules()))
def test_every_rule_compiles_and_guards_optional_fields(rule, schema):
    assert return_type(rule["rule"], schema) == cel.Type.BOOL
    assert absent_field_error(rule["rule"], schema) is None
    if "messageExpression" in rule:
        assert return_type(rule["messageExpression"], schema) == cel.Type.STRING
    assert rule["message"].strip() and "\n" not in rule["message"]
    assert rule.get("reason", "FieldValueInvalid").startswith("FieldValue")
    if "fieldPath" in rule:
        node = schema
        for name in rule["fieldPath"].lstrip(".").split("."):
            node = node["properties"][name]


def test_transition_rules_have_the_reason_forbidden():
    transitions = [param.values[0] for param in rules() if "oldSelf" in param.values[0]["rule"]]
    assert len(transitions) >= 5
    assert {rule["reason"] for rule in transitions} == {"FieldValueForbidden"}


SCHEMA = {
    "type": "object",
    "required": ["must"],
    "properties": {
        "must": {"type": "string"},
        "may": {"type": "string"},
        "share": {"type": "number", "default": 1},
        "quantity": {"x-kubernetes-int-or-string": True, "default": 1},
        "names": {"type": "array", "items": {"type": "string"}, "default": []},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
"""The verdicts below are those of kube-apiserver 1.36.2 for this schema."""


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("has(self.anything) && self.anything.size() == 0", "no matching overload for 'size'"),
        ("has(self.other)", "undefined field 'other'"),
        ("self.share == 1", "no matching overload for '_==_' applied to '(double, int)'"),
        ("self.names.all(name, name)", "no matching overload for '_&&_'"),
        ("int(self.quantity) == '1'", "no matching overload for '_==_' applied to '(int, string)'"),
        ("name == 'a'", "undeclared reference to 'name'"),
    ],
)
def test_refuses_what_the_api_server_refuses(expression, error):
    with pytest.raises(CelError) as raised:
        return_type(expression, SCHEMA)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "guarded"),
    [
        ("self.may == 'a'", False),
        ("has(self.may) || self.may == 'a'", False),
        ("!has(self.may) || self.may == 'a'", True),
        ("self.must == 'a'", True),
    ],
)
def test_finds_optional_fields_that_are_read_without_a_guard(expression, guarded):
    assert (absent_field_error(expression, SCHEMA) is None) == guarded
