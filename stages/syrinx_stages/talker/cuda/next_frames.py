"""The metadata of every resident request's next frame, as arrays by slot: a step's rows are gathered, not built."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from syrinx_stages.kernels.metadata import FRAME, NUM_COLUMNS, POSITION, SLOT, TEXT
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, Allocation

Slots = NDArray[np.intp]

_POSITION, _FRAME, _TEXT = POSITION.value, FRAME.value, TEXT.value


class NextFrames:
    """Rows of `kernels.metadata`, without the ring. Frames and positions count those of enqueued steps."""

    def __init__(self, slots: int, max_pages: int) -> None:
        """max_pages: cache pages of one request."""
        self._metadata = np.zeros((slots, NUM_COLUMNS + max_pages), np.int32)
        self._texts = np.zeros((slots, max_pages * PAGE_SIZE), np.int32)
        """The text token of each frame."""
        self._num_texts = np.zeros(slots, np.int32)
        """Tokens of the text so far. Those of later frames are padding."""
        self._valid_until = np.zeros(slots, np.int32)
        """The frame from which on a row has to be written again."""

    def open(self, allocation: Allocation, frames: int, texts: Sequence[int], pad: int) -> None:
        """Starts a request with no filled position and a number of generated frames.

        texts: the text tokens of frames 0, 1, ...; those of all later ones are `pad`.
        """
        slot = allocation.slot
        self._metadata[slot] = 0
        self._metadata[slot, SLOT.value], self._metadata[slot, _FRAME] = slot, frames
        self._texts[slot], self._num_texts[slot] = pad, 0
        self.add_texts(slot, texts)
        self._write_pages(allocation)
        self.close(slot)

    def add_texts(self, slot: int, tokens: Sequence[int]) -> None:
        """Adds tokens to a request's text. Tokens after its last possible frame are dropped."""
        first = self._num_texts[slot]
        room = self._texts[slot, first : first + len(tokens)]
        room[:] = tokens[: len(room)]
        self._num_texts[slot] += len(room)

    def close(self, slot: int) -> None:
        """Makes a slot's row due until it is written again."""
        self._valid_until[slot] = 0

    def frame(self, slot: int) -> int:
        """Returns how many frames a slot's request has."""
        return int(self._metadata[slot, _FRAME])

    def position(self, slot: int) -> int:
        """Returns how many positions are filled."""
        return int(self._metadata[slot, _POSITION])

    def due(self, slots: Slots) -> list[int]:
        """Returns the indices of the slots whose rows have to be written before their next frame."""
        due: list[int] = np.flatnonzero(self._metadata[slots, _FRAME] >= self._valid_until[slots]).tolist()
        return due

    def write(self, allocation: Allocation, max_frames: int) -> None:
        """Writes a row. It is then valid until a page ends, or the request has `max_frames`."""
        slot, pages = allocation.slot, allocation.pages
        frames = self.frame(slot)
        self._write_pages(allocation)
        left = min(max_frames - frames, len(pages) * PAGE_SIZE - self.position(slot))
        self._valid_until[slot] = frames + left

    def rows(self, slots: Slots) -> NDArray[np.int32]:
        """Returns the metadata of the next frames: a copy [rows, columns + pages]."""
        metadata = self._metadata[slots]
        metadata[:, _TEXT] = self._texts[slots, metadata[:, _FRAME]]
        return metadata

    def advance(self, slots: Slots) -> None:
        """Counts a frame of each slot."""
        self._metadata[slots, _POSITION] += 1
        self._metadata[slots, _FRAME] += 1

    def fill(self, slot: int, positions: int) -> None:
        """Counts positions of a prefilled prompt."""
        self._metadata[slot, _POSITION] += positions
        self.close(slot)

    def _write_pages(self, allocation: Allocation) -> None:
        self._metadata[allocation.slot, NUM_COLUMNS : NUM_COLUMNS + len(allocation.pages)] = allocation.pages
