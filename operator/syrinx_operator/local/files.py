"""Files that are there whole or not at all, and logs that do not grow for ever."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, data: bytes) -> None:
    """Replaces a file's content: whoever reads it, even after a crash, finds the old one or the new one.

    Raises `OSError`.
    """
    part = file.with_name(f".{file.name}.part")
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)


class RotatedLog:
    """Lines appended to a file; once it holds `limit` bytes it becomes FILE.1, and the one before that is dropped."""

    def __init__(self, file: Path, limit: int) -> None:
        self._file = file
        self._limit = limit

    def __call__(self, line: str) -> None:
        """Appends a line. Raises `OSError`."""
        with self._file.open("ab") as stream:
            stream.write(line.encode() + b"\n")
            full = stream.tell() >= self._limit
        if full:
            self._file.replace(earlier(self._file))


def earlier(file: Path) -> Path:
    """Where a rotated log keeps what was before."""
    return file.with_name(f"{file.name}.1")
