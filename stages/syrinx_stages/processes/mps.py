"""CUDA's multi-process service (MPS), with which the kernels of several processes run concurrently on one GPU."""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Literal

from syrinx_stages.processes import die_with_parent

DAEMON = "nvidia-cuda-mps-control"
DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
"""Names the directory of a daemon to its clients."""
START_SECONDS, STOP_SECONDS = 10.0, 15.0
Note = Callable[[Literal["notice", "warning"], str], None]
"""Gets what to tell the user."""


@contextlib.asynccontextmanager
async def mps_clients(environment: Mapping[str, str], note: Note) -> AsyncIterator[dict[str, str]]:
    """Runs a daemon; yields the environment variables of its clients, none if it cannot run.

    A daemon that the environment names is used as it is.
    """
    if DIRECTORY in environment:
        yield {}
        return
    if (control := shutil.which(DAEMON)) is None:
        note("notice", f"talkers and codecs take turns on the GPU, because {DAEMON} is not installed")
        yield {}
        return
    # The path of a socket in it is limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="syrinx-mps-", dir="/tmp") as directory:
        variables = {DIRECTORY: directory, "CUDA_MPS_LOG_DIRECTORY": directory}
        command = (sys.executable, die_with_parent.__file__, str(os.getpid()), control, "-f")
        daemon = await asyncio.create_subprocess_exec(
            *command, env=dict(environment) | variables, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            if await _is_up(daemon, Path(directory)):
                note("notice", "talkers and codecs share the GPU through CUDA's multi-process service")
                yield variables
            else:
                note("warning", f"{DAEMON} does not start: talkers and codecs take turns on the GPU")
                yield {}
        finally:
            await _stop(daemon, control, dict(environment) | variables)


async def _is_up(daemon: Process, directory: Path) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while daemon.returncode is None:
                if (directory / "control").exists():
                    return True
                await asyncio.sleep(0.05)
    return False


async def _stop(daemon: Process, control: str, environment: Mapping[str, str]) -> None:
    """Asks the daemon to end with its servers, or kills it."""
    quitting = await asyncio.create_subprocess_exec(
        control, env=environment, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
    )
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(STOP_SECONDS):
            await quitting.communicate(b"quit -t 5\n")
            await daemon.wait()
    for process in (quitting, daemon):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
