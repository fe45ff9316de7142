"""Frames of codes and their checksums."""

import struct
import zlib
from collections.abc import Sequence

checksum = zlib.crc32
"""Returns the checksum of frames after those with the checksum that is the second argument; 0 without any.

It says which frames a stream consists of: an owner that generates frames again, on a GPU, may sample other ones."""


def pack_checksums(checksums: Sequence[int]) -> bytes:
    """Returns checksums as `[frames + 1] uint32`, little-endian: before the first frame, and up to each one."""
    return struct.pack(f"<{len(checksums)}I", *checksums)


def unpack_checksums(packed: bytes) -> Sequence[int]:
    """Returns what was given to `pack_checksums`."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def split_frames(codes: bytes, size: int) -> list[bytes]:
    """Returns the frames of `size` bytes in `codes`."""
    return [codes[start : start + size] for start in range(0, len(codes), size)]
