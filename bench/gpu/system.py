"""The service under test: Redis, talker, codec and gateways as processes of this machine, like those of `syrinx up`."""

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
    """How the service is set up; all of it is written into the result."""

    model: str | None
    """A checkpoint's directory; None is the bundled voice."""
    device: Literal["cpu", "cuda"]
    engine: Literal["torch", "vllm"] = "torch"
    """What the talker computes with."""
    colocated: bool = False
    """Talker and codec in one process."""
    two_gpus: bool = False
    """The talker on GPU 0, the codec on GPU 1."""
    mps: bool = False
    """Both under CUDA's multi-process service, on one GPU."""
    paced: bool = False
    """Engines that only take their time: see `paced`."""
    gateways: int = 2
    talker_rows: int = 128
    codec_rows: int = 32
    resident: int = 1024
    """Streams that talker and codec hold state of."""
    lead_limit_seconds: float = 8.0
    capture_rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    capture_frames: Sequence[int] = (2, 4, 8, 12)
    """Decoder calls are captured at every pair of these."""

    def pipeline(self, redis_url: str) -> TTSPipeline:
        """The resource."""
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
        # In the talker's process it is shaped by the talker's fields.
        return spec if self.colocated else structs.replace(spec, device=self.device, drain_seconds=DRAIN_SECONDS)


class System:
    """`async with System(setup) as system:` has a service that speaks at `system.urls`.

    Entering raises `StageFailed`, `LocalError` or `RedisServerError`. Nothing outlives this process.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cleanup = contextlib.AsyncExitStack()
        self._tails: dict[str, deque[str]] = {}
        self.deaths: list[str] = []
        """Which processes died, and how."""

    @property
    def urls(self) -> list[str]:
        """The gateways' APIs."""
        return [child.url for child in self._children if child.stage == Stage.GATEWAY and child.url]

    @property
    def pids(self) -> dict[str, int]:
        """Every process by name."""
        found = {child.name: child.pid for child in self._children if child.pid is not None}
        return {**found, "redis": self._redis.process.pid}

    @property
    def admin_urls(self) -> dict[str, str]:
        """Where each stage's metrics and settings are, by name."""
        return {member.name: member.admin_url for member in self._members if member.admin_url}

    @property
    def _members(self) -> list[Member]:
        return [member for child in self._children for member in child.members]

    async def set_ramp(self, ramp: Sequence[int]) -> None:
        """Puts a chunk ramp in force. Raises `httpx.HTTPError`."""
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
            self._cleanup.enter_context(_multi_process_service(directory))
        self._redis = self._cleanup.enter_context(RedisServer())
        os.environ[PASSWORD] = self._redis.password
        pipeline = self._setup.pipeline(self._redis.url)
        local = LocalPipeline(
            pipeline,
            directory=directory,
            observe=self._note,
            start_timeout=START_SECONDS,
            commands=_commands(self._setup),
        )
        self._children: list[Child] = self._more_gateways(pipeline, directory)
        await self._cleanup.enter_async_context(local)
        self._children = [*local.processes, *self._children]
        for child in self._children[len(local.processes) :]:
            child.start()
            self._cleanup.push_async_callback(child.stop, DRAIN_SECONDS)
            await child.ready()

    def _more_gateways(self, pipeline: TTSPipeline, directory: Path) -> list[Child]:
        """`syrinx up` runs one."""
        gateway = next(process for process in plan_local(pipeline, __version__) if process.stage == Stage.GATEWAY)
        environment = {"REDIS_URL": self._redis.url, "REDIS_PASSWORD": self._redis.password}
        return [
            Child(
                msgspec.structs.replace(
                    gateway, config=msgspec.structs.replace(gateway.config, replica=f"gateway-{number}")
                ),
                directory=directory,
                environment=stage_environment(os.environ) | environment,
                observe=self._note,
                start_timeout=START_SECONDS,
            )
            for number in range(1, self._setup.gateways)
        ]

    def _note(self, event: Event) -> None:
        match event:
            case Log(name=name, line=line):
                self._tails.setdefault(name, deque(maxlen=TAIL_LINES)).append(line)
            case Exited(name=name, code=code):
                self.deaths.append(f"{name}: {describe_exit(code)}")
                print(f"{name} died ({describe_exit(code)}). Its last words:", file=sys.stderr)
                print(*(f"  {line}" for line in self._tails.get(name, ())), sep="\n", file=sys.stderr, flush=True)


def _commands(setup: Setup) -> dict[Stage, Sequence[str]]:
    """Where a stage is not started as usual: with two GPUs, each sees its own."""
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
def _multi_process_service(directory: Path) -> Iterator[None]:
    """CUDA's multi-process service of one's own, for the processes started meanwhile."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise FileNotFoundError("--mps needs nvidia-cuda-mps-control")
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(directory)}
    (directory / "mps").mkdir()
    os.environ.update(places)
    try:
        subprocess.run([control, "-d"], check=True, timeout=20)
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run([control], input=b"quit\n", check=False, timeout=20)
        for name in places:
            os.environ.pop(name, None)
