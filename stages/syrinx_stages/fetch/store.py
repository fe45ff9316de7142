"""A checkpoint on a volume that several pods may fill at once, any of which may die at any moment.

A file is there whole or not at all: it grows under another name and is renamed. A part is there when its marker is,
which is written last. There are no locks: two who fetch the same file write the same bytes at the same places, and
what is renamed has been checked.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from syrinx_stages.fetch.errors import FetchError


class Marker(msgspec.Struct, frozen=True):
    """Says that all files of a part are there."""

    commit: str
    files: dict[str, int]
    """Path and size in bytes."""


class Store:
    """The directory of one revision of one repository."""

    def __init__(self, cache: Path, repository: str, revision: str) -> None:
        self.directory = cache / repository.replace("/", "--") / revision

    def complete(self, part: str) -> bool:
        """All files of the part are there."""
        try:
            marker = msgspec.json.decode(self._marker(part).read_bytes(), type=Marker)
        except (OSError, msgspec.DecodeError):
            return False
        return all(self.has(path, size) for path, size in marker.files.items())

    def has(self, path: str, size: int) -> bool:
        """The file is there, whole."""
        try:
            return (self.directory / path).stat().st_size == size
        except OSError:
            return False

    def partial(self, path: str, digest: str) -> Path:
        """Where a file with this content grows. What an earlier attempt has left there is a beginning."""
        final = self.directory / path
        with self.writing():
            final.parent.mkdir(parents=True, exist_ok=True)
        return final.with_name(f".{final.name}.{digest[:16]}.part")

    def publish(self, partial: Path, path: str) -> None:
        """Gives a whole file its name, unless another process was faster."""
        with self.writing(), contextlib.suppress(FileNotFoundError):
            _sync(partial)
            os.replace(partial, self.directory / path)

    def pin(self, commit: str) -> str:
        """The commit that all parts of this directory come from: `commit`, or what another part has found before.

        A branch may move between two parts, whose files then would not fit together.
        """
        pinned = self.directory / ".commit"
        with self.writing():
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._whole(commit.encode()) as temporary:
                try:
                    os.link(temporary, pinned)
                except FileExistsError:
                    pass
                except OSError:  # a file system without hard links
                    if not pinned.exists():
                        os.replace(temporary, pinned)
            return pinned.read_text()

    def mark(self, part: str, commit: str, files: Mapping[str, int]) -> None:
        """The part is complete."""
        data = msgspec.json.encode(Marker(commit, dict(files)))
        with self.writing(), self._whole(data) as temporary:
            os.replace(temporary, self._marker(part))

    def _marker(self, part: str) -> Path:
        return self.directory / f".complete-{part}.json"

    @contextlib.contextmanager
    def _whole(self, data: bytes) -> Iterator[Path]:
        """A file with this content under a name of its own, which is gone afterwards."""
        temporary = self.directory / f".{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_bytes(data)
            _sync(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Errors of the volume, said so that a person sees what to do."""
        try:
            yield
        except OSError as error:
            raise FetchError(f"cannot write to {self.directory}: {error.strerror or error}") from None


def _sync(path: Path) -> None:
    """Onto the disk, before a name says that it is there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
