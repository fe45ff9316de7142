"""Redis key names and stream positions.

All keys of a cell share a hash tag: multi-key commands stay in one Redis Cluster slot, and stages of different model
generations never share a key, except those of the kept voices, which all generations of a pipeline use.
"""

from __future__ import annotations

import binascii
import itertools
import re
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from .stages import Stage

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_ORDINAL = re.compile(r"[0-9]+$")
SLOTS = 16_384
"""Hash slots of a Redis Cluster, which its primaries share in ranges."""
MAX_CELLS = 64


class StreamKind(StrEnum):
    """The streams of a request."""

    CODES = "codes"
    """Talker to codec."""
    AUDIO = "audio"
    """Codec to gateway."""
    PLAYBACK = "played"
    """Gateway to talker: the number of frames delivered to the client."""
    TEXT = "text"
    """Gateway to talker: text that arrives while it is spoken. Positions count characters instead of frames. It exists
    only for requests with `streams_text`."""


class Position(NamedTuple):
    """The ID of a stream entry: the number of frames so far, and a sequence number among entries at the same frame.

    Redis refuses an ID that is not greater than the last one, so duplicate or reordered frames cannot be written.
    """

    frames: int
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.frames}-{self.sequence}"

    @classmethod
    def parse(cls, text: str | bytes) -> Position:
        """Parses a Redis stream ID, `frames-sequence`."""
        frames, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(frames), int(sequence or 0))


STREAM_START = Position(0, 0)
"""Before every entry."""
STREAM_CREATED = Position(0, 1)
"""The entry that creates a stream."""
REFERENCE_POSITION = Position(0, 2)
"""The reference codes, before the first frame."""
END_SEQUENCE = 9
"""Sequence number of a stream's last entry, after all others at its frame."""


def hash_slot(tag: str) -> int:
    """Returns the slot of a Redis Cluster in which keys with this hash tag lie."""
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def cell_of(replica: str, cells: int) -> int:
    """Returns the cell of a talker or codec: the number at the end of its name, modulo the number of cells.

    Raises ValueError if there are several cells and the name does not end with a number.
    """
    if cells == 1:
        return 0
    if (ordinal := _ORDINAL.search(replica)) is None:
        raise ValueError(f"{replica!r} must end with a number, from which its cell of {cells} follows")
    return int(ordinal.group()) % cells


class Keys(Struct, frozen=True, dict=True):
    """The keys of one cell of one model generation. Raises ValueError for a name that is not valid in a key."""

    pipeline: str
    generation: str
    cell: int = 0
    cells: int = 1
    namespace: str = ""
    """Of the pipeline, if pipelines of several namespaces may share a Redis."""

    def __post_init__(self) -> None:
        if not 0 <= self.cell < self.cells:
            raise ValueError(f"cell {self.cell}: there are {self.cells}")
        for field in ("pipeline", "generation", *(("namespace",) if self.namespace else ())):
            if not _NAME.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} {getattr(self, field)!r}: letters, digits, '.', '_' and '-' only, up to 128")

    @cached_property
    def prefix(self) -> str:
        """The hash tag that starts every key.

        Those of several cells have a salt, by which their slots lie in equal parts of all slots: the primaries of a
        Redis Cluster then serve equal numbers of cells.
        """
        if self.cells == 1:
            return f"{{{self.pipeline}:{self.generation}:0}}"
        own = f"{self.pipeline}:{self.generation}:{self.cell}/{self.cells}"
        tags = (f"{own}:{salt}" for salt in itertools.count())
        return f"{{{next(tag for tag in tags if hash_slot(tag) * self.cells // SLOTS == self.cell)}}}"

    @property
    def requests(self) -> str:
        """The stream of requests, read by both groups."""
        return f"{self.prefix}:requests"

    @property
    def waiting(self) -> str:
        """The requests that no talker has claimed (a sorted set): an index of `requests`, see `lua/waiting.lua`."""
        return f"{self.prefix}:waiting"

    def leases(self, group: Stage) -> str:
        """When each consumer of a group has last renewed its lease (a sorted set)."""
        return f"{self.prefix}:leases-{group}"

    @property
    def writers(self) -> str:
        """The last batch of each process that writes output (a hash): see `connector.redis.writer`."""
        return f"{self.prefix}:writers"

    def inbox(self, reader: str) -> str:
        """The stream to which writers add what they write to the request streams that a reader reads."""
        return f"{self.prefix}:inbox:{reader}"

    @property
    def control(self) -> str:
        """The stream of cancelled request IDs."""
        return f"{self.prefix}:control"

    @property
    def capacity(self) -> str:
        """The capacity reports of the replicas (a hash)."""
        return f"{self.prefix}:capacity"

    def stream(self, request_id: str, kind: StreamKind) -> str:
        """One stream of a request."""
        return f"{self.prefix}:{request_id}:{kind}"

    def owners(self, request_id: str) -> str:
        """The owner epochs and the readers of a request (a hash): see `connector.base.Fence`."""
        return f"{self.prefix}:{request_id}:owners"

    def reference(self, request_id: str) -> str:
        """The reference audio or the prepared voice of a request (a string value)."""
        return f"{self.prefix}:{request_id}:reference"

    @cached_property
    def _voices(self) -> str:
        return f"{{{self.pipeline}:voices:{self.namespace}}}"

    @property
    def voices(self) -> str:
        """The kept voices by their ids (a hash of encoded records)."""
        return f"{self._voices}:records"

    @property
    def voice_names(self) -> str:
        """The ids of the kept voices by `<owner>/<name in lower case>` (a hash)."""
        return f"{self._voices}:names"

    @property
    def voice_sizes(self) -> str:
        """The bytes that each kept voice takes, by its id (a hash)."""
        return f"{self._voices}:sizes"

    def voice_owner(self, owner: str) -> str:
        """The ids of the voices of an owner (a set)."""
        return f"{self._voices}:owner:{owner}"

    def voice_source(self, voice_id: str) -> str:
        """What a kept voice was made from (a string value)."""
        return f"{self._voices}:{voice_id}:source"

    def prepared_voice(self, voice_id: str) -> str:
        """A kept voice as the talkers of this generation need it (a string value)."""
        return f"{self._voices}:{voice_id}:prepared:{self.generation}"
