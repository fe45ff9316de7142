"""Runs a pipeline as local processes: Redis, talkers, codecs and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from syrinx_operator import __version__
from syrinx_operator.local.events import Event, Observer
from syrinx_operator.local.redis import ManagedRedis
from syrinx_operator.local.supervisor import Child, Member
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import NotLocal, Stage, StageProcess, plan_local
from syrinx_stages.connector.server import RedisServerError
from syrinx_stages.contract.settings import StageConfig

START_SECONDS = 300.0
"""Maximum time for a stage to load its model."""
KILL_SECONDS = 5.0
"""Seconds after a stage's own drain time until it is killed."""
STOP_ORDER = (Stage.GATEWAY, Stage.TALKER, Stage.CODEC)
"""Drain order: producers before consumers, so that no stream is cut off."""


class LocalError(Exception):
    """The pipeline cannot run locally. The message contains advice."""


def ignore(event: Event) -> None:
    """An observer that discards events."""


class LocalPipeline:
    """A local pipeline as an async context manager; its API is at `gateway_url`.

    Entering raises `StageFailed` or `LocalError` if it cannot start. Leaving drains it. Processes die with this one.
    """

    def __init__(
        self,
        pipeline: TTSPipeline,
        *,
        directory: Path | None = None,
        port: int | None = None,
        observe: Observer = ignore,
        start_timeout: float = START_SECONDS,
        commands: Mapping[Stage, Sequence[str]] | None = None,
        additional: Sequence[StageProcess] = (),
    ) -> None:
        """`directory` is for configurations and logs of the stages (default: a temporary directory).

        `port` overrides the gateway's port, `commands` the programs by stage. `additional` processes run beside those
        of the pipeline. Raises `LocalError` for a model or GPUs that are available only on Kubernetes.
        """
        self.pipeline = pipeline
        self.processes: list[Child] = []
        self._directory = directory
        self._observe = observe
        self._start_timeout = start_timeout
        self._commands = commands or {}
        self._plan = [*(_on_port(process, port) for process in _plan(pipeline)), *additional]
        self._cleanup = contextlib.AsyncExitStack()

    @property
    def members(self) -> list[Member]:
        """The stages of all processes."""
        return [member for child in self.processes for member in child.members]

    @property
    def configurations(self) -> list[StageConfig]:
        """The resolved configurations of all stages, before addresses are known."""
        return [config for process in self._plan for _, config in process.stages]

    @property
    def gateway_url(self) -> str:
        """URL of the pipeline's API."""
        return self._gateway.url or ""

    @property
    def admin_url(self) -> str:
        """URL of the gateway's health and metrics."""
        return self._gateway.admin_url or ""

    @property
    def _gateway(self) -> Child:
        gateway = next(child for child in self.processes if child.stage == Stage.GATEWAY)
        assert gateway.url is not None, "set when the pipeline is ready"
        return gateway

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        directory = self._directory
        if directory is None:
            directory = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-")))
        environment = stage_environment(os.environ) | await self._redis()
        self.processes = [
            Child(
                process,
                directory=directory,
                environment=environment,
                observe=self._observe,
                start_timeout=self._start_timeout,
                command=self._commands.get(process.stage),
            )
            for process in self._plan
        ]
        for child in self.processes:
            child.start()
        await asyncio.gather(*(child.ready() for child in self.processes))

    async def stop(self) -> None:
        """Drains the stages in order, then stops Redis. Idempotent."""
        for stage in STOP_ORDER:
            stopping = (
                child.stop(child.drain_seconds + KILL_SECONDS) for child in self.processes if child.stage == stage
            )
            await asyncio.gather(*stopping)
        await self._cleanup.aclose()

    def kill(self) -> None:
        """Kills all stages. `stop` then returns soon."""
        for child in self.processes:
            child.kill()

    async def _redis(self) -> dict[str, str]:
        """Returns the environment variables for Redis. Starts the managed Redis."""
        connector = self.pipeline.spec.connector
        if connector.url is None:
            try:
                redis = await self._cleanup.enter_async_context(ManagedRedis(self._observe))
            except RedisServerError as error:
                raise LocalError(str(error)) from None
            return redis.environment
        if connector.password_env is None:
            return {"REDIS_URL": connector.url}
        password = os.environ.get(connector.password_env)
        if not password:
            raise LocalError(
                f"the environment variable {connector.password_env} from spec.connector.passwordEnv is not set; "
                "it must contain the password of Redis"
            )
        return {"REDIS_URL": connector.url, "REDIS_PASSWORD": password}


def stage_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a stage: unbuffered logs, and one compute thread, so that results are reproducible."""
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {name: value for name, value in inherited.items() if name not in ("REDIS_URL", "REDIS_PASSWORD")} | own


def _plan(pipeline: TTSPipeline) -> list[StageProcess]:
    try:
        return plan_local(pipeline, __version__)
    except NotLocal as error:
        raise LocalError(str(error)) from None


def _on_port(process: StageProcess, port: int | None) -> StageProcess:
    if port is None or process.stage != Stage.GATEWAY:
        return process
    return msgspec.structs.replace(process, config=msgspec.structs.replace(process.config, port=port))
