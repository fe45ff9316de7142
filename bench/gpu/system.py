"""The service under test: local processes of Redis, talker, codec and gateways, as in `syrinx up`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx
import msgspec
from msgspec import Struct, structs

from syrinx_operator import __version__
from syrinx_operator.local.events import Event, Exited, Log, describe_exit
from syrinx_operator.local.pipeline import LocalPipeline, stage_environment
from syrinx_operator.local.supervisor import Child, Member
from syrinx_operator.resource.spec import (
    API_VERSION,
    KIND,
    CaptureShape,
    CodecSpec,
    ConnectorSpec,
    GatewaySpec,
    Metadata,
    ModelSpec,
    PipelineSpec,
    TalkerSpec,
    TTSPipeline,
    TuningSpec,
)
from syrinx_operator.resource.stage_config import Stage, plan_local
from syrinx_stages.connector.server import RedisServer

START_SECONDS = 240.0
DRAIN_SECONDS = 2
PASSWORD = "SYRINX_BENCH_REDIS_PASSWORD"
TAIL_LINES = 30


class Setup(Struct, frozen=True, kw_only=True):
    """Configuration of the service; part of the result file."""

    model: str | None
    """Checkpoint directory; None for the bundled voice."""
    device: Literal["cpu", "cuda"]
    engine: Literal["torch", "vllm"] = "torch"
    """Engine of the talker."""
    colocated: bool = False
    """Run talker and codec in one process."""
    two_gpus: bool = False
    """Run the talker on GPU 0 and the codec on GPU 1."""
    mps: bool = False
    """Run both under CUDA's multi-process service on one GPU."""
    paced: bool = False
    """Simulate the engines' timing: see `gpu.paced`."""
    gateways: int = 2
    talker_rows: int = 128
    codec_rows: int = 32
    resident: int = 1024
    """Maximum number of streams resident in talker and codec."""
    lead_limit_seconds: float = 8.0
    capture_rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    capture_frames: Sequence[int] = (2, 4, 8, 12)
    """Decoder calls are captured for each pair of rows and frames."""

    def pipeline(self, redis_url: str) -> TTSPipeline:
        """Returns the resource."""
        shapes = tuple(
            CaptureShape(rows=rows, frames=frames)
            for rows in self.capture_rows
            for frames in self.capture_frames
            if rows <= self.codec_rows
        )
        spec = PipelineSpec(
            model=ModelSpec(bundled=True) if self.model is None else ModelSpec(path=self.model),
            gateway=GatewaySpec(port=0, max_queue=10_000, max_queue_seconds=60.0, drain_seconds=DRAIN_SECONDS),
            talker=TalkerSpec(
                device=self.device,
                engine=self.engine,
                max_num_seqs=self.talker_rows,
                max_resident=self.resident,
                lead_limit_seconds=self.lead_limit_seconds,
                drain_seconds=DRAIN_SECONDS,
            ),
            codec=self._codec(shapes),
            topology="Colocated" if self.colocated else "Separate",
            connector=ConnectorSpec(url=redis_url, password_env=PASSWORD),
            tuning=TuningSpec(mode="Off"),
        )
        return TTSPipeline(api_version=API_VERSION, kind=KIND, metadata=Metadata(name="bench"), spec=spec)

    def _codec(self, shapes: tuple[CaptureShape, ...]) -> CodecSpec:
        spec = CodecSpec(
            max_num_seqs=self.codec_rows,
            max_resident=self.resident,
            capture_pairs=shapes if self.device == "cuda" or self.paced else (),
        )
        # A colocated codec takes these settings from the talker.
        return spec if self.colocated else structs.replace(spec, device=self.device, drain_seconds=DRAIN_SECONDS)


class System:
    """An async context manager that runs the service.

    Entering raises `StageFailed`, `LocalError` or `RedisServerError`. All processes end with this one.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cleanup = contextlib.AsyncExitStack()
        self._log_tails: dict[str, deque[str]] = {}
        self.deaths: list[str] = []
        """Processes that died, with the reason."""

    @property
    def urls(self) -> list[str]:
        """URLs of the gateways."""
        return [child.url for child in self._children if child.stage == Stage.GATEWAY and child.url]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        found = {child.name: child.pid for child in self._children if child.pid is not None}
        return {**found, "redis": self._redis.process.pid}

    @property
    def admin_urls(self) -> dict[str, str]:
        """URLs of the stages' metrics and settings, by name."""
        return {member.name: member.admin_url for member in self._members if member.admin_url}

    @property
    def _members(self) -> list[Member]:
        return [member for child in self._children for member in child.members]

    async def set_ramp(self, ramp: Sequence[int]) -> None:
        """Sets the chunk ramp of all codecs. Raises `httpx.HTTPError`."""
        async with httpx.AsyncClient(timeout=30.0, trust_env=False) as http:
            for member in self._members:
                if member.stage == Stage.CODEC:
                    body = {"settings": {"chunk_ramp": list(ramp)}}
                    (await http.put(f"{member.admin_url}/settings", json=body)).raise_for_status()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._cleanup.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cleanup.aclose()

    async def _start(self) -> None:
        directory = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-bench-")))
        if self._setup.mps:
            self._cleanup.enter_context(_mps_daemon(directory))
        self._redis = self._cleanup.enter_context(RedisServer())
        os.environ[PASSWORD] = self._redis.password
        pipeline = self._setup.pipeline(self._redis.url)
        local = LocalPipeline(
            pipeline,
            directory=directory,
            observe=self._on_event,
            start_timeout=START_SECONDS,
            commands=_commands(self._setup),
        )
        self._children: list[Child] = self._additional_gateways(pipeline, directory)
        await self._cleanup.enter_async_context(local)
        self._children = [*local.processes, *self._children]
        for child in self._children[len(local.processes) :]:
            child.start()
            self._cleanup.push_async_callback(child.stop, DRAIN_SECONDS)
            await child.ready()

    def _additional_gateways(self, pipeline: TTSPipeline, directory: Path) -> list[Child]:
        """Returns the gateways besides the one that `syrinx up` runs."""
        gateway = next(process for process in plan_local(pipeline, __version__) if process.stage == Stage.GATEWAY)
        environment = {"REDIS_URL": self._redis.url, "REDIS_PASSWORD": self._redis.password}
        return [
            Child(
                msgspec.structs.replace(
                    gateway, config=msgspec.structs.replace(gateway.config, replica=f"gateway-{number}")
                ),
                directory=directory,
                environment=stage_environment(os.environ) | environment,
                observe=self._on_event,
                start_timeout=START_SECONDS,
            )
            for number in range(1, self._setup.gateways)
        ]

    def _on_event(self, event: Event) -> None:
        match event:
            case Log(name=name, line=line):
                self._log_tails.setdefault(name, deque(maxlen=TAIL_LINES)).append(line)
            case Exited(name=name, code=code):
                self.deaths.append(f"{name}: {describe_exit(code)}")
                print(f"{name} died ({describe_exit(code)}). Its last log lines:", file=sys.stderr)
                print(*(f"  {line}" for line in self._log_tails.get(name, ())), sep="\n", file=sys.stderr, flush=True)


def _commands(setup: Setup) -> dict[Stage, Sequence[str]]:
    """Returns the commands of stages that are not started as usual; with two GPUs, each stage sees one."""
    stages = (Stage.TALKER, Stage.CODEC)
    if setup.paced:
        return {stage: (sys.executable, "-m", f"gpu.paced_{stage}") for stage in stages}
    if setup.two_gpus:
        module = [sys.executable, "-m"]
        return {
            stage: ("env", f"CUDA_VISIBLE_DEVICES={gpu}", *module, f"syrinx_stages.{stage}")
            for gpu, stage in enumerate(stages)
        }
    return {}


@contextlib.contextmanager
def _mps_daemon(directory: Path) -> Iterator[None]:
    """Runs a private daemon of CUDA's multi-process service for processes started within the context."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise FileNotFoundError("--mps needs nvidia-cuda-mps-control")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(directory)}
    (directory / "mps").mkdir()
    os.environ.update(variables)
    try:
        subprocess.run([control, "-d"], check=True, timeout=20)
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run([control], input=b"quit\n", check=False, timeout=20)
        for name in variables:
            os.environ.pop(name, None)
