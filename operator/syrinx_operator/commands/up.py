"""`syrinx up`: a pipeline in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal

from rich.console import Console

from syrinx_operator.local.console import PipelineView
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.running import PipelineDirectory, claim, state_directory
from syrinx_operator.local.tuner import LocalTuner
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import ignored_locally

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLED = 130
"""Exit status after a second Ctrl-C."""


async def up(pipeline: TTSPipeline, console: Console, *, port: int | None, logs: bool) -> int:
    """Runs the pipeline until a signal asks it to stop; returns the exit status.

    The first signal drains, the second kills. Raises `StageFailed`,
    `LocalError` or `AlreadyRunning` if it cannot start.
    """
    with (
        claim(state_directory(os.environ), pipeline.name) as slot,
        PipelineView(console, logs=logs) as view,
    ):
        console.print(f"pipeline {pipeline.name}: model {pipeline.model_name}; logs in {slot.directory}")
        tuner = None if pipeline.spec.tuning.mode == "Off" else LocalTuner(pipeline, slot.directory, view)
        start = tuner.start_with() if tuner else pipeline
        local = LocalPipeline(start, directory=slot.directory, port=port, observe=view)
        if unused := ignored_locally(pipeline):
            console.print(f"not used here: {', '.join(unused)}", markup=False)
        serving = asyncio.create_task(_serve(local, tuner, slot, console))
        killed = _stop_on_signal(serving, local, console)
        try:
            await serving
        except asyncio.CancelledError:
            console.print("stopped; nothing is left running")
        return KILLED if killed.is_set() else 0


async def _serve(local: LocalPipeline, tuner: LocalTuner | None, slot: PipelineDirectory, console: Console) -> None:
    async with local:
        slot.announce(local.gateway_url, local.admin_url, local.pipeline.spec.tuning.mode)
        console.print(f"[bold green]speaking at {local.gateway_url}[/bold green]   (Ctrl-C stops)")
        console.print('try: syrinx say "The farmer opened the garden gate." -o speech.wav')
        # Until a signal cancels it.
        await (tuner.run(local.members) if tuner else asyncio.get_running_loop().create_future())


def _stop_on_signal(serving: asyncio.Task[None], local: LocalPipeline, console: Console) -> asyncio.Event:
    """The first signal cancels `serving`, which drains; the second kills. The event says whether it came to that."""
    asked, killed = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            killed.set()
            local.kill()
            return
        asked.set()
        console.print("stopping: what is being spoken is finished first (Ctrl-C again kills)")
        serving.cancel()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return killed
