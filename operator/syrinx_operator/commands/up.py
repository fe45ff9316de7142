"""`syrinx up`: runs a pipeline in the foreground."""

import asyncio
import os
import signal

from syrinx_operator.local.console import JsonView, PipelineView
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.running import claim, state_directory
from syrinx_operator.local.tuner import LocalTuner
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import ignored_locally


async def up(pipeline: TTSPipeline, view: PipelineView | JsonView, *, port: int | None) -> int:
    """Runs the pipeline until a signal, which drains it; a second one kills it. Raises `LocalError` if it cannot start.

    Returns the exit status: 0, or 130 if it was killed.
    """
    with claim(state_directory(os.environ), pipeline.name) as slot, view:
        tuner = None if pipeline.spec.tuning.mode == "Off" else LocalTuner(pipeline, slot.directory, view)
        start = tuner.with_chosen_settings() if tuner else pipeline
        local = LocalPipeline(start, directory=slot.directory, port=port, observe=view)
        summary = f"model {pipeline.model_name}, configuration {local.configuration_hash}"
        view.note(f"pipeline {pipeline.name}: {summary}")
        view.note(f"configuration and logs in {slot.directory}")
        if ignored := list(ignored_locally(pipeline.spec)):
            view.note(f"ignored without Kubernetes: {', '.join(ignored)}")
        signals = 0

        async def serve() -> None:
            async with local:
                admin_urls = tuple(each.admin_url or "" for each in local.gateways)
                slot.announce(local.gateway_url, admin_urls, local.pipeline.spec.tuning.mode)
                view.note(f"ready at {local.gateway_url}   (Ctrl-C stops)", style="bold green")
                view.note('try: syrinx say "The farmer opened the garden gate." -o speech.wav')
                # Both run until a signal cancels them.
                if tuner is not None:
                    await tuner.run(local.processes, local.settings_headers)
                else:
                    await asyncio.get_running_loop().create_future()

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                local.kill()
            else:
                view.note("stopping: active streams finish first (press Ctrl-C again to kill)")
                serving.cancel()

        serving = asyncio.create_task(serve())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        try:
            await serving
        except asyncio.CancelledError:
            view.note("stopped")
        return 130 if signals > 1 else 0
