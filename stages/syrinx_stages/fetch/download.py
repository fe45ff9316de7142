"""Downloads the files of a checkpoint: resumes, verifies the digest, retries a limited number of times."""

import os
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from syrinx_stages.fetch.store import FetchError, SourceUnavailable, Store

TIMEOUT_SECONDS = 30.0
"""Time limit for connecting and between two chunks."""
RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry. Progress resets the number of failures."""
GROWTH_SECONDS = 3.0
"""A partial file that has not grown for this long is not being downloaded by another process."""

T = TypeVar("T")


class _Corrupt(SourceUnavailable):
    """The downloaded content does not match its digest or size."""


class File(msgspec.Struct, frozen=True):
    """A file of a checkpoint."""

    path: str
    size: int
    """Bytes."""
    digest: str
    """Digest of the content, of a kind that the source knows."""


class Source(Protocol):
    """Where a checkpoint is. Its methods raise `FetchError`, or `SourceUnavailable` if a retry may succeed."""

    digests_are_exact: bool
    """Whether the digest of every file follows from its content."""

    def files(self, version: str | None = None) -> tuple[str, list[File]]:
        """Returns a version and its files: the newest one unless it is given."""
        ...

    def read(self, file: File, start: int) -> Iterator[tuple[int, bytes]]:
        """Yields (offset, chunk) from byte `start` on, or from 0 if the server does not support ranges."""
        ...

    def digest(self, file: File, content: BufferedReader) -> str:
        """Returns the digest of downloaded content, of the kind of `file.digest`."""
        ...


def retry(attempt: Callable[[], T], progress: Callable[[], object], log: Callable[[str], None]) -> T:
    """Returns `attempt()`, retried if the source is unavailable. `progress()` returns a value that changes with it."""
    failures = 0
    while True:
        before = progress()
        try:
            return attempt()
        except SourceUnavailable as error:
            failures = 1 if progress() != before and not isinstance(error, _Corrupt) else failures + 1
            if failures > len(RETRY_DELAYS):
                raise
            delay = RETRY_DELAYS[failures - 1]
            log(f"{error}; retrying in {delay:.0f} s")
            time.sleep(delay)


def download(source: Source, file: File, store: Store, log: Callable[[str], None]) -> None:
    """Downloads a file to the store unless it is there. Raises `FetchError`."""
    partial = store.partial(file.path, file.digest)
    others: set[str] = set()

    def attempt() -> None:
        _wait_for_other_process(partial)
        if store.has(file.path, file.size):
            return
        _receive(source, file, partial, store)
        # A digest that does not follow from the content differs each time; the content must then be equal twice.
        found = _digest(source, file, partial)
        if found != file.digest and (source.digests_are_exact or found not in others):
            others.add(found)
            partial.unlink(missing_ok=True)
            raise _Corrupt(f"{file.path}: the download is corrupt")
        store.publish(partial, file.path)
        if not store.has(file.path, file.size):
            raise SourceUnavailable(f"{file.path} was removed by another process")

    if not store.has(file.path, file.size):
        log(f"downloading {file.path} ({file.size / 1e6:.1f} MB)")
        retry(attempt, lambda: _size(partial), log)


def _receive(source: Source, file: File, partial: Path, store: Store) -> None:
    start = min(_size(partial), file.size)
    # Another process may be writing to the same file: it is not truncated.
    with store.writing(), open(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as output:
        for offset, chunk in source.read(file, start):
            if offset + len(chunk) > file.size:
                raise _Corrupt(f"{file.path} is longer than its size of {file.size} bytes")
            output.seek(offset)
            output.write(chunk)


def _wait_for_other_process(partial: Path) -> None:
    """Waits while another process downloads the same file, as long as the file grows."""
    size = _size(partial)
    while size > 0:
        time.sleep(GROWTH_SECONDS)
        size, before = _size(partial), size
        if size == before:
            return


def _digest(source: Source, file: File, partial: Path) -> str:
    try:
        with partial.open("rb") as content:
            return source.digest(file, content)
    except FileNotFoundError:
        raise SourceUnavailable(f"{file.path} was removed by another process") from None
    except OSError as error:
        raise FetchError(f"cannot read {partial}: {error.strerror}") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
