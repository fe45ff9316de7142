"""`syrinx up`: runs a pipeline in the foreground."""

import asyncio
import os
import shlex
import shutil
import signal
import sys

from syrinx_operator.commands.client import PRIVATE_CA
from syrinx_operator.local.console import JsonView, PipelineView
from syrinx_operator.local.events import Event
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.running import claim, state_directory
from syrinx_operator.local.tuner import LocalTuner
from syrinx_operator.resource.checks.local_rules import ignored_locally
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.runtime.http.listening import is_loopback

OPEN = "the API listens at {host} without API keys: everyone who reaches it can use it; spec.gateway.apiKeys adds keys"
"""Warning of a pipeline that other machines reach."""


async def up(
    pipeline: TTSPipeline, view: PipelineView | JsonView, *, program: str, host: str | None, port: int | None
) -> int:
    """Runs the pipeline until a signal, which drains it; a second one kills it. Raises `LocalError` if it cannot start.

    `program`, `host` and `port`: as of `typed_program` and `LocalPipeline`. Returns the exit status: 0, or 130 if it
    was killed.
    """
    with claim(state_directory(os.environ), pipeline.name) as slot, view:
        tuner = None if pipeline.spec.tuning.mode == "Off" else LocalTuner(pipeline, slot.directory, view)
        start = tuner.with_chosen_settings() if tuner else pipeline
        local = LocalPipeline(start, directory=slot.directory, host=host, port=port, observe=view)
        view.note(f"pipeline {pipeline.name}: model {pipeline.model_name}")
        if ignored := list(ignored_locally(pipeline.spec)):
            view.note(f"ignored without Kubernetes: {', '.join(ignored)}")
        has_keys = pipeline.spec.gateway.api_keys is not None
        if host is not None and not is_loopback(host) and not has_keys:
            view(Event("warning", "gateway", OPEN.format(host=host or "*")))
        signals = 0

        async def serve() -> None:
            async with local:
                admin_urls = tuple(each.admin_url or "" for each in local.gateways)
                slot.announce(local.gateway_url, admin_urls, local.pipeline.spec.tuning.mode)
                view.note(f"ready at {local.gateway_url}   (Ctrl-C stops)", style="bold green")
                key = "SYRINX_API_KEY=KEY " if has_keys else ""
                view.note(f'speak: {key}{program} say "The farmer opened the garden gate." -o speech.wav')
                if local.gateway_url.startswith("https:"):
                    view.note(f"       {PRIVATE_CA}")
                view.note(f"logs:  {slot.directory}")
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


def typed_program(program: str, started_as: str) -> str:
    """Returns what the user can type for `program` here. `started_as` is `sys.argv[0]`."""
    if started_as.endswith("__main__.py"):
        return f"{shlex.quote(sys.executable)} -m syrinx_operator"
    on_path = shutil.which(os.path.basename(started_as))
    is_on_path = on_path is not None and os.path.realpath(on_path) == os.path.realpath(started_as)
    return program if is_on_path else shlex.quote(started_as)
