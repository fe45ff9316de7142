"""Sources of a pipeline's tuning state: the directory of a local pipeline, or the status of one on Kubernetes."""

from __future__ import annotations

import os
import re
from typing import Protocol

import httpx

from syrinx_operator.commands.tune.view import View
from syrinx_operator.local import tuning_files
from syrinx_operator.local.running import RunningPipeline, find_running, state_directory

_GAUGES = {"syrinx_live_streams": "live streams", "syrinx_queue_length": "requests waiting"}


class TuneError(Exception):
    """There is nothing to show. The message says what to do."""


class Source(Protocol):
    """A source of a pipeline's tuning state."""

    async def view(self) -> View:
        """Returns the current state. Raises TuneError."""

    async def load(self) -> str:
        """Returns the current load as text; empty if it is not available."""


class Local:
    """A pipeline of this machine that `syrinx up` runs."""

    def __init__(self, name: str | None) -> None:
        """Without a name, uses the pipeline that was started last."""
        self._name = name

    async def view(self) -> View:
        """Returns the current state. Raises TuneError."""
        running = running_pipeline(self._name)
        if running.tuning == "Off":
            raise TuneError(f"{running.name} is not tuned: its spec.tuning.mode is Off; Recommend and Auto tune")
        try:
            memory = tuning_files.load(state_directory(os.environ) / running.name)
        except tuning_files.TuningMemoryError as error:
            raise TuneError(str(error)) from None
        if memory is None:
            raise TuneError(f"{running.name} has just started and was not evaluated yet; try again in a moment")
        return View(
            name=running.name,
            location=running.url,
            state=memory.state,
            requested=memory.requested,
            objectives=memory.objectives,
            slo=memory.slo,
            observed_at=memory.observed_at,
        )

    async def load(self) -> str:
        """Returns the gateway's live streams and queue length as text."""
        try:
            running = running_pipeline(self._name)
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                text = (await client.get(f"{running.admin_url}/metrics")).raise_for_status().text
        except (TuneError, httpx.HTTPError):
            return ""
        found = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in _GAUGES}
        return ", ".join(f"{float(value[1]):.0f} {_GAUGES[name]}" for name, value in found.items() if value)


def running_pipeline(name: str | None) -> RunningPipeline:
    """Returns the running local pipeline of that name, or the one started last. Raises TuneError."""
    up = find_running(state_directory(os.environ))
    for running in up:
        if name in (None, running.name):
            return running
    if name is None:
        raise TuneError("no local pipeline is running: run `syrinx up`, or pass -n NAMESPACE for one on Kubernetes")
    others = ", ".join(running.name for running in up)
    raise TuneError(f"no local pipeline named {name} is running" + (f"; running: {others}" if others else ""))
