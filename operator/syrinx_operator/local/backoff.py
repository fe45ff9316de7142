"""Delays between the restarts of a process."""

MAX_SECONDS = 30.0
MAX_SECONDS_ALONE = 1.0
"""Maximum delay while no other replica of the stage is ready: nothing is served meanwhile."""
RESET_SECONDS = 10.0
"""A process that was ready for this long does not crash in a loop."""


class Backoff:
    """Restarts at once after a clean exit and after the first crash; then after 1, 2, 4, ... `MAX_SECONDS` seconds."""

    def __init__(self) -> None:
        self._crashes = 0
        """Crashes in a row."""

    def delay(self, code: int, ready_seconds: float, *, alone: bool) -> float:
        """Returns the seconds until the restart of a process that exited with `code`.

        `ready_seconds`: how long it was ready. `alone`: no other replica of its stage is ready.
        """
        if code == 0 or ready_seconds >= RESET_SECONDS:
            self._crashes = 0
        if code == 0:
            return 0.0
        self._crashes += 1
        delay = 0.0 if self._crashes == 1 else 2.0 ** min(self._crashes - 2, 10)
        return min(delay, MAX_SECONDS_ALONE if alone else MAX_SECONDS)
