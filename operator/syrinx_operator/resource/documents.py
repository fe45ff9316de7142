"""YAML files as plain data that knows the line of each field.

Stricter than YAML asks: plain data only, no duplicate keys, text as keys, and bounded in size, depth and (with aliases
spelled out) number of values, so that no file can run code or exhaust memory.
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
"""Where a value stands in its document: field names and list indices."""


class Mark(Struct, frozen=True):
    """A place in a file; both count from 1."""

    line: int
    column: int


class Document(Struct, frozen=True):
    """One YAML document."""

    value: Any
    marks: dict[Path, Mark]
    """Where each field's name, each list item and (under the empty path) the document starts."""

    def mark(self, path: Path) -> Mark:
        """The place of a field, or of the nearest thing around it that is in the file."""
        while path not in self.marks:
            path = path[:-1]
        return self.marks[path]


class DocumentError(Exception):
    """The file cannot be read as YAML that we accept."""

    def __init__(self, message: str, mark: Mark, path: Path = ()) -> None:
        super().__init__(message)
        self.mark = mark
        self.path = path


def read_documents(data: bytes) -> Iterator[Document]:
    """The non-empty documents of a file, in order. Raises `DocumentError` at the first that cannot be read."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the file is too large; at most {MAX_BYTES:,} bytes are accepted", Mark(1, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"not UTF-8 text: {error.reason}", Mark(line, 1)) from None
    with _yaml_errors(), contextlib.closing(_loader(text)) as loader:
        while loader.check_node():
            node = loader.get_node()
            value, marks = _Reader(loader).read(node)
            if value is not None:
                yield Document(value, marks)


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
        raise DocumentError(f"not YAML: {words}", _mark(mark) if mark else Mark(1, 1)) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}", Mark(1, 1)) from None
    except RecursionError:
        raise DocumentError(f"nested more than {MAX_DEPTH} deep", Mark(1, 1)) from None


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


class _Reader:
    """Turns one composed document into plain data and marks."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._values = 0
        self._marks: dict[Path, Mark] = {}

    def read(self, node: yaml.Node) -> tuple[Any, dict[Path, Mark]]:
        self._marks[()] = _mark(node.start_mark)
        return self._value(node, ()), self._marks

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(f"more than {MAX_VALUES:,} values, aliases spelled out", _mark(node.start_mark), path)
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"nested more than {MAX_DEPTH} deep", _mark(node.start_mark))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise DocumentError(f"not plain YAML: the tag {node.tag}", _mark(node.start_mark), path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self._marks[path] = _mark(node.start_mark)
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in node.value:
            mark = _mark(key.start_mark)
            if key.tag != "tag:yaml.org,2002:str":
                raise DocumentError(f"a field's name must be text, not {_shown(key)}", mark, path)
            name = key.value
            if name in fields:
                first = self._marks[(*path, name)].line
                raise DocumentError(f"stands twice, first in line {first}", mark, (*path, name))
            self._marks[(*path, name)] = mark
            fields[name] = self._value(value, (*path, name))
        return fields

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            raise DocumentError(
                f"{str(node.value)[:40]!r} is not readable: {error}", _mark(node.start_mark), path
            ) from None


def _shown(node: yaml.Node) -> str:
    return f"{node.value} (quote it)" if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
