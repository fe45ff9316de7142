"""Conditions between fields of the resource, each as CEL for the API server and as a Python function, and rules."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.checks.documents import Path

FORBIDDEN: Final = "FieldValueForbidden"
DUPLICATE: Final = "FieldValueDuplicate"


class Violation(NamedTuple):
    """A rule that a resource violates."""

    path: Path
    """The field to change, from the resource's root."""
    message: str


class Condition(Struct, frozen=True):
    """A condition on one object."""

    cel: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Condition) -> Condition:
        return Condition(f"{self.cel} || {other.cel}", lambda value: self.holds(value) or other.holds(value))

    def __and__(self, other: Condition) -> Condition:
        cel = " && ".join(f"({each})" if " || " in each else each for each in (self.cel, other.cel))
        return Condition(cel, lambda value: self.holds(value) and other.holds(value))

    def __invert__(self) -> Condition:
        return Condition(f"!({self.cel})" if " " in self.cel else f"!{self.cel}", lambda value: not self.holds(value))

    def failures(self, value: Any) -> Iterator[tuple[Path, Any]]:
        """Yields `((), None)` if the condition does not hold."""
        if not self.holds(value):
            yield (), None


class ItemsCondition(Struct, frozen=True):
    """A condition on every item of a list or key of a map. An absent list or map fulfills it."""

    cel: str
    """Empty if the API server cannot evaluate it."""
    failures: Callable[[Any], Iterable[tuple[Path, Any]]]
    """Yields the path and the text of each item that does not fulfill the condition; paths are relative to the list."""


class Rule(Struct, frozen=True):
    """A condition that must hold, and what to say if it does not."""

    field: str
    """The field to change, relative to `self`. Empty: `self`."""
    condition: Condition | ItemsCondition
    message: str
    """What to do, in the API server's error."""
    detail: str = ""
    """The message in Python, with values of `self` and the failed `item`. Default: `message`."""
    message_expression: str = ""
    """CEL of a message with values."""
    reason: str = ""
    """`FORBIDDEN` or `DUPLICATE`. Default: FieldValueInvalid."""
    cluster_only: bool = False
    """Whether the rule holds on Kubernetes only."""

    def manifest(self) -> dict[str, str]:
        """The rule as an item of `x-kubernetes-validations`."""
        manifest = {
            "rule": self.condition.cel,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": f".{self.field}" if self.field else "",
            "reason": self.reason,
        }
        return {name: text for name, text in manifest.items() if text}

    def violations(self, value: Any, path: Path) -> Iterator[Violation]:
        """Evaluates the rule for the object at a path."""
        field = self.field.split(".") if self.field else ()
        for item_path, item in self.condition.failures(value):
            message = (self.detail or self.message).format(self=value, item=item)
            yield Violation((*path, *field, *item_path), message)


def cel_of(path: str) -> str:
    """Returns CEL for a field by its path from `self`, such as `tuning.bounds`."""
    # CEL requires the escape because `namespace` is a reserved word.
    return ".".join(["self", *("__namespace__" if name == "namespace" else name for name in path.split("."))])


def read(value: Any, path: str) -> Any:
    """Returns the value of a field by its path."""
    for name in path.split("."):
        value = getattr(value, _attributes(value.__class__)[name])
    return value


@functools.cache
def _attributes(struct: type[Struct]) -> dict[str, str]:
    return dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))


def has(path: str) -> Condition:
    """Whether an optional field is given."""
    return Condition(f"has({cel_of(path)})", lambda value: read(value, path) is not None)


def is_empty(path: str) -> Condition:
    """Whether a list or map is absent or has no items."""
    return Condition(f"!has({cel_of(path)}) || {cel_of(path)}.size() == 0", lambda value: not read(value, path))


def is_true(path: str) -> Condition:
    """Whether a boolean field is true."""
    return Condition(cel_of(path), lambda value: bool(read(value, path)))


def equals(path: str, constant: str | int | float | bool) -> Condition:
    """Whether a field has this value."""
    cel = f"{cel_of(path)} == {json.dumps(constant)}"
    return Condition(cel, lambda value: bool(read(value, path) == constant))


def at_most(path: str, other: str) -> Condition:
    """Whether a number is at most the value of another field."""
    return Condition(f"{cel_of(path)} <= {cel_of(other)}", lambda value: bool(read(value, path) <= read(value, other)))


def matches(path: str, pattern: str) -> Condition:
    """Whether a part of the text matches a regular expression that means the same in RE2 and in Python."""
    cel = f"{cel_of(path)}.matches({json.dumps(pattern)})"
    return Condition(cel, lambda value: bool(re.search(pattern, read(value, path))))


def starts_with(path: str, prefix: str) -> Condition:
    """Whether the text starts with a prefix."""
    cel = f"{cel_of(path)}.startsWith({json.dumps(prefix)})"
    return Condition(cel, lambda value: bool(read(value, path).startswith(prefix)))


def requires(field: str, condition: Condition, message: str, **options: Any) -> Rule:
    """`field` may be set only where `condition` holds."""
    return Rule(field, ~has(field) | condition, message, **options)


def exactly_one(*fields: str, flag: str = "") -> Rule:
    """Exactly one of optional fields is set; a boolean `flag` that is true counts as set."""
    conditions = [*([is_true(flag)] if flag else []), *(has(field) for field in fields)]
    *names, last = [*([f"`{flag}: true`"] if flag else []), *(f"`{field}`" for field in fields)]
    condition = Condition(
        " + ".join(f"({each.cel} ? 1 : 0)" for each in conditions) + " == 1",
        lambda value: sum(each.holds(value) for each in conditions) == 1,
    )
    return Rule("", condition, f"set exactly one of {', '.join(names)} and {last}")


def unique(field: str, message: str, *names: str) -> Rule:
    """No two items of a list are equal in the fields `names`, or as a whole if there are none."""
    items, suffix = cel_of(field), names if len(names) == 1 else ()
    same = " && ".join(f"other.{name} == one.{name}" for name in names) or "other == one"
    condition = ItemsCondition(
        f"!has({items}) || {items}.all(one, {items}.exists_one(other, {same}))",
        lambda value: (((index, *suffix), text) for index, text in repeated(read(value, field) or (), *names)),
    )
    return Rule(field, condition, message, detail="{item} is listed twice", reason=DUPLICATE)


def repeated(items: Iterable[Any], *names: str) -> Iterator[tuple[int, str]]:
    """Yields index and text of each item whose fields `names` equal those of an earlier item."""
    seen = set()
    for index, item in enumerate(items):
        values = [read(item, name) for name in names]
        key = tuple(values) or item
        if key in seen:
            described = ", ".join(f"{name} {each}" for name, each in zip(names, values, strict=True))
            yield index, str(values[0]) if len(names) == 1 else described or str(list(item))
        seen.add(key)


def immutable(cel: str, message: str, field: str = "", *, advice: str = "create a new pipeline") -> Rule:
    """A rule about an update. Only the API server evaluates it, because only it knows the old value."""
    return Rule(field, Condition(cel, lambda _: True), f"{message}: {advice}", reason=FORBIDDEN)
