"""Atomic file writes and size-limited logs."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(file: Path, data: bytes) -> None:
    """Replaces a file's content atomically: readers see the old or the new content, even after a crash.

    Raises `OSError`.
    """
    part = file.with_name(f".{file.name}.part")
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)


class RotatedLog:
    """A log file that is rotated to FILE.1 at `limit` bytes. Only one old file is kept."""

    def __init__(self, file: Path, limit: int) -> None:
        self._file = file
        self._limit = limit

    def __call__(self, line: str) -> None:
        """Appends a line. Raises `OSError`."""
        with self._file.open("ab") as stream:
            stream.write(line.encode() + b"\n")
            full = stream.tell() >= self._limit
        if full:
            self._file.replace(previous_file(self._file))


def previous_file(file: Path) -> Path:
    """Returns the path of a log's rotated file."""
    return file.with_name(f"{file.name}.1")
