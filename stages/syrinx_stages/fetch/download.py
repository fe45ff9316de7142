"""One file from the hub to the volume: resumed, checked, patient within bounds."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from syrinx_stages.fetch.errors import FetchError, Unreachable
from syrinx_stages.fetch.hub import File, Repository
from syrinx_stages.fetch.store import Store

PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further attempt at what failed; whatever arrived meanwhile starts them anew."""
GROWTH_SECONDS = 3.0
"""A file that has not grown for so long has nobody who fetches it."""
_CHUNK = 1 << 20
_SHA1_DIGITS = 40

T = TypeVar("T")


class _Damaged(Unreachable):
    """What arrived is not what the hub has."""


def patiently(attempt: Callable[[], T], progress: Callable[[], object], say: Callable[[str], None]) -> T:
    """What `attempt` returns, tried again while the hub is `Unreachable`; `progress` changes when something arrived."""
    failures = 0
    while True:
        before = progress()
        try:
            return attempt()
        except Unreachable as error:
            failures = 1 if progress() != before and not isinstance(error, _Damaged) else failures + 1
            if failures > len(PAUSES):
                raise
            pause = PAUSES[failures - 1]
            say(f"{error}; again in {pause:.0f} s")
            time.sleep(pause)


def download(repository: Repository, commit: str, file: File, store: Store, say: Callable[[str], None]) -> None:
    """Brings a file to the store, unless it or another process already did. Raises `FetchError`."""
    partial = store.partial(file.path, file.digest)

    def attempt() -> None:
        _wait_for_another(partial)
        if store.has(file.path, file.size):
            return
        _receive(repository, commit, file, partial, store)
        if not _is_whole(file, partial):
            partial.unlink(missing_ok=True)
            raise _Damaged(f"{file.path} arrived damaged")
        store.publish(partial, file.path)
        if not store.has(file.path, file.size):
            raise Unreachable(f"{file.path} was taken away")

    if not store.has(file.path, file.size):
        say(f"fetching {file.path} ({file.size / 1e6:.1f} MB)")
        patiently(attempt, lambda: _size(partial), say)


def _receive(repository: Repository, commit: str, file: File, partial: Path, store: Store) -> None:
    with store.writing():
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for at, piece in repository.read(file, commit, min(_size(partial), file.size)):
            if at + len(piece) > file.size:
                raise _Damaged(f"{file.path} is longer than the {file.size} bytes it should have")
            with store.writing():
                _write(descriptor, piece, at)
    finally:
        os.close(descriptor)


def _write(descriptor: int, piece: bytes, at: int) -> None:
    """All of it: a disk that is nearly full takes less than it is given."""
    rest = memoryview(piece)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        at, rest = at + written, rest[written:]


def _wait_for_another(partial: Path) -> None:
    """Lets another process go on that fetches the same file, for as long as it grows."""
    size = _size(partial)
    while size > 0:
        time.sleep(GROWTH_SECONDS)
        size, before = _size(partial), size
        if size == before:
            return


def _is_whole(file: File, partial: Path) -> bool:
    """The content is the hub's."""
    git = len(file.digest) == _SHA1_DIGITS
    # The name that git gives to a content is no secret to be kept.
    digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False) if git else hashlib.sha256()
    try:
        with partial.open("rb") as content:
            while piece := content.read(_CHUNK):
                digest.update(piece)
    except FileNotFoundError:
        raise Unreachable(f"{file.path} was taken away") from None
    except OSError as error:
        raise FetchError(f"cannot read {partial}: {error.strerror}") from None
    return digest.hexdigest() == file.digest


def _size(partial: Path) -> int:
    try:
        return partial.stat().st_size
    except OSError:
        return 0
