"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from support.kube.errors import bad_request

Object = dict[str, Any]
Test = Callable[[Object], bool]

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=]+)\s*(==|!=|=)\s*([^\s=]*)\s*$")
_EXISTS = re.compile(r"^\s*(!?)\s*([^\s!=(),]+)\s*$")


def by_query(labels: str = "", fields: str = "") -> Test:
    """Returns a matcher for a selector. Raises ApiError 400 for an invalid one."""
    tests = [_label(part) for part in _split(labels)] + [_field(part) for part in _split(fields)]
    return lambda obj: all(test(obj) for test in tests)


def by_labels(selector: Object, obj: Object) -> bool:
    """Returns whether a LabelSelector matches labels; an absent one matches nothing."""
    labels = obj["metadata"].get("labels", {})
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(_expression(rule, labels) for rule in selector.get("matchExpressions", ()))


def _expression(rule: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values", [])
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[rule["operator"]]


def _split(selector: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _label(part: str) -> Test:
    if match := _SET.match(part):
        name, wanted = match[1], {value.strip() for value in match[3].split(",")}
        if match[2] == "in":
            return lambda obj: _labels(obj).get(name) in wanted
        return lambda obj: _labels(obj).get(name) not in wanted
    if match := _EQUAL.match(part):
        name, operator, value = match[1], match[2], match[3]
        return lambda obj: (_labels(obj).get(name) == value) is (operator != "!=")
    if match := _EXISTS.match(part):
        absent, name = match[1] == "!", match[2]
        return lambda obj: (name in _labels(obj)) is not absent
    raise bad_request(f"unable to parse requirement: {part!r}")


def _labels(obj: Object) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels


def _field(part: str) -> Test:
    match = _EQUAL.match(part)
    if not match:
        raise bad_request(f"unable to parse field selector: {part!r}")
    path, operator, wanted = match[1].split("."), match[2], match[3]

    def test(obj: Object) -> bool:
        value: Any = obj
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return (("" if value is None else str(value)) == wanted) is (operator != "!=")

    return test
