"""Validates TTSPipeline resources and reports all problems with position, field and accepted values."""

import difflib
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from syrinx_operator.resource.checks.documents import MAX_BYTES, Document, DocumentError, Path, Position, read_documents
from syrinx_operator.resource.checks.local_rules import ignored_locally, local_violations
from syrinx_operator.resource.checks.rules import cluster_violations, violations
from syrinx_operator.resource.fields.pods import fields_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import API_VERSION, KIND, TTSPipeline

_Part = TypeVar("_Part", bound=Struct | None)
SERVER_METADATA = (
    *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName"),
    *("generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
)
"""Fields of `metadata` that the API server sets. They are ignored."""

Finding = tuple[Path, str]
"""A field and a message about it."""


class Problem(Struct, frozen=True):
    """A problem in a file."""

    file: str
    position: Position
    path: Path
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.position.line}:{self.position.column}"
        return f"{where}: {field_name(self.path)}: {self.message}" if self.path else f"{where}: {self.message}"


class CheckResult(Struct):
    """The valid pipelines of a file, and its problems."""

    pipelines: list[TTSPipeline] = []
    problems: list[Problem] = []
    ignored: list[Problem] = []
    """Ignored fields that the API server sets."""
    on_kubernetes: list[Problem] = []
    """Problems on Kubernetes only."""
    with_up: list[Problem] = []
    """Problems with `syrinx up` only."""


class InvalidPipeline(Exception):
    """A file does not contain a valid pipeline. The message has one line per problem."""


def field_name(path: Path) -> str:
    """Returns a path as text, for example `spec.codec.capturePairs[2].rows`."""
    text = ""
    for part in path:
        shown = part if isinstance(part, int) or (part.isprintable() and part.strip()) else repr(part)
        if isinstance(part, int) or (text and "." in part):
            text += f"[{shown}]"
        else:
            text += f".{shown}" if text else f"{shown}"
    return text


def check(
    file: str,
    data: bytes,
    complete: Callable[[Any], Any] = lambda value: value,
    inputs: Callable[[TTSPipeline], Iterable[Finding]] = lambda pipeline: (),
) -> CheckResult:
    """Validates every TTSPipeline of a file and ignores other kinds. `file` is its name in messages.

    `complete` sets fields that a resource, as plain data that may be invalid, leaves out. `inputs` yields the problems
    of the files on this machine that a pipeline names.
    """
    result, count = CheckResult(), 0
    try:
        for document in read_documents(data):
            if _is_of_another_kind(document.value):
                note = (("kind",), f"on Kubernetes: {document.value['kind']}; not checked")
                result.on_kubernetes += _in_order(file, document, [note])
                continue
            count += 1
            value, ignored = _without_server_fields(document.value)
            value = complete(value)
            found = list(problems_of(value))
            result.problems += _in_order(file, document, found)
            if found:
                continue
            pipeline = msgspec.convert(value, TTSPipeline)
            if pipeline.name in (other.name for other in result.pipelines):
                message = f"{pipeline.name!r} is also the name of an earlier pipeline in this file"
                result.problems += _in_order(file, document, [(("metadata", "name"), message)])
            result.pipelines.append(pipeline)
            result.ignored += _in_order(file, document, [(path, "set by the API server; ignored") for path in ignored])
            found = [(path, f"on Kubernetes: {message}") for path, message in cluster_violations(pipeline)]
            result.on_kubernetes += _in_order(file, document, found)
            found = [*(local_violations(resolve(pipeline)) or inputs(pipeline))]
            if any(ignored_locally(pipeline.spec)):  # It is for Kubernetes, where its files are, too.
                found = [(path, f"with `syrinx up`: {message}") for path, message in found]
                result.with_up += _in_order(file, document, found)
            else:
                result.problems += _in_order(file, document, found)
    except DocumentError as error:
        result.problems.append(Problem(file, error.position, error.path, str(error)))
    if not count and not result.problems:
        result.problems.append(Problem(file, Position(1, 1), (), f"contains no resource; expected a {KIND}"))
    return result


def _in_order(file: str, document: Document, found: list[Finding]) -> list[Problem]:
    located = [Problem(file, document.position(path), path, message) for path, message in found]
    return sorted(located, key=lambda problem: (problem.position.line, problem.position.column))


def _is_of_another_kind(value: Any) -> bool:
    """Returns whether a document is another resource, such as an autoscaler."""
    if not isinstance(value, dict):
        return False
    version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or not kind.isprintable():
        return False
    return kind != KIND and version.partition("/")[0] != API_VERSION.partition("/")[0]


def _without_server_fields(value: Any) -> tuple[Any, list[Path]]:
    """Returns the resource without the fields that the API server sets, and the paths of these."""
    if not isinstance(value, dict):
        return value, []
    rest = {name: each for name, each in value.items() if name != "status"}
    unused: list[Path] = [("status",)] if "status" in value else []
    if isinstance(value.get("metadata"), dict):
        rest["metadata"] = {name: each for name, each in value["metadata"].items() if name not in SERVER_METADATA}
        unused += [("metadata", name) for name in value["metadata"] if name in SERVER_METADATA]
    return rest, unused


def load_one(
    file: str,
    data: bytes,
    notify: Callable[[str], None] | None = None,
    complete: Callable[[Any], Any] = lambda value: value,
    inputs: Callable[[TTSPipeline], Iterable[Finding]] = lambda pipeline: (),
) -> TTSPipeline:
    """Returns the only pipeline of a file, to run it here. Calls `notify` with a line about ignored fields.

    The others: as in `check`.

    Raises `InvalidPipeline` for problems, or if the file has several pipelines.
    """
    checked = check(file, data, complete, inputs)
    if problems := checked.problems + checked.with_up:
        raise InvalidPipeline("\n".join(map(str, problems)))
    if len(checked.pipelines) > 1:
        names = ", ".join(pipeline.name for pipeline in checked.pipelines)
        raise InvalidPipeline(f"{file}: contains {len(checked.pipelines)} pipelines ({names}); expected one")
    if checked.ignored and notify is not None:
        notify(f"set by the API server and ignored: {', '.join(field_name(each.path) for each in checked.ignored)}")
    return checked.pipelines[0]


def absolute(file: str, pipeline: TTSPipeline) -> TTSPipeline:
    """Returns a pipeline of a file (`-`: standard input) with absolute paths, which are relative to the file."""
    directory = FilePath.cwd() if file == "-" else FilePath(file).resolve().parent
    return with_paths(pipeline, lambda path: str(directory / FilePath(path).expanduser()))


def with_paths(pipeline: TTSPipeline, change: Callable[[str], str]) -> TTSPipeline:
    """Returns the resource with another path of each file and directory of the machine of `syrinx up`."""

    def changed(part: _Part, *names: str) -> _Part:
        paths = {name: change(path) for name in names if (path := getattr(part, name, None)) is not None}
        return part if part is None else msgspec.structs.replace(part, **paths)

    spec, gateway = pipeline.spec, pipeline.spec.gateway
    keys, tls = changed(gateway.api_keys, "file"), changed(gateway.tls, "certificate_file", "key_file")
    gateway = msgspec.structs.replace(gateway, api_keys=keys, tls=tls)
    model, voices = changed(spec.model, "path"), tuple(changed(voice, "file") for voice in spec.voices)
    spec = msgspec.structs.replace(spec, model=model, voices=voices, gateway=gateway)
    return msgspec.structs.replace(pipeline, spec=spec)


def read_file(file: str) -> bytes:
    """Returns the bytes of a file, or of standard input for `-`. Raises `InvalidPipeline`."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidPipeline(f"{file}: {error.strerror}") from None


def problems_of(value: Any) -> Iterator[Finding]:
    """Yields the problems of single fields. If there are none, yields the violated rules between fields."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind is not None and kind != KIND:
        yield ("kind",), f"{_shown(kind)} is not accepted; expected {KIND}"
        return
    found = list(field_problems(value))
    yield from found
    if not found:
        yield from violations(msgspec.convert(value, TTSPipeline))


def field_problems(value: Any, annotation: Any = TTSPipeline, path: Path = (), about: str = "") -> Iterator[Finding]:
    """Yields the problems of single fields of a resource, or of a part of it; also unknown fields.

    `about` describes the field that the value is a part of.
    """
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    bare = typing.get_args(annotation)[0] if is_annotated else annotation
    described = (each.description for each in typing.get_args(annotation)[1:] if isinstance(each, msgspec.Meta))
    about = next(filter(None, described), about) if is_annotated else about
    origin, parts = typing.get_origin(bare), typing.get_args(bare)
    if types.NoneType in parts and value is not None:
        yield from field_problems(value, parts[0], path, about)
    elif isinstance(bare, type) and issubclass(bare, Struct):
        yield from _struct_problems(value, bare, path)
    elif origin is tuple and isinstance(value, list):
        found = [
            problem
            for index, each in enumerate(value)
            for problem in field_problems(each, parts[0], (*path, index), about)
        ]
        yield from found or _value_problems(value, annotation, path, about)
    elif origin is dict and isinstance(value, dict):
        found = [
            ((*path, key), message.replace("is not accepted", "is not accepted as a name", 1))
            for key in value
            for _, message in _value_problems(key, parts[0], path)
        ]
        found += [
            problem for key, each in value.items() for problem in field_problems(each, parts[1], (*path, key), about)
        ]
        yield from found or _value_problems(value, annotation, path, about)
    else:
        yield from _value_problems(value, annotation, path, about)


def _struct_problems(value: Any, struct: type[Struct], path: Path) -> Iterator[Finding]:
    fields = {field.encode_name: field for field in fields_of(struct)}
    if not isinstance(value, dict):
        yield path, f"{_shown(value)} is not accepted; expected the fields {_field_names(struct)}"
        return
    for name in (name for name in value if name not in fields):
        near = difflib.get_close_matches(name, fields, n=1)
        folded = [field for field in fields if field.lower() == name.lower().replace("_", "").replace("-", "")]
        guess = next(iter(folded or near), None)
        hint = f"did you mean {guess}?" if guess else f"accepted here: {_field_names(struct)}"
        yield (*path, name), f"unknown field; {hint}"
    for name, field in fields.items():
        if name in value:
            yield from field_problems(value[name], field.type, (*path, name))
        elif field.required:
            yield (*path, name), f"missing; expected {_describe(inspect.type_info(field.type))}"


def _value_problems(value: Any, annotation: Any, path: Path, about: str = "") -> Iterator[Finding]:
    if isinstance(value, str) and not value.isprintable() and not _may_have_lines(value, annotation):
        yield path, f"{_shown(value)} is not accepted: it contains a control character or a line break"
        return
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        yield path, f"{_shown(value)} is not accepted; expected {_describe(inspect.type_info(annotation), about)}"


def _may_have_lines(text: str, annotation: Any) -> bool:
    """Returns whether a text may contain line breaks, such as the value of an annotation. It must be valid Unicode."""
    kind = inspect.type_info(annotation)
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    is_free = isinstance(kind, inspect.AnyType) or (isinstance(kind, inspect.StrType) and kind.pattern is None)
    return is_free and text.encode(errors="ignore").decode() == text


def _shown(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _describe(kind: inspect.Type, description: str = "") -> str:
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _describe(inner, (extra or {}).get("description", description))
        case inspect.IntType(ge=minimum, le=maximum):
            return f"an integer from {minimum}" + (f" to {maximum}" if maximum is not None else "")
        case inspect.FloatType(gt=None, ge=minimum, le=maximum):
            return f"a number from {minimum} to {maximum}"
        case inspect.FloatType(gt=minimum, le=maximum):
            return f"a number above {minimum:g}, at most {maximum}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(max_length=length, pattern=pattern):
            limit = f" of up to {length} characters" if length else ""
            return f"text{limit}" + (f" ({description})" if pattern and description else "")
        case inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case inspect.UnionType(types=types_):
            return " or ".join(
                _describe(each, description) for each in types_ if not isinstance(each, inspect.NoneType)
            )
        case inspect.VarTupleType(item_type=item):
            return f"a list of {_count(kind)}, each {_describe(item)}"
        case inspect.DictType():
            return f"a mapping of {_count(kind)}"
        case inspect.StructType(cls=struct):
            return f"the fields {_field_names(struct)}"
    raise TypeError(f"not a type of the resource: {kind}")


def _count(kind: inspect.VarTupleType | inspect.DictType) -> str:
    return f"{kind.min_length or 0} to {kind.max_length} items" if kind.max_length else "items by name"


def _field_names(struct: type[Struct]) -> str:
    lineage = [each for each in struct.__mro__ if issubclass(each, Struct)]
    names = [
        field
        for each, base in itertools.pairwise(lineage)
        for field in each.__struct_fields__
        if field not in base.__struct_fields__
    ]
    encoded = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    return ", ".join(encoded[name] for name in names)
