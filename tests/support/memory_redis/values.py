"""Values of replies and arguments: errors, status replies, stream IDs; and the RESP2 encoding of replies."""

from typing import Any

EntryId = tuple[int, int]
MAX_ID: EntryId = (2**64 - 1, 2**64 - 1)


class ErrorReply(Exception):
    """An error reply; its text starts with the error's code."""


class Status(bytes):
    """A status reply, such as OK."""


class Encoded(bytes):
    """A whole reply, encoded already."""


OK = Status(b"OK")


class NullArray:
    """The reply of a blocking read that timed out."""


NULL_ARRAY = NullArray()


def entry_id(argument: bytes, sequence: int = 0) -> EntryId:
    """Parses a stream ID; `sequence` completes one that has none."""
    ms, dash, number = argument.partition(b"-")
    return int(ms), int(number) if dash else sequence


def id_bytes(value: EntryId) -> bytes:
    """Formats a stream ID."""
    return b"%d-%d" % value


def range_bound(argument: bytes, start: bool) -> EntryId:
    """Parses an inclusive bound of a range: `-`, `+`, an ID or, exclusive, `(ID`."""
    if argument == b"-":
        return 0, 0
    if argument == b"+":
        return MAX_ID
    default = 0 if start else MAX_ID[1]
    if not argument.startswith(b"("):
        return entry_id(argument, default)
    ms, sequence = entry_id(argument[1:], default)
    return (ms, sequence + 1) if start else (ms, sequence - 1) if sequence else (ms - 1, MAX_ID[1])


def encode(reply: Any) -> bytes:
    """Encodes a reply as RESP2."""
    if type(reply) is Encoded:
        return reply
    parts: list[bytes] = []
    _encode(reply, parts)
    return b"".join(parts)


def _encode(reply: Any, parts: list[bytes]) -> None:
    if type(reply) is bytes:
        parts += (b"$%d\r\n" % len(reply), reply, b"\r\n")
    elif type(reply) is int:
        parts.append(b":%d\r\n" % reply)
    elif reply is None:
        parts.append(b"$-1\r\n")
    elif isinstance(reply, list | tuple):
        parts.append(b"*%d\r\n" % len(reply))
        for item in reply:
            _encode(item, parts)
    elif isinstance(reply, Status):
        parts += (b"+", reply, b"\r\n")
    elif isinstance(reply, ErrorReply):
        parts += (b"-", str(reply).encode(), b"\r\n")
    elif reply is NULL_ARRAY:
        parts.append(b"*-1\r\n")
    else:
        raise TypeError(f"no reply: {reply!r}")
