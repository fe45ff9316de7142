"""Conditions between fields of the resource, each as CEL for the API server and as a Python function."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from msgspec import Struct, structs

from syrinx_operator.resource.documents import Path


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
    failures: Callable[[Any], Iterator[tuple[Path, Any]]]
    """Yields the path and the text of each item that does not fulfill the condition; paths are relative to the list."""


class Field:
    """A field by its path from `self`, such as `tuning.bounds`."""

    def __init__(self, path: str) -> None:
        self._names = path.split(".")
        # CEL requires the escape because `namespace` is a reserved word.
        self.cel = ".".join(["self", *("__namespace__" if name == "namespace" else name for name in self._names)])

    def read(self, value: Any) -> Any:
        """Returns the field's value in an object."""
        for name in self._names:
            value = getattr(value, _attributes(value.__class__)[name])
        return value

    def is_set(self) -> Condition:
        """Whether an optional field is given."""
        return Condition(f"has({self.cel})", lambda value: self.read(value) is not None)

    def is_empty(self) -> Condition:
        """Whether a list or map is absent or has no items."""
        return Condition(f"!has({self.cel}) || {self.cel}.size() == 0", lambda value: not self.read(value))

    def is_true(self) -> Condition:
        """Whether a boolean field is true."""
        return Condition(self.cel, self.read)

    def equals(self, constant: str | int | float | bool) -> Condition:
        """Whether the field has this value."""
        return Condition(f"{self.cel} == {json.dumps(constant)}", lambda value: bool(self.read(value) == constant))

    def at_least(self, minimum: int) -> Condition:
        """Whether a number is at least `minimum`."""
        return Condition(f"{self.cel} >= {minimum}", lambda value: bool(self.read(value) >= minimum))

    def at_most(self, other: Field) -> Condition:
        """Whether a number is at most the value of another field."""
        return Condition(f"{self.cel} <= {other.cel}", lambda value: bool(self.read(value) <= other.read(value)))

    def size_at_most(self, maximum: Field) -> Condition:
        """Whether a list has at most as many items as the value of another field. Absent lists have none."""
        return Condition(
            f"!has({self.cel}) || {self.cel}.size() <= {maximum.cel}",
            lambda value: len(self.read(value)) <= maximum.read(value),
        )

    def matches(self, pattern: str) -> Condition:
        """Whether a part of the text matches a regular expression that means the same in RE2 and in Python."""
        return Condition(
            f"{self.cel}.matches({json.dumps(pattern)})", lambda value: bool(re.search(pattern, self.read(value)))
        )

    def starts_with(self, prefix: str) -> Condition:
        """Whether the text starts with a prefix."""
        return Condition(
            f"{self.cel}.startsWith({json.dumps(prefix)})", lambda value: bool(self.read(value).startswith(prefix))
        )

    def is_one_of(self, constants: Collection[str]) -> Condition:
        """Whether the text is among constants."""
        return Condition(f"{self.cel} in {json.dumps(sorted(constants))}", lambda value: self.read(value) in constants)


def exactly_one(*fields: str, flag: str | None = None) -> Condition:
    """Exactly one of optional fields is set; a boolean `flag` that is true counts as set."""
    conditions = [*([Field(flag).is_true()] if flag else []), *(Field(field).is_set() for field in fields)]
    return Condition(
        " + ".join(f"({each.cel} ? 1 : 0)" for each in conditions) + " == 1",
        lambda value: sum(each.holds(value) for each in conditions) == 1,
    )


def every_key(field: str, cel: str, holds: Callable[[str], bool]) -> ItemsCondition:
    """Every key of a map fulfills a condition; `cel` is that condition on `key`."""
    of = Field(field)
    return ItemsCondition(
        f"!has({of.cel}) || {of.cel}.all(key, {cel})",
        lambda value: (((), key) for key in of.read(value) if not holds(key)),
    )


def every_item_at_most(field: str, name: str, maximum: str) -> ItemsCondition:
    """The field `name` of every item is at most the value of the field `maximum`."""
    of, limit, of_item = Field(field), Field(maximum), Field(name)
    return ItemsCondition(
        f"!has({of.cel}) || {of.cel}.all(item, item.{name} <= {limit.cel})",
        lambda value: (
            ((index, name), of_item.read(item))
            for index, item in enumerate(of.read(value))
            if of_item.read(item) > limit.read(value)
        ),
    )


def unique(field: str, *names: str) -> ItemsCondition:
    """No two items of a list are equal in the fields `names`, or as a whole if there are none."""
    of = Field(field)
    same = " && ".join(f"other.{name} == one.{name}" for name in names) or "other == one"

    def failures(value: Any) -> Iterator[tuple[Path, Any]]:
        for index, key in _repeated(of.read(value) or (), names):
            yield (index, *(names if len(names) == 1 else ())), key

    return ItemsCondition(f"!has({of.cel}) || {of.cel}.all(one, {of.cel}.exists_one(other, {same}))", failures)


def _repeated(items: Iterable[Any], names: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yields index and text of each item whose fields `names` equal those of an earlier item."""
    seen = set()
    for index, item in enumerate(items):
        values = [Field(name).read(item) for name in names]
        key = tuple(values) or item
        if key in seen:
            described = ", ".join(f"{name} {each}" for name, each in zip(names, values, strict=True))
            yield index, str(values[0]) if len(names) == 1 else described or str(list(item))
        seen.add(key)


def repeated_keys(items: Iterable[Any], name: str) -> Iterator[tuple[int, str]]:
    """Yields index and key of each item whose field `name` equals that of an earlier item."""
    return _repeated(items, (name,))


def sorted_by(field: str, first: str, second: str) -> ItemsCondition:
    """Items are sorted by two integer fields, of which the second is at most 100."""
    of, names = Field(field), (Field(first), Field(second))

    def failures(value: Any) -> Iterator[tuple[Path, Any]]:
        keys = [tuple(name.read(item) for name in names) for item in of.read(value)]
        for index, (before, key) in enumerate(itertools.pairwise(keys), 1):
            if key < before:
                yield (index,), f"{first} {key[0]}, {second} {key[1]}"

    # isSorted() exceeds the cost budget of Kubernetes before 1.30, so compare each position with the number of smaller
    # items.
    smaller = f"other.{first} * 100 + other.{second} < one.{first} * 100 + one.{second}"
    ordered = f"{of.cel}.all(one, {of.cel}.filter(other, {smaller}).size() == {of.cel}.indexOf(one))"
    return ItemsCondition(f"!has({of.cel}) || {ordered}", failures)


@functools.cache
def _attributes(struct: type[Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in structs.fields(struct)}
