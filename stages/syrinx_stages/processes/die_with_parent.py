"""Runs a command that dies with its parent: `python die_with_parent.py PARENT_PID COMMAND ...`. Linux only.

The kernel kills the command when the parent exits, even after `kill -9`. This is a separate program, without imports of
the project, because code between fork and exec is unsafe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Sets the parent-death signal and executes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # The parent exited before prctl.
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
