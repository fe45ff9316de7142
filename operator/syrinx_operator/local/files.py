"""Atomic file writes."""

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
