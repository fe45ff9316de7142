"""Reads YAML files as plain data with the position of each field.

Stricter than YAML: no tags, no duplicate keys, only strings as keys, and limits on size, depth and number of values
(after expansion of aliases), so that a file can neither run code nor exhaust memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 20_000

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Path = tuple[str | int, ...]
"""Path of a value in its document: field names and list indices."""


class Position(Struct, frozen=True):
    """A position in a file. Line and column start at 1."""

    line: int
    column: int


class Document(Struct, frozen=True):
    """One YAML document."""

    value: Any
    positions: dict[Path, Position]
    """Positions of field names, list items and, under the empty path, the document."""

    def position(self, path: Path) -> Position:
        """Returns the position of a field, or of its nearest parent in the file."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path]


class DocumentError(Exception):
    """The file is not accepted as YAML."""

    def __init__(self, message: str, position: Position, path: Path = ()) -> None:
        super().__init__(message)
        self.position = position
        self.path = path


def read_documents(data: bytes) -> Iterator[Document]:
    """Yields the non-empty documents of a file. Raises `DocumentError` at the first invalid one."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the file is too large; at most {MAX_BYTES:,} bytes are accepted", Position(1, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"not UTF-8 text: {error.reason}", Position(line, 1)) from None
    with _yaml_errors(), contextlib.closing(_loader(text)) as loader:
        while loader.check_node():
            node = loader.get_node()
            value, positions = _Reader(loader).read(node)
            if value is not None:
                yield Document(value, positions)


def _loader(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    loader.close = loader.dispose  # type: ignore[attr-defined]
    return loader


@contextlib.contextmanager
def _yaml_errors() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(f"not YAML: {words}", _position(mark) if mark else Position(1, 1)) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}", Position(1, 1)) from None
    except RecursionError:
        raise DocumentError(f"nested more than {MAX_DEPTH} deep", Position(1, 1)) from None


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


class _Reader:
    """Converts one YAML document to plain data and positions."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._values = 0
        self._positions: dict[Path, Position] = {}

    def read(self, node: yaml.Node) -> tuple[Any, dict[Path, Position]]:
        self._positions[()] = _position(node.start_mark)
        return self._value(node, ()), self._positions

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(
                f"more than {MAX_VALUES:,} values after expansion of aliases", _position(node.start_mark), path
            )
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"nested more than {MAX_DEPTH} deep", _position(node.start_mark))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise DocumentError(f"not plain YAML: the tag {node.tag}", _position(node.start_mark), path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self._positions[path] = _position(node.start_mark)
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in node.value:
            position = _position(key.start_mark)
            if key.tag != "tag:yaml.org,2002:str":
                raise DocumentError(f"a field's name must be text, not {_shown(key)}", position, path)
            name = key.value
            if name in fields:
                first = self._positions[(*path, name)].line
                raise DocumentError(f"duplicate field, first in line {first}", position, (*path, name))
            self._positions[(*path, name)] = position
            fields[name] = self._value(value, (*path, name))
        return fields

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            raise DocumentError(
                f"{str(node.value)[:40]!r} is not readable: {error}", _position(node.start_mark), path
            ) from None


def _shown(node: yaml.Node) -> str:
    return f"{node.value} (quote it)" if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
