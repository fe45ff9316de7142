"""The state directories of the pipelines that `syrinx up` runs for this user.

Each pipeline has a directory, which is locked while its process runs. The kernel releases the lock when the process
exits, so that a pipeline that was killed does not count as running.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from syrinx_operator.resource.stage_config import LocalError

_FILE = "up.json"


class RunningPipeline(Struct, frozen=True):
    """A running pipeline."""

    name: str
    pid: int
    url: str = ""
    """URL of its API; empty while it starts."""
    admin_urls: tuple[str, ...] = ()
    """URLs of the gateways' health and metrics. The token of their settings is in no file."""
    tuning: str = ""
    """Its `spec.tuning.mode`."""


class PipelineDirectory(Struct, frozen=True):
    """A pipeline's directory, locked by this process: configurations and logs of the stages, and `up.json`."""

    directory: Path
    descriptor: int

    def announce(self, url: str, admin_urls: tuple[str, ...] = (), tuning: str = "") -> None:
        """Publishes the pipeline's URLs to other processes of this user. An empty `url` withdraws them."""
        running = RunningPipeline(self.directory.name, os.getpid(), url, admin_urls, tuning)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, msgspec.json.encode(running), 0)


def state_directory(environment: Mapping[str, str]) -> Path:
    """Returns this user's state directory (XDG base directories). Raises `LocalError` without a home."""
    root = environment.get("XDG_STATE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".local" / "state") / "syrinx"
    except RuntimeError:
        raise LocalError("no home directory for logs; set XDG_STATE_HOME or HOME") from None


@contextlib.contextmanager
def claim(root: Path, name: str) -> Iterator[PipelineDirectory]:
    """Locks the directory of pipeline `name`. Raises `LocalError` if it is locked, or cannot be created."""
    directory = root / name
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalError(f"cannot write logs to {directory}: {error.strerror}; set XDG_STATE_HOME") from None
    try:
        if not _lock(descriptor):
            other = _read(descriptor)
            url = f" serves {other.url}" if other and other.url else ""
            process = f": process {other.pid}{url}" if other else ""
            another = "run another one with --name OTHER --port 0 (any free port)"
            raise LocalError(f"a pipeline named {name} is already running{process}; {another}")
        slot = PipelineDirectory(directory, descriptor)
        slot.announce("")
        yield slot
        slot.announce("")
    finally:
        os.close(descriptor)


def find_running(root: Path) -> list[RunningPipeline]:
    """Returns the running pipelines that are ready, the latest start first."""
    running = []
    for file in sorted(root.glob(f"*/{_FILE}"), key=lambda file: file.stat().st_mtime, reverse=True):
        descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            running.append(_read(descriptor))
        finally:
            os.close(descriptor)
    return [each for each in running if each is not None and each.url]


def _lock(descriptor: int) -> bool:
    for _ in range(10):  # `find_running` takes the lock for an instant.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.01)
    return False


def _read(descriptor: int) -> RunningPipeline | None:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=RunningPipeline)
    return None
