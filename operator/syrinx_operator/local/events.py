"""What happens to a local pipeline's processes, as values for whoever shows it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from msgspec import Struct


class Starting(Struct, frozen=True):
    """A process is being started, for the first time or again."""

    name: str


class Ready(Struct, frozen=True):
    """A process serves."""

    name: str
    url: str
    seconds: float
    """From start to ready."""


class Log(Struct, frozen=True):
    """A line a process wrote."""

    name: str
    line: str


class Exited(Struct, frozen=True):
    """A process that should run has ended; it is started again after a pause."""

    name: str
    code: int
    restart_in: float
    """Seconds."""


class Stopping(Struct, frozen=True):
    """A process is asked to finish its work and leave."""

    name: str


class Stopped(Struct, frozen=True):
    """A process that was asked to leave has left."""

    name: str
    code: int
    seconds: float


class Told(Struct, frozen=True):
    """What the tuner decided, or cannot do, in words."""

    message: str
    warning: bool = False


Event = Starting | Ready | Log | Exited | Stopping | Stopped | Told
Observer = Callable[[Event], None]


def exit_words(code: int) -> str:
    """`exit code 3`, or `killed by SIGSEGV` for a negative code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
