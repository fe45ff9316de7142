"""The service under test: local processes of Redis, talker, codec and gateways, as in `syrinx up`."""

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from syrinx_operator.local.console import PipelineView, make_console
from syrinx_operator.local.events import Event, describe_exit
from syrinx_operator.local.gpus import visible_gpus
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.sizing import with_gpu_replicas
from syrinx_operator.resource.spec import API_VERSION, KIND, TTSPipeline
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.contract.stages import Stage
from syrinx_stages.processes import mps

TAIL_LINES = 30


class Setup(Struct, frozen=True, kw_only=True):
    """Configuration of the service; what is not here follows from the device, as for a user who sets nothing else."""

    model: str | None
    """Checkpoint directory; None for the bundled voice."""
    device: Literal["cpu", "cuda"] = "cuda"
    engine: Literal["torch", "vllm"] = "torch"
    """Engine of the talker."""
    paced: bool = False
    """Whether the engines are simulated, see `gpu.paced`: as if on `gpus` GPUs, without any."""
    quiet: bool = False
    """Whether the codec silences each utterance's first frame, see `gpu.quiet`."""
    gpus: int = 1
    """Number of GPUs that talkers and codecs use."""
    standby: bool | None = None
    """Whether talkers and codecs have standbys; None: as for a user who does not say."""
    cells: int = 1
    """Number of Redis servers among which the replicas are divided."""

    @property
    def topology(self) -> str:
        """Describes what runs where."""
        if self.paced:
            text = "engines with simulated timing"
        elif self.device == "cpu":
            text = "talker and codec on the CPU"
        else:
            text = "as `syrinx up` runs them with only the device set"
        text += f", on {self.gpus} GPUs" if self.gpus > 1 else ""
        text += f", in {self.cells} cells" if self.cells > 1 else ""
        return text + (", the talker on vLLM" if self.engine == "vllm" else "")

    def pipeline(self) -> TTSPipeline:
        """Returns the resource."""
        standby = {} if self.standby is None else {"standby": self.standby}
        spec = {
            "model": {"path": self.model} if self.model else {"bundled": True},
            "talker": {"device": self.device, "engine": self.engine} | standby,
            "codec": {"device": self.device} | standby,
            "connector": {"managed": True, "cells": self.cells},
        }
        resource = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bench"}, "spec": spec}
        memory = () if self.paced else tuple(visible_gpus().values())[: self.gpus]
        return msgspec.convert(with_gpu_replicas(resource, lambda: memory or (0,) * self.gpus), TTSPipeline)


def _cards(setup: Setup) -> Sequence[str] | None:
    """Returns the GPUs to use; None if the machine has no choice. Raises `LocalError` if it has too few."""
    if setup.paced:
        return ()
    visible = tuple(visible_gpus()) if setup.device == "cuda" else ()
    if setup.gpus > max(1, len(visible)):
        raise LocalError(f"{setup.gpus} GPUs are needed, and {len(visible) or 'at most one'} can be used")
    return visible[: setup.gpus] or None


class System:
    """The running service."""

    def __init__(self) -> None:
        self.deaths: list[str] = []
        """Processes that died, with the reason."""

    @contextlib.asynccontextmanager
    async def running(self, setup: Setup) -> AsyncIterator[None]:
        """Runs the service. Raises `LocalError` or `RedisServerError`."""
        with contextlib.ExitStack() as stack:
            self._view = stack.enter_context(PipelineView(make_console(stderr=True), logs=False))
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-bench-")))
            if setup.paced:
                # Where there is no daemon, so that none is used.
                os.environ[mps.DIRECTORY] = str(self._directory)
            self._local = LocalPipeline(
                setup.pipeline(),
                directory=self._directory,
                observe=self._on_event,
                commands=_commands(setup),
                port=0,
                cards=_cards(setup),
            )
            async with self._local:
                await self._local.all_ready()
                yield

    @property
    def urls(self) -> list[str]:
        """URLs of the gateways."""
        return [child.url for child in self._local.processes if child.stage == Stage.GATEWAY and child.url]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        found = {child.name: child.pid for child in self._local.processes if child.pid is not None}
        return found | self._local.redis_pids

    def is_ready_again(self, name: str, pid: int) -> bool:
        """Returns whether a process is ready and no longer the one with a process id."""
        return any(each.name == name and each.is_ready and each.pid != pid for each in self._local.processes)

    @property
    def admin_urls(self) -> dict[str, str]:
        """URLs of the stages' metrics, by name."""
        return {member.name: member.admin_url for member in self._local.processes if member.admin_url}

    def _on_event(self, event: Event) -> None:
        self._view(event)
        if event.kind == "exited":
            self.deaths.append(f"{event.name}: {describe_exit(event.code)}")
            log = (self._directory / f"{event.name}.log").read_text("utf-8", "replace")
            print(*log.splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr, flush=True)


def _commands(setup: Setup) -> dict[Stage, Sequence[str]]:
    """Returns the commands of stages that are not started as usual."""
    module = (sys.executable, "-m")
    if setup.paced:
        return {stage: (*module, "gpu.paced", stage) for stage in (Stage.TALKER, Stage.CODEC)}
    return {Stage.CODEC: (*module, "gpu.quiet")} if setup.quiet else {}
