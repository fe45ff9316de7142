"""Types of CEL expressions, as strict as the API server: cel-python finds out only what it happens to evaluate.

A type is a schema: `{"type": "integer"}`, and so on. Known is what the resource's rules use and Kubernetes has had
since 1.25; anything else is an error, as is a field that may be absent and is read without `has`. `string()` is not
among it: the API server takes the result's length for unbounded, and then the rule costs too much.
"""

from __future__ import annotations

from typing import Any

import celpy
import lark

Schema = dict[str, Any]
BOOL, INT, DOUBLE, TEXT = ({"type": name} for name in ("boolean", "integer", "number", "string"))
_METHODS: dict[str, tuple[tuple[str, ...], tuple[Schema, ...], Schema]] = {
    "matches": (("string",), (TEXT,), BOOL),
    "startsWith": (("string",), (TEXT,), BOOL),
    "size": (("string", "array", "map"), (), INT),
    "isSorted": (("array",), (), BOOL),
}
"""Types of the receiver, of the arguments and of the result."""
_MACROS = ("all", "exists", "exists_one", "map")
_COMPARED = ("relation_eq", "relation_ne", "relation_lt", "relation_le", "relation_gt", "relation_ge")

Present = frozenset[str]
"""Fields that are known to be there, as they are written: `self.path`."""


class CelTypeError(Exception):
    """The API server would not take the expression."""


def type_of(expression: str, schema: Schema) -> Schema:
    """The type of an expression where `self` and `oldSelf` are of a schema. Raises `CelTypeError`."""
    tree = celpy.Environment().compile(expression)
    return _Checker({"self": schema, "oldSelf": schema}, frozenset()).type_of(tree)


def _bare(tree: Any) -> Any:
    """Without the levels of the grammar that say nothing here."""
    while isinstance(tree, lark.Tree) and len(tree.children) == 1 and tree.data not in ("ident", "literal", "list_lit"):
        tree = tree.children[0]
    return tree


def _source(tree: Any) -> str:
    """`self.a.b` of a selection."""
    tree = _bare(tree)
    if isinstance(tree, lark.Token):
        return str(tree)
    return ".".join(_source(child) for child in tree.children)


def _asked_for(tree: Any) -> str | None:
    """What `has(...)` asks for."""
    if isinstance(tree, lark.Tree) and tree.data == "ident_arg" and tree.children[0] == "has":
        return _source(tree.children[1])
    return None


def _present_if(tree: Any, truth: bool) -> Present:
    """Fields that are there if an expression is true, or false."""
    tree = _bare(tree)
    field = _asked_for(tree)
    if field is not None:
        return frozenset([field] if truth else [])
    if not isinstance(tree, lark.Tree):
        return frozenset()
    if tree.data == "unary" and tree.children[0].data == "unary_not":
        return _present_if(tree.children[1], not truth)
    if tree.data == ("conditionaland" if truth else "conditionalor"):
        return _present_if(tree.children[0], truth) | _present_if(tree.children[1], truth)
    return frozenset()


class _Checker:
    def __init__(self, names: dict[str, Schema], present: Present) -> None:
        self._names, self._present = names, present

    def type_of(self, tree: Any) -> Schema:
        tree = _bare(tree)
        if isinstance(tree, lark.Token):
            raise CelTypeError(f"unknown: {tree}")
        if (_asked_for(tree)) is not None:
            self._select(_bare(tree.children[1]), asked=True)
            return BOOL
        return getattr(self, f"_{tree.data}", self._unknown)(tree)

    def _unknown(self, tree: lark.Tree) -> Schema:
        raise CelTypeError(f"not known to be accepted: {tree.data}")

    def _given(self, present: Present) -> _Checker:
        return _Checker(self._names, self._present | present)

    def _expect(self, tree: Any, wanted: Schema) -> Schema:
        found = self.type_of(tree)
        if not _same(found, wanted):
            raise CelTypeError(f"{_source(tree)} is {_name(found)}, not {_name(wanted)}")
        return wanted

    def _expr(self, tree: lark.Tree) -> Schema:
        condition, yes, no = tree.children
        self._expect(condition, BOOL)
        result = self._given(_present_if(condition, True)).type_of(yes)
        return self._given(_present_if(condition, False))._expect(no, result)

    def _conditionalor(self, tree: lark.Tree) -> Schema:
        self._expect(tree.children[0], BOOL)
        return self._given(_present_if(tree.children[0], False))._expect(tree.children[1], BOOL)

    def _conditionaland(self, tree: lark.Tree) -> Schema:
        self._expect(tree.children[0], BOOL)
        return self._given(_present_if(tree.children[0], True))._expect(tree.children[1], BOOL)

    def _relation(self, tree: lark.Tree) -> Schema:
        operation, right = tree.children
        left = operation.children[0]
        if operation.data == "relation_in":
            self._expect(right, {"type": "array", "items": self.type_of(left)})
        elif operation.data in _COMPARED:
            found = self.type_of(left)
            if operation.data == "relation_eq" and found.get("x-kubernetes-int-or-string"):
                self.type_of(right)
            else:
                self._expect(right, found)
        else:
            raise CelTypeError(f"not known to be accepted: {operation.data}")
        return BOOL

    def _addition(self, tree: lark.Tree) -> Schema:
        return self._arithmetic(tree)

    def _multiplication(self, tree: lark.Tree) -> Schema:
        return self._arithmetic(tree)

    def _arithmetic(self, tree: lark.Tree) -> Schema:
        operation, right = tree.children
        if operation.data not in ("addition_add", "multiplication_mul"):
            raise CelTypeError(f"not known to be accepted: {operation.data}")
        found = self._expect(right, self.type_of(operation.children[0]))
        if found["type"] not in ("integer", "number", *(["string"] if operation.data == "addition_add" else [])):
            raise CelTypeError(f"no arithmetic on {_name(found)}")
        return found

    def _unary(self, tree: lark.Tree) -> Schema:
        return self._expect(tree.children[1], BOOL if tree.children[0].data == "unary_not" else INT)

    def _literal(self, tree: lark.Tree) -> Schema:
        kinds = {"INT_LIT": INT, "FLOAT_LIT": DOUBLE, "STRING_LIT": TEXT, "BOOL_LIT": BOOL}
        return kinds[tree.children[0].type]

    def _list_lit(self, tree: lark.Tree) -> Schema:
        first, *others = tree.children[0].children
        items = self.type_of(first)
        for other in others:
            self._expect(other, items)
        return {"type": "array", "items": items}

    def _ident(self, tree: lark.Tree) -> Schema:
        name = str(tree.children[0])
        if name not in self._names:
            raise CelTypeError(f"{name} is not defined")
        return self._names[name]

    def _ident_arg(self, tree: lark.Tree) -> Schema:
        """Of functions `int` alone, of what may be a text: where that is no number, the rule counts as broken."""
        name, argument = str(tree.children[0]), self.type_of(tree.children[1])
        if name != "int" or not argument.get("x-kubernetes-int-or-string"):
            raise CelTypeError(f"not known to be accepted: {name}()")
        return INT

    def _member_dot(self, tree: lark.Tree) -> Schema:
        return self._select(tree)

    def _select(self, tree: lark.Tree, *, asked: bool = False) -> Schema:
        of, name = self.type_of(tree.children[0]), str(tree.children[1])
        field = name.removeprefix("__").removesuffix("__")
        if field not in of.get("properties", {}):
            raise CelTypeError(f"{_source(tree)}: no such field")
        found: Schema = of["properties"][field]
        certain = field in of.get("required", ()) or "default" in found
        if not (asked or certain or _source(tree) in self._present):
            raise CelTypeError(f"{_source(tree)} may be absent: ask with has()")
        return found

    def _member_index(self, tree: lark.Tree) -> Schema:
        of = self.type_of(tree.children[0])
        self._expect(tree.children[1], TEXT)
        if "additionalProperties" not in of:
            raise CelTypeError(f"{_source(tree.children[0])} is no map")
        found: Schema = of["additionalProperties"]
        return found

    def _member_dot_arg(self, tree: lark.Tree) -> Schema:
        target, name = self.type_of(tree.children[0]), str(tree.children[1])
        arguments = [_bare(each) for each in tree.children[2].children] if len(tree.children) > 2 else []
        if name in _MACROS:
            return self._macro(target, name, arguments)
        receivers, parameters, result = _METHODS.get(name, ((), (), BOOL))
        is_map = "additionalProperties" in target  # An object with fields is a message to CEL, not a map.
        kind = "map" if is_map else target.get("type")
        if kind not in receivers or len(arguments) != len(parameters):
            raise CelTypeError(f"not known to be accepted: {_name(target)}.{name}()")
        for argument, wanted in zip(arguments, parameters, strict=True):
            self._expect(argument, wanted)
        return result

    def _macro(self, target: Schema, name: str, arguments: list[Any]) -> Schema:
        variable, body = arguments
        if "items" not in target and "additionalProperties" not in target:
            raise CelTypeError(f"{name}() goes through lists and maps, not {_name(target)}")
        each = target.get("items", TEXT)
        inner = _Checker({**self._names, _source(variable): each}, self._present)
        if name == "map":
            return {"type": "array", "items": inner.type_of(body)}
        return inner._expect(body, BOOL)


def _same(one: Schema, other: Schema) -> bool:
    if one.get("type") != other.get("type"):
        return False
    return one["type"] != "array" or _same(one["items"], other["items"])


def _name(kind: Schema) -> str:
    return str(kind.get("type", "a value of several types"))
