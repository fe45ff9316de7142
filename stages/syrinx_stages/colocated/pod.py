"""The two stages of a pod, which share its GPU.

Each is a process with ports of its own. If one ends, the other is killed and the container restarts both: on a GPU that
they share through CUDA's multi-process service, an error in one ends the other anyway.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from syrinx_stages.contract import logs
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import WORKERS
from syrinx_stages.processes import die_with_parent
from syrinx_stages.processes.mps import mps_clients

log = logging.getLogger(__name__)


async def run(files: Sequence[str], device: str) -> int:
    """Runs both until SIGTERM or SIGINT, which both get, or until one ends. Returns the exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        variables: dict[str, str] = {}
        if device == "cuda":
            variables = await stack.enter_async_context(mps_clients(os.environ, _note))
        environment = {**os.environ, **variables}
        stages = {}
        for stage, file in zip(WORKERS, files, strict=True):
            command = (sys.executable, "-m", f"syrinx_stages.{stage}", file)
            stages[stage] = await asyncio.create_subprocess_exec(
                sys.executable, die_with_parent.__file__, str(os.getpid()), *command, env=environment
            )
        ends = {asyncio.create_task(process.wait()): stage for stage, process in stages.items()}
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([*ends, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        ended = [stage for task, stage in ends.items() if task.done()]
        for stage in ended if not stop.is_set() else ():
            log.error("the %s ended with status %d: the container restarts", stage, stages[stage].returncode)
        for process in stages.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM if stop.is_set() else signal.SIGKILL)
        await asyncio.wait(ends)
    return 0 if stop.is_set() else 1


def _note(kind: Literal["notice", "warning"], text: str) -> None:
    log.log(logging.WARNING if kind == "warning" else logging.INFO, "%s", text)


def main() -> int:
    """Runs the stages whose configuration files are the arguments. Returns the exit status."""
    try:
        logs.configure(os.environ)
        talker, codec = sys.argv[1:]
        device = msgspec.json.decode(Path(talker).read_bytes(), type=StageConfig).device
    except (ValueError, OSError, msgspec.DecodeError) as error:
        print(f"syrinx colocated TALKER.json CODEC.json: {error}", file=sys.stderr)
        return 1
    return asyncio.run(run((talker, codec), device))
