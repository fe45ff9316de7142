"""The interface of a codec engine: decodes batches of streams, each at its own position, to PCM."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.runtime.requests.engine import Engine


class CaptureCost(Struct, frozen=True):
    """What capturing a shape cost."""

    seconds: float
    bytes: int
    """Device memory that calls of this shape use. All shapes share the memory of the largest."""


class Prefill(Struct, frozen=True):
    """Rebuilds the state of a stream that was taken over or continues a reference, without decoding all its frames."""

    context_frames: int
    """Of the frames before the first audio, the last ones must be decoded: this many."""
    launch: Callable[[str, Sequence[bytes]], Any]
    """Like `CodecEngine.launch`, for the next frames of a request, of which there is no audio."""
    save: Callable[[str], Any]
    """Returns a copy of a request's state."""
    restore: Callable[[str, Any], None]
    """Replaces a request's state by a saved one."""


class CodecEngine(Engine, Protocol):
    """Holds the decoder state of all resident streams and runs decoder calls. A shape is (rows, frames)."""

    overhead_frames: int
    """The fixed cost of a call, in frames of compute: one with fewer waits for others to join it while another runs.
    0: streams with different numbers of frames never share a call."""

    codebook_size: int
    """Codes are below this."""

    @property
    def prefill(self) -> Prefill | None:
        """How to rebuild a stream's state; None if all of its frames must be decoded."""

    @property
    def capture_costs(self) -> Mapping[CapturePair, CaptureCost]:
        """Costs of all shapes captured so far; empty if captures are free."""

    @property
    def captured(self) -> Collection[CapturePair]:
        """The captured shapes, to which calls may be padded."""

    def capture(self, shape: CapturePair) -> None:
        """Captures a shape. Must not be called while a call is in flight.

        Raises `torch.OutOfMemoryError`, without any effect, if the device lacks memory.
        """

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Frees captured shapes; ignores unknown ones. Must not be called while a call is in flight."""

    def open(self, request_id: str) -> None:
        """Allocates a fresh state for a request, replacing any previous one."""

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Any:
        """Starts decoding the next frames of each request, padded to `shape`; returns the call's handle.

        codes: for each request, between one frame and the shape's number of frames.
        """

    def read(self, call: Any) -> Sequence[bytes]:
        """Waits for a call and returns each request's 16-bit PCM, in the order of `ids`."""


def split_frames(codes: bytes, codebook_size: int) -> list[bytes]:
    """Splits codes, [frames, 16] int16 little-endian. Raises ValueError for a partial frame or an invalid code."""
    size = 2 * FAMILY.code_groups
    if not codes or len(codes) % size:
        raise ValueError(f"{len(codes)} bytes are not whole frames of {size}")
    # Interpreted as unsigned, a negative code is a large one: one comparison covers both bounds.
    if np.frombuffer(codes, "<u2").max() >= codebook_size:
        values = np.frombuffer(codes, "<i2")
        invalid = values[(values < 0) | (values >= codebook_size)][0]
        raise ValueError(f"code {invalid} is not within 0 to {codebook_size - 1}")
    return [codes[start : start + size] for start in range(0, len(codes), size)]
