"""Redis keys and stream IDs.

All keys of one shard share the hash tag `{pipeline:generation:shard}`, so multi-key commands stay in one Redis
Cluster slot, and talkers of one model generation never feed codecs of another.
"""

from __future__ import annotations

import re
import zlib
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


class Group(StrEnum):
    """The consumer groups on the request stream: each claims every request once."""

    TALKERS = "talkers"
    CODECS = "codecs"


class StreamKind(StrEnum):
    """The streams every request has."""

    CODES = "codes"
    """Talker to codec."""
    AUDIO = "audio"
    """Codec to gateway."""
    PLAYBACK = "played"
    """Gateway to talker: how far the client has been served."""


class Position(NamedTuple):
    """An entry's stream ID: frames so far, and an order among entries at the same frame.

    Redis refuses an ID that is not greater than the last, so a duplicate or a reordered frame cannot be written.
    """

    frames: int
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.frames}-{self.sequence}"

    @classmethod
    def parse(cls, text: str | bytes) -> Position:
        """Reads `frames-sequence`."""
        frames, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(frames), int(sequence or 0))


STREAM_START = Position(0, 0)
"""Before every entry."""
STREAM_CREATED = Position(0, 1)
"""The entry that creates a stream."""
REFERENCE_POSITION = Position(0, 2)
"""Reference codes come before the first frame."""
END_SEQUENCE = 9
"""The sequence of a stream's last entry: after everything else at its frame."""


class Keys(Struct, frozen=True, dict=True):
    """The keys of one shard of one generation of a pipeline."""

    pipeline: str
    generation: str
    shard: int = 0

    def __post_init__(self) -> None:
        for field in ("pipeline", "generation"):
            if not _NAME.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} {getattr(self, field)!r}: letters, digits, '.', '_' and '-' only, up to 128")

    @cached_property
    def prefix(self) -> str:
        """The hash tag all keys start with."""
        return f"{{{self.pipeline}:{self.generation}:{self.shard}}}"

    @property
    def requests(self) -> str:
        """The stream of requests, read by both groups."""
        return f"{self.prefix}:requests"

    def change_feed(self, kind: StreamKind) -> str:
        """The stream of what is written to all request streams of a kind."""
        return f"{self.prefix}:{kind}"

    @property
    def control(self) -> str:
        """The stream of cancelled request ids."""
        return f"{self.prefix}:control"

    def stream(self, request_id: str, kind: StreamKind) -> str:
        """A request's own stream."""
        return f"{self.prefix}:{request_id}:{kind}"

    def reference(self, request_id: str) -> str:
        """A request's reference audio (a plain string value)."""
        return f"{self.prefix}:{request_id}:reference"


def shard_of(request_id: str, shards: int) -> int:
    """The shard a request lives in: it follows from its id alone."""
    return zlib.crc32(request_id.encode()) % shards
