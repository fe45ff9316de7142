"""Where a pipeline's tuning is read: the directory of one that is up here, or the status of one on Kubernetes."""

from __future__ import annotations

import os
import re
from typing import Protocol

import httpx

from syrinx_operator.commands.tune.view import View
from syrinx_operator.local import tuning_files
from syrinx_operator.local.running import RunningPipeline, find_running, state_directory

_GAUGES = {"syrinx_live_streams": "streams are listened to", "syrinx_queue_length": "requests wait"}


class TuneError(Exception):
    """There is nothing to show; the message says what would help."""


class Source(Protocol):
    """Somewhere a pipeline's tuning can be read."""

    async def view(self) -> View:
        """What it does now. Raises `TuneError`."""

    async def load(self) -> str:
        """What listeners do at this moment, in words; empty where that is not to be had."""


class Local:
    """A pipeline that `syrinx up` runs here."""

    def __init__(self, name: str | None) -> None:
        """Without a name, the one of the latest start."""
        self._name = name

    async def view(self) -> View:
        """What it does now. Raises `TuneError`."""
        running = running_pipeline(self._name)
        if running.tuning == "Off":
            raise TuneError(f"{running.name} is not tuned: its spec.tuning.mode is Off; Recommend and Auto tune")
        try:
            found = tuning_files.load(state_directory(os.environ) / running.name)
        except tuning_files.TuningMemoryError as error:
            raise TuneError(str(error)) from None
        if found is None:
            raise TuneError(f"{running.name} has just started, and nothing was looked at yet; try again in a moment")
        return View(
            name=running.name,
            location=running.url,
            state=found.state,
            requested=found.requested,
            objectives=found.objectives,
            slo=found.slo,
            observed_at=found.observed_at,
        )

    async def load(self) -> str:
        """What the gateway says of this moment."""
        try:
            running = running_pipeline(self._name)
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                text = (await client.get(f"{running.admin_url}/metrics")).raise_for_status().text
        except (TuneError, httpx.HTTPError):
            return ""
        found = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in _GAUGES}
        return ", ".join(f"{float(value[1]):.0f} {_GAUGES[name]}" for name, value in found.items() if value)


def running_pipeline(name: str | None) -> RunningPipeline:
    """The pipeline of that name that is up here, or the latest. Raises `TuneError`."""
    up = find_running(state_directory(os.environ))
    for running in up:
        if name in (None, running.name):
            return running
    if name is None:
        raise TuneError(
            "no pipeline is up here: start one with `syrinx up`, or name one on Kubernetes with -n NAMESPACE"
        )
    others = ", ".join(running.name for running in up)
    raise TuneError(f"no pipeline named {name} is up here" + (f"; up: {others}" if others else ""))
