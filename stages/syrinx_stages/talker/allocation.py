"""What is where in the talker's device memory: slots, pages of the cache, pages of text rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

PAGE_SIZE = 64
"""Positions of a cache page; rows of a text page."""

_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


class IndexPool:
    """Numbers 1 to `count` that are given out and taken back; 0 is scratch and never given out."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self.count = count

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` of them. Raises ValueError if there are not as many; then none is taken."""
        if count > len(self._free):
            raise ValueError(f"{count} are wanted, {len(self._free)} of {self.count} are free")
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        return taken

    def free(self, taken: Sequence[int]) -> None:
        """Makes them free again."""
        self._free.extend(reversed(taken))


class Allocation(Struct, kw_only=True):
    """Where one request is."""

    slot: int
    text_pages: list[int]
    texts: int
    """Rows of text."""
    pages: list[int] = field(default_factory=list)
    """Of the cache."""
    position: int = 0
    """Positions that are filled, or will be by what is queued."""
    frames: int = 0
    """Frames that are made, or will be."""

    def text_row(self) -> int:
        """The row of text that goes with the next frame; 0, padding, behind the last."""
        if self.frames >= self.texts:
            return 0
        return self.text_pages[self.frames // PAGE_SIZE] * PAGE_SIZE + self.frames % PAGE_SIZE

    def missing_pages(self, count: int) -> int:
        """How many pages are wanted for `count` more positions."""
        return max(0, num_pages(self.position + count) - len(self.pages))


def num_pages(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE_SIZE)


def bucket_for(sizes: Sequence[int], count: int) -> int:
    """The smallest of the ascending sizes that holds `count`. Raises ValueError if none does."""
    for size in sizes:
        if size >= count:
            return size
    raise ValueError(f"{count} is more than {sizes[-1]}")


def batch_sizes(most: int) -> list[int]:
    """The numbers of rows that steps are recorded for, where there may be `most`."""
    return [*(size for size in _ROWS if size < most), most]
