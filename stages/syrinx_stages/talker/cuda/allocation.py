"""Allocates the talker's device memory to requests: slots, and pages of the key-value cache."""

from collections.abc import Sequence

from msgspec import Struct

PAGE_SIZE = 64
"""Positions of a cache page."""

_BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


class IndexPool:
    """Allocates the indices 1 to `capacity`. Index 0 is scratch memory and never allocated."""

    def __init__(self, capacity: int) -> None:
        self._free = list(range(capacity, 0, -1))
        self.capacity = capacity

    @property
    def num_free(self) -> int:
        """Number of free indices."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Returns `count` indices. Raises ValueError, and allocates none, if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"cannot allocate {count}: {len(self._free)} of {self.capacity} are free")
        first = len(self._free) - count
        allocated = self._free[first:][::-1]
        del self._free[first:]
        return allocated

    def free(self, indices: Sequence[int]) -> None:
        """Makes allocated indices available again."""
        self._free.extend(reversed(indices))


class Allocation(Struct, kw_only=True):
    """One request's device memory."""

    slot: int
    pages: list[int]


class Allocator:
    """Allocates slots and cache pages to requests."""

    def __init__(self, slots: int, pages: int, max_pages: int) -> None:
        """max_pages: of one request."""
        self.slots, self.pages = IndexPool(slots), IndexPool(pages)
        self._max_pages = max_pages

    def allocate(self, positions: int) -> Allocation | None:
        """Returns memory for a request with `positions` to prefill, or None if not enough is free."""
        # One more position, for the first frame.
        pages = num_pages(positions + 1)
        if pages > min(self.pages.num_free, self._max_pages) or not self.slots.num_free:
            return None
        return Allocation(slot=self.slots.allocate(1)[0], pages=self.pages.allocate(pages))

    def grow(self, allocation: Allocation, positions: int) -> bool:
        """Adds a page if a request needs one for `positions`. Returns False if none is free."""
        missing = max(0, num_pages(positions) - len(allocation.pages))
        if missing > self.pages.num_free:
            return False
        allocation.pages += self.pages.allocate(missing)
        return True

    def free(self, allocation: Allocation) -> None:
        """Frees a request's memory."""
        self.slots.free([allocation.slot])
        self.pages.free(allocation.pages)


def num_pages(positions: int) -> int:
    """Returns the number of pages that hold `positions`."""
    return -(-positions // PAGE_SIZE)


def bucket_for(sizes: Sequence[int], count: int) -> int:
    """Returns the smallest of the ascending `sizes` that is at least `count`. Raises ValueError if there is none."""
    for size in sizes:
        if size >= count:
            return size
    raise ValueError(f"{count} is more than {sizes[-1]}")


def batch_sizes(max_rows: int) -> list[int]:
    """Returns the batch sizes that graphs are captured for."""
    return [*(size for size in _BATCH_SIZES if size < max_rows), max_rows]
