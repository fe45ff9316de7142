"""The contract of a codec engine: PCM for batches of streams of any age."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct

from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.runtime.engine import Engine

CODE_BYTES = 2

Call = TypeVar("Call")
"""What an engine keeps of a launched call."""


class Cost(Struct, frozen=True):
    """What it took to capture a shape."""

    seconds: float
    bytes: int
    """That calls of this shape work in. All shapes share the largest's."""


class CodecEngine(Engine, Protocol[Call]):
    """Decoder state of all resident streams, and the calls that advance it."""

    overhead_frames: int
    """Frames that take as long to compute as a call takes beside its frames: so many may be computed for nothing to
    save a call. 0: streams with different numbers of frames never share one."""

    @property
    def costs(self) -> Mapping[CapturePair, Cost]:
        """Of every shape that was captured so far; of none where that costs, and gains, nothing."""

    @property
    def captured(self) -> Collection[CapturePair]:
        """The shapes kept ready: a call may be padded to one of these."""

    def capture(self, shape: CapturePair) -> None:
        """Makes a shape (rows, frames) ready; not while a call is unread.

        Raises `torch.OutOfMemoryError` if there is no memory for it; nothing has changed then.
        """

    def forget_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Frees what is kept for shapes; unknown ones are fine. Not while a call is unread."""

    def split(self, codes: bytes) -> list[bytes]:
        """Cuts an entry into frames; on any thread.

        Raises ValueError for a torn frame or a code the codebooks do not have.
        """

    def open(self, request_id: str) -> None:
        """Gives a request a fresh state; one it had before is thrown away."""

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Call:
        """Begins to decode the next frames of each request, padded to `shape` (rows, frames).

        codes: each request's frames, at least one and at most the shape's; none has to have as many as another.
        """

    def read(self, call: Call) -> Sequence[bytes]:
        """Waits for a call. 16-bit PCM of each request's frames, in the order of `ids`."""


def split_frames(codes: bytes, groups: int, codebook_size: int) -> list[bytes]:
    """Cuts frames of `groups` codes (int16 little-endian) apart.

    Raises ValueError for a torn frame or a code that is not within 0 to codebook_size - 1.
    """
    size = groups * CODE_BYTES
    if not codes or len(codes) % size:
        raise ValueError(f"{len(codes)} bytes are not whole frames of {size}")
    # Read as unsigned, a negative code is a large one.
    if np.frombuffer(codes, "<u2").max() >= codebook_size:
        values = np.frombuffer(codes, "<i2")
        worst = values[(values < 0) | (values >= codebook_size)][0]
        raise ValueError(f"code {worst} is not within 0 to {codebook_size - 1}")
    return [codes[at : at + size] for at in range(0, len(codes), size)]
