"""Reads JSON objects from bodies, which may hold large reference audio, and what shells, editors and scripts leave."""

import contextlib
import json
import mmap
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw

from syrinx_stages.gateway.errors import bad_request, too_large

RawBody = bytes | bytearray | mmap.mmap
Sent = dict[str, Raw]
"""The fields of a JSON object, not decoded."""

MAX_BODY = 2**20
"""Bytes of a body without its reference audio: its texts, even if each character is escaped."""
MAX_COMMAS = 2**17
"""In a body: more than the longest text and a speaker embedding have. Parsing more values would hold the event loop."""
_REFERENCE = re.compile(rb'"(?:ref_audio|audio_path|audio|data)"[ \t\r\n]*:[ \t\r\n]*"')
"""Reference audio: `ref_audio`, and the names that it has in `references`."""
_PIECE = 2**20
"""Bytes of a large value that are processed at once: a call of C code holds the event loop from any thread."""
_MAX_ESCAPE = len(r"\u002b")
_MAX_REPAIRED_COMMAS = 2**14
"""In a body that is not strict JSON: as many as the longest speaker embedding has."""
MISSING = re.compile(r"^Object missing required field `(.*)`$")
"""An error of msgspec."""
_WRONG_TYPE = re.compile(r"^Expected `(\w+)(?: \| null)?`, got `(\w+)`$")
"""Another one."""
_TYPES = {
    "object": "an object",
    "array": "a list",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""Its types, in words."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character outside of Unicode's first plane."""
_Kind = TypeVar("_Kind")


@contextlib.contextmanager
def decoding(what: str = "body") -> Iterator[None]:
    """Raises `ApiError` 400 for a body, or `what` it is, that is no JSON object in UTF-8."""
    try:
        yield
    except msgspec.ValidationError as error:
        problem, _, location = str(error).partition(" - at `$")
        if missing := MISSING.match(problem):
            raise bad_request(missing[1], "is required", "missing_field") from None
        if not location:
            raise bad_request(None, f"the {what} is not a JSON object: {problem[0].lower()}{problem[1:]}") from None
        raise bad_request(location.strip(".`"), _in_words(problem)) from None
    except RecursionError:
        raise bad_request(None, f"the {what} is nested too deeply", "invalid_json") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_request(None, f"the {what} is not JSON in UTF-8: {error}", "invalid_json") from None


def _in_words(problem: str) -> str:
    """Returns what msgspec says of a value, for people: of a wrong type what it is, and what to send."""
    if (found := _WRONG_TYPE.match(problem)) is None:
        return problem[0].lower() + problem[1:]
    wanted, sent = (_TYPES.get(each, each) for each in found.groups())
    return f"is {sent}; send {wanted}"


def decode(body: RawBody, kind: type[_Kind], what: str = "body") -> _Kind:
    """Decodes JSON. Raises `ApiError` 400, which says `what` the JSON is."""
    if not len(body):
        raise bad_request(None, f"the {what} is empty; send a JSON object", "invalid_json")
    with decoding(what):
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if (repaired := _repaired(bytes(body))) is None:
                raise
        return msgspec.json.decode(repaired, type=kind)


def _repaired(body: bytes) -> bytes | None:
    """Returns strict JSON for JSON with a byte-order mark or, in strings, raw control characters or lone surrogates.

    Shells and editors leave the former, and JavaScript that cuts a text in an emoji the latter, which become U+FFFD.
    None for anything else, and for many values: this parser is slow.
    """
    if body.count(b",") > _MAX_REPAIRED_COMMAS:
        return None

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        # Numbers beyond a float's range are infinite here, and have no form in JSON.
        strict = json.dumps(json.loads(body, strict=False, parse_constant=refuse), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", strict).encode()


def check_commas(count: int, what: str) -> None:
    """Raises `ApiError` 413 for JSON with more than `MAX_COMMAS`, which takes too long to parse."""
    if count > MAX_COMMAS:
        raise too_large(None, f"the {what} has more than {MAX_COMMAS:,} values or commas")


def take_out_references(body: RawBody) -> tuple[RawBody, dict[str, str]]:
    """Returns the JSON with placeholders for the references in a body above `MAX_BODY`, and these references.

    Decoding all at once would take too long. Raises `ApiError` 413 if the rest is larger than `MAX_BODY`.
    """
    rest, references, position = bytearray(), dict[str, str](), 0
    while (left := len(body) - position) > (room := MAX_BODY - len(rest)):
        found = _REFERENCE.search(body, position, position + room)
        end = body.find(b'"', found.end()) if found else -1
        if found is None or end < 0:
            raise too_large(None, f"the body without ref_audio is larger than {MAX_BODY // 2**20} MB")
        # A control character, so that nothing else than a reference can be one.
        references[f"\0{len(references)}"] = _string(body, found.end(), end)
        rest += body[position : found.end()] + f"\\u0000{len(references) - 1}".encode()
        position = end
    return (rest + body[position:], references) if left < len(body) else (body, references)


def _string(body: RawBody, start: int, end: int) -> str:
    """Returns a JSON string. Raises `ApiError` 400 if it is none."""
    pieces = []
    while start < end:
        stop = min(start + _PIECE, end)
        if stop < end and (escape := body.rfind(b"\\", stop - _MAX_ESCAPE, stop)) > start:
            stop = escape
        # Line breaks that are no escapes have no meaning in base64.
        piece = body[start:stop].translate(None, b"\t\r\n").decode("utf-8", "replace")
        with decoding():
            pieces.append(msgspec.json.decode(f'"{piece}"', type=str))
        start = stop
    return "".join(pieces)


def put_back(fields: Any, references: dict[str, str]) -> Any:
    """Returns the fields with the reference that was taken out of their body, if it was."""
    if fields.ref_audio not in references:
        return fields
    return msgspec.structs.replace(fields, ref_audio=references[fields.ref_audio])
