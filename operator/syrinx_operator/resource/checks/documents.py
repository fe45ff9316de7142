"""Reads YAML files as plain data with the position of each field.

Stricter than YAML: no tags, no duplicate keys, only strings as keys, and limits on size, depth and number of values
(after expansion of aliases), so that a file can neither run code nor exhaust memory.
"""

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


class DocumentError(Exception):
    """The file is not accepted as YAML."""

    def __init__(self, message: str, position: Position, path: Path = ()) -> None:
        super().__init__(message)
        self.position = position
        self.path = path


class Document:
    """One YAML document as plain data. Raises `DocumentError`."""

    def __init__(self, loader: yaml.SafeLoader, node: Any) -> None:
        self._loader = loader
        self._values = 0
        self._positions: dict[Path, Position] = {(): _position(node)}
        """Positions of field names, list items and, under the empty path, the document."""
        self.value = self._read(node, ())

    def position(self, path: Path) -> Position:
        """Returns the position of a field, or of its nearest parent in the file."""
        while path not in self._positions:
            path = path[:-1]
        return self._positions[path]

    def _read(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(f"more than {MAX_VALUES:,} values after expansion of aliases", _position(node), path)
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"nested more than {MAX_DEPTH} deep", _position(node))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise DocumentError(f"not plain YAML: the tag {node.tag}", _position(node), path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._positions |= {(*path, index): _position(item) for index, item in enumerate(node.value)}
            return [self._read(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            message = f"{str(node.value)[:40]!r} is not readable: {error}"
            raise DocumentError(message, _position(node), path) from None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                shown = f"{key.value} (quote it)" if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise DocumentError(f"a field's name must be text, not {shown}", _position(key), path)
            field = (*path, key.value)
            if key.value in fields:
                first = self._positions[field].line
                raise DocumentError(f"duplicate field, first in line {first}", _position(key), field)
            self._positions[field] = _position(key)
            fields[key.value] = self._read(value, field)
        return fields


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def read_documents(data: bytes) -> Iterator[Document]:
    """Yields the non-empty documents of a file. Raises `DocumentError` at the first invalid one."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the file is too large; at most {MAX_BYTES:,} bytes are accepted", Position(1, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"not UTF-8 text: {error.reason}", Position(line, 1)) from None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            document = Document(loader, loader.get_node())
            if document.value is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        raise DocumentError(f"not YAML: {words}", position) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}", Position(1, 1)) from None
    except RecursionError:
        raise DocumentError(f"nested more than {MAX_DEPTH} deep", Position(1, 1)) from None
