"""The service under test: local processes of Redis, talker, codec and gateways, as in `syrinx up`."""

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.local.console import PipelineView, make_console
from syrinx_operator.local.events import Event, describe_exit
from syrinx_operator.local.gpus import visible_gpus
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.sizing import with_gpu_replicas
from syrinx_operator.resource.spec import API_VERSION, KIND, TTSPipeline
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.contract.settings import TALKER_MEMORY
from syrinx_stages.contract.stages import Stage
from syrinx_stages.processes import mps

DRAIN_SECONDS = 2
RESIDENT = 1024
LEAD_LIMIT_SECONDS = 8
TAIL_LINES = 30

Variant = Literal["separate", "two-gpus", "mps", "defaults", "paced"]
VARIANTS: Mapping[Variant, tuple[str, str]] = {
    "separate": ("talker and codec as processes on one GPU", "run talker and codec in a process each (default)"),
    "two-gpus": ("talker and codec on one GPU each", "run the talker on one GPU and the codec on another"),
    "mps": ("talker and codec as processes on one GPU under MPS", "run both under CUDA's multi-process service"),
    "defaults": ("as `syrinx up` runs them with only the device set", "set the device and nothing else"),
    "paced": ("engines with simulated timing", "simulate the engines' timing, without a GPU: see gpu.paced"),
}
"""Description and help text of the ways in which talker and codec run."""


class Setup(Struct, frozen=True, kw_only=True):
    """Configuration of the service; part of the result file."""

    model: str | None
    """Checkpoint directory; None for the bundled voice."""
    device: Literal["cpu", "cuda"] = "cuda"
    engine: Literal["torch", "vllm"] = "torch"
    """Engine of the talker."""
    variant: Variant = "separate"
    quiet: bool = False
    """Whether the codec silences each utterance's first frame, see `gpu.quiet`."""
    gpus: int = 1
    """Number of GPUs that talkers and codecs use; with simulated engines, of talkers and of codecs."""
    cells: int = 1
    """Number of Redis servers among which the replicas are divided."""
    talkers: int = 1
    """Number of talkers on each GPU, with variant defaults. They divide the memory of one."""
    gateways: int = 2
    talker_rows: int = 256
    codec_rows: int = 32
    capture_rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    capture_frames: Sequence[int] = (2, 4, 8, 12)
    """Decoder calls are captured for each pair of rows and frames."""

    @property
    def topology(self) -> str:
        """Describes which processes share a GPU, and the talker's engine."""
        if self.device == "cpu" and self.variant != "paced":
            text = "talker and codec on the CPU"
        else:
            text, _ = VARIANTS[self.variant]
            text += f", on {self.gpus} GPUs" if self.variant == "defaults" and self.gpus > 1 else ""
            text += f", {self.talkers} talkers on each" if self.talkers > 1 else ""
        text += f", in {self.cells} cells" if self.cells > 1 else ""
        return text + (", the talker on vLLM" if self.engine == "vllm" else "")

    def pipeline(self) -> TTSPipeline:
        """Returns the resource."""
        model = {"path": self.model} if self.model else {"bundled": True}
        connector = {"managed": True, "cells": self.cells}
        if self.variant == "defaults":
            on_device = {"device": self.device}
            talker: dict[str, object] = {**on_device}
            if self.talkers > 1:
                talker |= {"replicas": self.talkers * self.gpus, "memoryFraction": TALKER_MEMORY / self.talkers}
            left_open = {"model": model, "talker": talker, "codec": on_device, "connector": connector}
            return _resource(left_open, self.gpus)
        stage: dict[str, object] = {"device": self.device, "drainSeconds": DRAIN_SECONDS}
        stage |= {"replicas": self.gpus} if self.variant == "paced" else {}
        pairs = [{"rows": rows, "frames": frames} for rows in self.capture_rows for frames in self.capture_frames]
        spec = {
            "model": model,
            "gateway": {
                **{"replicas": max(self.gateways, self.gpus), "port": 0, "drainSeconds": DRAIN_SECONDS},
                **{"maxQueue": 10_000, "maxQueueSeconds": 60},
            },
            "talker": {
                **{**stage, "engine": self.engine},
                **{"maxNumSeqs": self.talker_rows, "maxResident": RESIDENT, "leadLimitSeconds": LEAD_LIMIT_SECONDS},
            },
            "codec": {
                **stage,
                **{"maxNumSeqs": self.codec_rows, "maxResident": RESIDENT},
                "capturePairs": pairs if self.device == "cuda" or self.variant == "paced" else [],
            },
            "connector": connector,
            "tuning": {"mode": "Off", "bounds": {"capturePairs": {"max": 0}}},
        }
        return _resource(spec)


def _resource(spec: Mapping[str, object], gpus: int = 1) -> TTSPipeline:
    resource = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bench"}, "spec": spec}
    return msgspec.convert(with_gpu_replicas(resource, lambda: gpus), TTSPipeline)


def _cards(setup: Setup) -> Sequence[str] | None:
    """Returns the GPUs to use; None if the machine has no choice. Raises `LocalError` if it has too few."""
    if setup.variant == "paced":
        return None
    visible = visible_gpus() if setup.device == "cuda" else ()
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
            if setup.variant not in ("mps", "defaults"):
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

    @property
    def admin_urls(self) -> dict[str, str]:
        """URLs of the stages' metrics, by name."""
        return {member.name: member.admin_url for member in self._local.processes if member.admin_url}

    async def set_ramp(self, ramp: Sequence[int]) -> None:
        """Sets the chunk ramp of all codecs. Raises `httpx.HTTPError`."""
        headers = self._local.settings_headers
        async with httpx.AsyncClient(timeout=30.0, trust_env=False, headers=headers) as http:
            for member in self._local.processes:
                if member.stage == Stage.CODEC:
                    body = {"settings": {"chunk_ramp": list(ramp)}}
                    (await http.put(member.settings_url or "", json=body)).raise_for_status()

    def _on_event(self, event: Event) -> None:
        self._view(event)
        if event.kind == "exited":
            self.deaths.append(f"{event.name}: {describe_exit(event.code)}")
            log = (self._directory / f"{event.name}.log").read_text("utf-8", "replace")
            print(*log.splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr, flush=True)


def _commands(setup: Setup) -> dict[Stage, Sequence[str]]:
    """Returns the commands of stages that are not started as usual."""
    module = (sys.executable, "-m")
    if setup.variant == "paced":
        return {stage: (*module, "gpu.paced", stage) for stage in (Stage.TALKER, Stage.CODEC)}
    return {Stage.CODEC: (*module, "gpu.quiet")} if setup.quiet else {}
