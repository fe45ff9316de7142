"""A checkpoint on a volume that several pods may fill at the same time and any of which may be killed.

A file is written under a temporary name and renamed when it is complete. A stage's part is complete when its marker
exists, which is written last. No locks are needed: processes that download the same file write the same bytes at the
same offsets, and files are verified before they are renamed.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec


class FetchError(Exception):
    """The files cannot be fetched; the one-line message says what to do."""


class SourceUnavailable(FetchError):
    """The server cannot be reached or cannot respond now; a retry may succeed."""


class Marker(msgspec.Struct, frozen=True):
    """Records that all files of a part are present."""

    commit: str
    files: dict[str, int]
    """Size in bytes, by path."""


class Store:
    """The directory of one checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def complete(self, part: str) -> bool:
        """Whether all files of a part are present."""
        try:
            marker = msgspec.json.decode(self._marker(part).read_bytes(), type=Marker)
        except (OSError, msgspec.DecodeError):
            return False
        return all(self.has(path, size) for path, size in marker.files.items())

    def has(self, path: str, size: int) -> bool:
        """Whether a file is present with this size."""
        try:
            return (self.directory / path).stat().st_size == size
        except OSError:
            return False

    def partial(self, path: str, digest: str) -> Path:
        """Returns the path of the incomplete file with this content; an earlier attempt may have begun it."""
        final = self.directory / path
        with self.writing():
            final.parent.mkdir(parents=True, exist_ok=True)
        return final.with_name(f".{final.name}.{digest[:16]}.part")

    def publish(self, partial: Path, path: str) -> None:
        """Renames a complete file to its final name, unless another process has done so."""
        with self.writing(), contextlib.suppress(FileNotFoundError):
            _sync(partial)
            os.replace(partial, self.directory / path)

    def pin(self, commit: str) -> str:
        """Returns the commit that all parts of this directory use: `commit`, or that of the first part fetched.

        Without it, parts would not match if a branch moves between their downloads.
        """
        pinned = self.directory / ".commit"
        with self.writing():
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._temporary(commit.encode()) as temporary:
                try:
                    os.link(temporary, pinned)
                except OSError:  # it exists, or the file system has no hard links
                    if not pinned.exists():
                        os.replace(temporary, pinned)
            return pinned.read_text()

    def mark_complete(self, part: str, commit: str, files: Mapping[str, int]) -> None:
        """Writes the marker of a part."""
        data = msgspec.json.encode(Marker(commit, dict(files)))
        with self.writing(), self._temporary(data) as temporary:
            os.replace(temporary, self._marker(part))

    def _marker(self, part: str) -> Path:
        return self.directory / f".complete-{part}.json"

    @contextlib.contextmanager
    def _temporary(self, data: bytes) -> Iterator[Path]:
        temporary = self.directory / f".{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_bytes(data)
            _sync(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Translates OSError to `FetchError`."""
        try:
            yield
        except OSError as error:
            raise FetchError(f"cannot write to {self.directory}: {error.strerror or error}") from None


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
