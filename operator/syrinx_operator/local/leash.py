"""Runs a command that dies with its parent: `python leash.py PARENT_PID COMMAND ...`. Linux; imports nothing of ours.

The kernel kills the command as soon as the parent is gone, also after `kill -9`. It is a program of its own because
code between fork and exec is unsafe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent and becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # It died before the leash was on.
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
