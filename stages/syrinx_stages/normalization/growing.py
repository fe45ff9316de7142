"""What texts that arrive in pieces have in common. The result does not depend on the pieces. Pure."""

from abc import ABC, abstractmethod


class Growing(ABC):
    """A growing text, and what becomes of it as far as no further text can change that."""

    def __init__(self) -> None:
        self._pending = ""
        """Text that may still become something else."""
        self._consumed = 0
        """Characters before `_pending`."""

    @property
    def characters(self) -> int:
        """Characters of the text so far."""
        return self._consumed + len(self._pending)

    def feed(self, piece: str) -> str:
        """Adds text. Returns what follows of what becomes of it."""
        self._pending += piece
        return self._take(ended=False)

    def end(self) -> str:
        """Ends the text. Returns the rest of what becomes of it."""
        return self._take(ended=True)

    @abstractmethod
    def _take(self, ended: bool) -> str:
        """Returns what is certain now."""

    def _consume(self, characters: int) -> None:
        """Removes the beginning of the pending text."""
        self._pending = self._pending[characters:]
        self._consumed += characters
