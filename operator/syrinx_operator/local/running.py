"""Which pipelines `syrinx up` runs for this user: one directory each, locked while its process lives.

The kernel drops the lock with the process, so what `kill -9` left behind is never taken for a running pipeline.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

_FILE = "up.json"


class AlreadyUp(Exception):
    """A pipeline of this name is running already."""


class NoState(Exception):
    """What `syrinx up` keeps has no place."""


class Running(Struct, frozen=True):
    """A pipeline that is up."""

    name: str
    pid: int
    url: str = ""
    """Where it serves; empty while it starts."""
    admin_url: str = ""
    """Where the gateway's metrics are."""
    tuning: str = ""
    """Its `spec.tuning.mode`."""


class Slot:
    """A pipeline's directory, held by this process: its stages' configurations and logs, and what `running` finds."""

    def __init__(self, directory: Path, name: str, descriptor: int) -> None:
        self.directory = directory
        self._name = name
        self._descriptor = descriptor

    def announce(self, url: str, admin_url: str = "", tuning: str = "") -> None:
        """Tells others of this user where the pipeline serves; an empty `url` takes it back."""
        data = msgspec.json.encode(Running(self._name, os.getpid(), url, admin_url, tuning))
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)


def state_directory(environment: Mapping[str, str]) -> Path:
    """Where this user's running pipelines are kept (XDG base directories). Raises `NoState` without a home."""
    root = environment.get("XDG_STATE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".local" / "state") / "syrinx"
    except RuntimeError:
        raise NoState("there is no home directory to keep logs in; set XDG_STATE_HOME or HOME") from None


@contextlib.contextmanager
def claim(root: Path, name: str) -> Iterator[Slot]:
    """Holds the directory of pipeline `name`. Raises `AlreadyUp` if another process does, `NoState` if none can be."""
    directory = root / name
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NoState(f"logs cannot be kept in {directory}: {error.strerror}; set XDG_STATE_HOME") from None
    try:
        if not _lock(descriptor):
            raise AlreadyUp(f"a pipeline named {name} is up already{_by(descriptor)}")
        slot = Slot(directory, name, descriptor)
        slot.announce("")
        yield slot
        slot.announce("")
    finally:
        os.close(descriptor)


def find(root: Path) -> list[Running]:
    """The pipelines that are up and serve, those of the latest start first."""
    files = sorted(root.glob(f"*/{_FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [found for file in files if (found := _read_live(file)) is not None and found.url]


def _lock(descriptor: int) -> bool:
    for _ in range(10):  # `find` looks by taking the lock for an instant.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.01)
    return False


def _read_live(file: Path) -> Running | None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> Running | None:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Running)
    return None


def _by(descriptor: int) -> str:
    other = _read(descriptor)
    return f": process {other.pid}" + (f" serves {other.url}" if other.url else "") if other else ""
