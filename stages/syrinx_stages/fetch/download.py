"""Downloads one file from the hub to the volume: resumes, verifies the digest, retries a limited number of times."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from syrinx_stages.fetch.hub import File, Repository
from syrinx_stages.fetch.store import FetchError, HubUnavailable, Store

RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry. Progress resets the number of failures."""
GROWTH_SECONDS = 3.0
"""A partial file that has not grown for this long is not being downloaded by another process."""
_CHUNK = 1 << 20
_SHA1_DIGITS = 40

T = TypeVar("T")


class _Corrupt(HubUnavailable):
    """The downloaded content does not match the hub's digest or size."""


def retry(attempt: Callable[[], T], progress: Callable[[], object], log: Callable[[str], None]) -> T:
    """Returns `attempt()`, retried on `HubUnavailable`. `progress()` returns a value that changes with progress."""
    failures = 0
    while True:
        before = progress()
        try:
            return attempt()
        except HubUnavailable as error:
            failures = 1 if progress() != before and not isinstance(error, _Corrupt) else failures + 1
            if failures > len(RETRY_DELAYS):
                raise
            delay = RETRY_DELAYS[failures - 1]
            log(f"{error}; retrying in {delay:.0f} s")
            time.sleep(delay)


def download(repository: Repository, commit: str, file: File, store: Store, log: Callable[[str], None]) -> None:
    """Downloads a file to the store unless it is there. Raises `FetchError`."""
    partial = store.partial(file.path, file.digest)

    def attempt() -> None:
        _wait_for_other_process(partial)
        if store.has(file.path, file.size):
            return
        _receive(repository, commit, file, partial, store)
        if not _digest_matches(file, partial):
            partial.unlink(missing_ok=True)
            raise _Corrupt(f"{file.path}: the download is corrupt")
        store.publish(partial, file.path)
        if not store.has(file.path, file.size):
            raise HubUnavailable(f"{file.path} was removed by another process")

    if not store.has(file.path, file.size):
        log(f"downloading {file.path} ({file.size / 1e6:.1f} MB)")
        retry(attempt, lambda: _size(partial), log)


def _receive(repository: Repository, commit: str, file: File, partial: Path, store: Store) -> None:
    with store.writing():
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for offset, chunk in repository.read(file, commit, min(_size(partial), file.size)):
            if offset + len(chunk) > file.size:
                raise _Corrupt(f"{file.path} is longer than its size of {file.size} bytes")
            with store.writing():
                _write(descriptor, chunk, offset)
    finally:
        os.close(descriptor)


def _write(descriptor: int, chunk: bytes, offset: int) -> None:
    """Writes the whole chunk; one call may write less if the disk is nearly full."""
    rest = memoryview(chunk)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset, rest = offset + written, rest[written:]


def _wait_for_other_process(partial: Path) -> None:
    """Waits while another process downloads the same file, as long as the file grows."""
    size = _size(partial)
    while size > 0:
        time.sleep(GROWTH_SECONDS)
        size, before = _size(partial), size
        if size == before:
            return


def _digest_matches(file: File, partial: Path) -> bool:
    # Git hashes a blob's header and content; this is not a security feature.
    is_git = len(file.digest) == _SHA1_DIGITS
    digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if is_git else hashlib.sha256()
    try:
        with partial.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except FileNotFoundError:
        raise HubUnavailable(f"{file.path} was removed by another process") from None
    except OSError as error:
        raise FetchError(f"cannot read {partial}: {error.strerror}") from None
    return digest.hexdigest() == file.digest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
