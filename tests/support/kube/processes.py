"""A container's process: dies with its parent, has its own process group and writes its output to a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from syrinx_stages.connector.server import find_redis_server
from syrinx_stages.processes import die_with_parent


def make_programs(directory: Path) -> Path:
    """Creates the directory on a container's PATH: this Python, and a Redis bound to the pod's address."""
    redis = find_redis_server()
    programs = {
        "python": f'exec "{sys.executable}" "$@"',
        "python3": f'exec "{sys.executable}" "$@"',
        "redis-server": f'exec "{redis}" "$@" --bind "$KUBE_POD_IP"',
        "redis-cli": f'exec "{redis.with_name("redis-cli")}" -h "$KUBE_POD_IP" "$@"',
    }
    directory.mkdir()
    for name, line in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{line}\n")
        (directory / name).chmod(0o755)
    return directory


class Process:
    """One run of a command; it is killed when this process ends."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid()), *command],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    async def ended(self) -> int:
        """Waits for the end; returns the exit status, 128 + N after signal N."""
        # `terminate` may have found it ended: then its PID is free.
        if self._process.poll() is None:
            descriptor, event = os.pidfd_open(self.pid), asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(descriptor, event.set)
            try:
                await event.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        code = self._process.wait()
        self.kill()
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Sends SIGTERM to the process only."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL to the process and all of its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        self.kill()
        self._process.wait()
