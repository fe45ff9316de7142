"""Runs a pipeline as local processes: Redis, talkers, codecs and gateways."""

import asyncio
import contextlib
import errno
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from msgspec import structs

from syrinx_operator import __version__
from syrinx_operator.local import gpus
from syrinx_operator.local.backoff import Backoff
from syrinx_operator.local.events import Event, Observer, exited, ready, stopped
from syrinx_operator.local.supervisor import Child
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import ENVIRONMENT, LocalError, StageProcess, plan_local, tracing_environment
from syrinx_stages.connector.server import RedisServer, RedisServerError
from syrinx_stages.contract.settings import TOKEN_HEADER, TOKEN_VARIABLE, StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.http.listening import bind

START_SECONDS = 300.0
"""Maximum time for a stage to load its model."""
KILL_SECONDS = 10.0
"""Seconds after a stage's own drain time until it is killed."""
STOP_ORDER = (Stage.GATEWAY, Stage.TALKER, Stage.CODEC)
"""Drain order: producers before consumers, so that no stream is cut off."""


class LocalPipeline:
    """A local pipeline as an async context manager; its API is at `gateway_url`.

    Entering raises `LocalError` if it cannot start. Leaving drains it. Processes die with this one.
    """

    def __init__(
        self,
        pipeline: TTSPipeline,
        *,
        directory: Path | None = None,
        host: str | None = None,
        port: int | None = None,
        observe: Observer = lambda event: None,
        start_timeout: float = START_SECONDS,
        commands: Mapping[Stage, Sequence[str]] | None = None,
        cards: Sequence[str] | None = None,
    ) -> None:
        """`directory` is for configurations and logs of the stages (default: a temporary directory).

        `host` is the address of the API (default: loopback), `port` overrides the gateway's port, `commands` the
        programs by stage. `cards` are the UUIDs of the GPUs to use (default: all visible ones).
        Raises `LocalError` for what is available only on Kubernetes.
        """
        if port is not None:
            gateway = structs.replace(pipeline.spec.gateway, port=port)
            pipeline = structs.replace(pipeline, spec=structs.replace(pipeline.spec, gateway=gateway))
        self.pipeline = pipeline
        self.processes: list[Child] = []
        self.settings_headers = {TOKEN_HEADER: secrets.token_urlsafe(32)}
        """Headers of requests for the stages' settings: a token of this run."""
        self.redis_pids: dict[str, int] = {}
        """Process ids of the Redis servers that this pipeline runs, by name."""
        self._directory = directory
        self._observe = observe
        self._start_timeout = start_timeout
        self._commands = commands or {}
        self._plan = plan_local(resolve(pipeline), __version__)
        self._host = host
        self._cards = cards
        self._cleanup = contextlib.AsyncExitStack()

    @property
    def gateways(self) -> list[Child]:
        """The gateways; all have the same URL."""
        return [child for child in self.processes if child.stage == Stage.GATEWAY]

    @property
    def gateway_url(self) -> str:
        """URL of the pipeline's API; empty before it is ready."""
        return self.gateways[0].url or ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        directory = self._directory
        if directory is None:
            directory = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-")))
        self._plan = self._at_its_address()
        # As on Kubernetes, the environment of the user takes precedence.
        inherited = tracing_environment(self.pipeline.spec) | os.environ
        environment = stage_environment(inherited) | await self._redis_environment()
        environment[TOKEN_VARIABLE] = self.settings_headers[TOKEN_HEADER]
        placed = await self._placed()
        environment |= await self._cleanup.enter_async_context(
            gpus.shared_gpu(self._plan, placed, environment, self._observe)
        )
        visible = {name: {gpus.VISIBLE: ",".join(cards)} for name, cards in placed.items()}
        self.processes = [
            Child(
                process,
                directory=directory,
                environment=environment | visible.get(process.config.replica, {}),
                observe=self._observe,
                start_timeout=self._start_timeout,
                is_served=self._is_served,
                command=self._commands.get(process.stage),
            )
            for process in self._plan
        ]
        serving = [child for child in self.processes if not child.is_standby]
        for child in serving:
            child.start()
        await asyncio.gather(*(child.ready() for child in serving))
        # Not before: a replica measures its steps while it warms up.
        for child in self.processes:
            if child.is_standby:
                child.start()

    async def all_ready(self) -> None:
        """Waits until the standbys are ready, too. Raises `LocalError` if one cannot start."""
        await asyncio.gather(*(child.ready() for child in self.processes))

    async def stop(self) -> None:
        """Drains the stages in order, then stops Redis. Idempotent."""
        for stage in STOP_ORDER:
            children = [child for child in self.processes if child.stage == stage]
            await asyncio.gather(*(child.stop(child.drain_seconds + KILL_SECONDS) for child in children))
        await self._cleanup.aclose()

    def kill(self) -> None:
        """Kills all stages. `stop` then returns soon."""
        for child in self.processes:
            child.kill()

    def _is_served(self, stage: Stage) -> bool:
        """Whether a replica of the stage is ready."""
        return any(child.is_ready for child in self.processes if child.stage == stage)

    def _at_its_address(self) -> list[StageProcess]:
        """Returns the processes with the address of the API, which no other process has. Raises `LocalError`."""
        gateway = next(process.config for process in self._plan if process.stage == Stage.GATEWAY)
        gateway = structs.replace(gateway, api_host=self._host)
        address = {"api_host": self._host, "port": self._cleanup.enter_context(_reserved_port(gateway))}
        return [
            structs.replace(each, config=structs.replace(each.config, **address))
            if each.stage == Stage.GATEWAY
            else each
            for each in self._plan
        ]

    async def _placed(self) -> dict[str, tuple[str, ...]]:
        """Returns the GPUs of each process; none if there is no choice."""
        if all(process.config.device != "cuda" for process in self._plan):
            return {}
        cards = tuple(await asyncio.to_thread(gpus.visible_gpus)) if self._cards is None else self._cards
        if self._cards is None and len(cards) < 2:
            return {}
        placed = gpus.place(self._plan, cards)
        if placed:
            self._observe(gpus.describe(placed, cards))
        return placed

    async def _redis_environment(self) -> dict[str, str]:
        connector = self.pipeline.spec.connector
        if connector.url is None:
            return await self._managed_environment(connector.cells)
        url = " ".join(connector.urls())
        if connector.password_env is None:
            return {"REDIS_URL": url}
        password = os.environ.get(connector.password_env)
        if not password:
            raise LocalError(
                f"the environment variable {connector.password_env} from spec.connector.passwordEnv is not set; "
                "it must contain the password of Redis"
            )
        return {"REDIS_URL": url, "REDIS_PASSWORD": password}

    async def _managed_environment(self, cells: int) -> dict[str, str]:
        """Starts a Redis for each cell. All have one password."""
        urls, password = [], secrets.token_urlsafe(24)
        for cell in range(cells):
            name = f"redis-{cell}" if cells > 1 else "redis"
            server = _managed_redis(name, password, self._observe, self.redis_pids)
            urls.append(await self._cleanup.enter_async_context(server))
        return {"REDIS_URL": " ".join(urls), "REDIS_PASSWORD": password}


@contextlib.contextmanager
def _reserved_port(gateway: StageConfig) -> Iterator[int]:
    """Yields the port of the gateways, at which nothing else listens. Raises `LocalError`.

    If several share it, only they can listen there until the end; they find a free one for port 0.
    """
    host, port = gateway.public_host, gateway.port
    with contextlib.ExitStack() as stack:
        try:
            # Without SO_REUSEPORT, so that it fails if another pipeline shares the port among its gateways.
            with bind(host, port) as alone:
                alone.listen()
                found = int(alone.getsockname()[1])
            if gateway.shares_port:
                port = found
                stack.enter_context(bind(host, port, shares_port=True))
        except OSError as error:
            reason = f"cannot listen on {host or '*'}:{port}: {error.strerror or error}"
            raise LocalError(f"{reason}; {_listening_advice(error)}") from None
        yield port


def _listening_advice(error: OSError) -> str:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return "choose another port with --port (0: any free one)"
    return "--host takes an address of this machine, for example 127.0.0.1 (only this machine) or 0.0.0.0 (all)"


def stage_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a stage: unbuffered logs, and one compute thread, so that results are reproducible."""
    kept = {name: value for name, value in inherited.items() if name not in ("REDIS_URL", "REDIS_PASSWORD")}
    return kept | ENVIRONMENT


@contextlib.asynccontextmanager
async def _managed_redis(name: str, password: str, observe: Observer, pids: dict[str, int]) -> AsyncIterator[str]:
    """Runs a Redis server, which is restarted at the same address, and yields its URL. Keeps its entry of `pids`."""

    def start(port: int | None = None) -> RedisServer:
        observe(Event("starting", name, "starting"))
        begin = time.monotonic()
        server = RedisServer(port, password)
        pids[name] = server.process.pid
        observe(ready(name, server.url, time.monotonic() - begin))
        return server

    try:
        # In this thread, because the server dies with the thread that started it. Takes about 50 ms.
        server = start()
    except RedisServerError as error:
        raise LocalError(str(error)) from None

    async def supervise() -> None:
        nonlocal server
        backoff = Backoff()
        while True:
            begin = time.monotonic()
            code = await asyncio.to_thread(server.process.wait)
            delay = backoff.delay(code, time.monotonic() - begin, alone=True)
            observe(exited(name, code, delay))
            await asyncio.sleep(delay)
            with contextlib.suppress(RedisServerError):
                dead, server = server, start(server.port)
                dead.stop()

    watch = asyncio.create_task(supervise(), name=f"supervise {name}")
    try:
        yield server.url
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        begin = time.monotonic()
        server.stop()
        observe(stopped(name, 0, time.monotonic() - begin))
