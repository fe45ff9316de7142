"""What a process does about signals before it can do anything else."""

import os
import signal


def exit_on_signals() -> None:
    """SIGTERM and SIGINT end the process at once: nothing is claimed yet. For before the imports, which take seconds.

    A container's first process would not hear a signal at all that it has no handler for.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
