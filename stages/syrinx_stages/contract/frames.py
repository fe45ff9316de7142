"""Frames of codes with what their sampling says about the course of a request. Imports no torch."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

IMPLAUSIBLE_NATS = 4.0
"""A code is implausible if its surprise exceeds its expectation, the entropy, by this much."""
checksum = zlib.crc32
"""Returns the checksum of frames after those with the checksum that is the second argument; 0 without any.

It says which frames a stream consists of: an owner that generates frames again, on a GPU, may sample other ones."""
# `kernels.sampling.encode_mark` computes the same.
_HAZARD_STEPS, _ENTROPY_STEPS = 8, 16
_IMPLAUSIBLE, _ENTROPY = 1 << 7, 1 << 8


class Mark(Struct, frozen=True):
    """What the sampling of a frame's code 0 says. Both numbers are rounded down."""

    end_hazard: float
    """-log(1 - p) of the probability p with which the request would have ended instead, in eighths up to 15.875."""
    is_implausible: bool
    """The code is one that the model would practically not sample."""
    entropy: float
    """How uncertain the model was, in sixteenths of a nat up to 15.9375."""


class MarkedFrame(bytes):
    """A frame ([16] int16, little-endian) with its mark in two bytes, as `encode_mark` returns it."""

    mark: int

    def __new__(cls, codes: bytes, mark: int) -> "MarkedFrame":
        """Adds a mark to a frame."""
        frame = bytes.__new__(cls, codes)
        frame.mark = mark
        return frame


def encode_mark(end_hazard: float, is_implausible: bool, entropy: float) -> int:
    """Returns a mark as a number below 2^16. Its parts are those of `Mark`."""
    return int(encode_marks(np.float64(end_hazard), np.bool_(is_implausible), np.float64(entropy)))


def encode_marks(end_hazard: Any, is_implausible: Any, entropy: Any) -> NDArray[np.int64]:
    """Returns marks as `encode_mark`, of arrays of the parts. NaN is 0."""
    hazard = np.fmin(np.fmax(end_hazard * _HAZARD_STEPS, 0), _IMPLAUSIBLE - 1).astype(np.int64)
    uncertain = np.fmin(np.fmax(entropy * _ENTROPY_STEPS, 0), 255).astype(np.int64)
    marks: NDArray[np.int64] = hazard + _IMPLAUSIBLE * is_implausible + _ENTROPY * uncertain
    return marks


def decode_mark(mark: int) -> Mark:
    """Returns the parts of a mark."""
    return Mark((mark % _IMPLAUSIBLE) / _HAZARD_STEPS, bool(mark & _IMPLAUSIBLE), (mark // _ENTROPY) / _ENTROPY_STEPS)


def marks_of(frames: Sequence[bytes]) -> bytes:
    """Returns the marks of frames ([frames] uint16, little-endian); empty unless all are marked."""
    marks = [frame.mark for frame in frames if isinstance(frame, MarkedFrame)]
    return struct.pack(f"<{len(marks)}H", *marks) if len(marks) == len(frames) else b""


def pack_checksums(checksums: Sequence[int]) -> bytes:
    """Returns checksums as `[frames + 1] uint32`, little-endian: before the first frame, and up to each one."""
    return struct.pack(f"<{len(checksums)}I", *checksums)


def unpack_checksums(packed: bytes) -> Sequence[int]:
    """Returns what was given to `pack_checksums`."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def split_frames(codes: bytes, marks: bytes, size: int) -> list[bytes]:
    """Returns the frames of `size` bytes in `codes`, with the marks that `marks_of` returned for them."""
    frames = [codes[start : start + size] for start in range(0, len(codes), size)]
    if not marks:
        return frames
    return [MarkedFrame(*each) for each in zip(frames, np.frombuffer(marks, "<u2").tolist(), strict=True)]
