"""Files whose changes take effect without a restart."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

POLL_SECONDS = 1.0

Version = tuple[tuple[int, int, int], ...]
"""Inode, change time and size of each file; (0, 0, 0) for one that cannot be accessed."""


class WatchedFiles:
    """Detects changes of files: new content, permissions, or another target of a link, as in a volume of Kubernetes."""

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._seen = self._version()

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Calls `on_change` within about `POLL_SECONDS` of each change since this object was created, until cancelled.

        A change while `on_change` reads the files causes another call.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            version = self._version()
            if version != self._seen:
                self._seen = version
                await on_change()

    def _version(self) -> Version:
        return tuple(_version(file) for file in self._files)


def _version(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_ctime_ns, found.st_size
