"""Events of a local pipeline's processes."""

import signal
from collections.abc import Callable
from typing import Literal

from msgspec import Struct


class Event(Struct, frozen=True):
    """An event of a process, or a message of the tuner."""

    kind: Literal["starting", "ready", "log", "exited", "stopping", "stopped", "notice", "warning"]
    name: str
    text: str
    """What happened, or the line of a log."""
    code: int = 0
    """Exit code, of kinds exited and stopped; negative: the signal that killed it."""


Observer = Callable[[Event], None]


def ready(name: str, url: str, seconds: float) -> Event:
    """A process is ready, `seconds` after its start."""
    return Event("ready", name, f"ready after {seconds:.1f} s at {url}")


def exited(name: str, code: int, restart_in: float) -> Event:
    """A process exited unexpectedly and will be restarted in `restart_in` seconds."""
    when = "now" if restart_in == 0 else f"in {restart_in:g} s"
    return Event("exited", name, f"exited unexpectedly ({describe_exit(code)}); restarting {when}", code)


def missing(name: str, code: int, last_line: str) -> Event:
    """A standby could not start; `last_line` is that of its output."""
    return Event("warning", name, f"could not start ({describe_exit(code)}), so nothing stands by: {last_line}", code)


def stopped(name: str, code: int, seconds: float) -> Event:
    """A process exited `seconds` after it was asked to."""
    cause = f" ({describe_exit(code)})" if code else ""
    return Event("stopped", name, f"stopped after {seconds:.1f} s{cause}", code)


def describe_exit(code: int) -> str:
    """Returns `exit code 3`, or `killed by SIGSEGV` for a negative code."""
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"killed by {names.get(-code, f'signal {-code}')}"
