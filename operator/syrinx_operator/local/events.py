"""Events of a local pipeline's processes."""

from __future__ import annotations

import signal
from collections.abc import Callable

from msgspec import Struct


class Starting(Struct, frozen=True):
    """A process is starting or restarting."""

    name: str


class Ready(Struct, frozen=True):
    """A process is ready."""

    name: str
    url: str
    seconds: float
    """From start to ready."""


class Log(Struct, frozen=True):
    """A process wrote a line."""

    name: str
    line: str


class Exited(Struct, frozen=True):
    """A process exited unexpectedly and will be restarted."""

    name: str
    code: int
    restart_in: float
    """Seconds."""


class Stopping(Struct, frozen=True):
    """A process was asked to drain and exit."""

    name: str


class Stopped(Struct, frozen=True):
    """A process exited after it was asked to."""

    name: str
    code: int
    seconds: float


class Notice(Struct, frozen=True):
    """A message from the tuner."""

    message: str
    warning: bool = False


Event = Starting | Ready | Log | Exited | Stopping | Stopped | Notice
Observer = Callable[[Event], None]


def describe_exit(code: int) -> str:
    """Returns `exit code 3`, or `killed by SIGSEGV` for a negative code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
