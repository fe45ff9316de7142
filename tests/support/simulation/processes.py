"""The simulated processes: gateways, talkers and codecs with their real services."""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from support.simulation.engines import READING, Pace, SimulatedCodecEngine, SimulatedTalkerEngine
from support.simulation.loop import Process
from support.simulation.network import Network, NetworkLoop
from syrinx_stages.codec.service import CodecService
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.gateway.http.api import create_app
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.process import run_service
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate
from syrinx_stages.runtime.telemetry.metrics import Metrics
from syrinx_stages.talker.service import TalkerService

URL = "redis://redis:6379"
KEYS = Keys("p", "g")
RESPONSE_SECONDS = 2.0
"""How long the HTTP server of a gateway that exits waits for responses in progress."""
RESTART_SECONDS = 0.3
"""Pause before a process that has ended is started again."""


@dataclass
class Cluster:
    """What all processes share."""

    loop: NetworkLoop
    network: Network
    chance: random.Random
    failures: list[str]
    """What must never happen in a process."""
    rows: list[str] = field(default_factory=lambda: [""])
    """The process of each engine row, by the row's number."""

    def rows_of(self, process: str) -> Iterator[int]:
        """Yields the numbers of the rows of a process, as it opens them."""
        while True:
            self.rows.append(process)
            yield len(self.rows) - 1


class _NoMetrics:
    """Metrics of any kind that record nothing: they would take a tenth of the time."""

    registry = tracer = None

    def __getitem__(self, metric: Any) -> "_NoMetrics":
        return self

    def _ignore(self, *values: Any) -> "_NoMetrics":
        return self

    labels = set = inc = dec = observe = clear = _ignore


class Replica(ABC):
    """One replica of a stage, through all its restarts."""

    stage: str

    def __init__(self, cluster: Cluster, name: str, config: StageConfig) -> None:
        self.cluster = cluster
        self.name = name
        self.config = config
        self.process = Process(name)
        self.service: Any = None
        self.restarts = True
        """It is started again when it ends."""
        self._stop: asyncio.Event

    @abstractmethod
    def build(self, connector: RedisConnector, metrics: Metrics) -> Any:
        """Creates the service."""

    def metrics(self) -> Metrics:
        """Returns the metrics of a new process."""
        return cast(Metrics, _NoMetrics())

    def start(self) -> None:
        """Starts a new process, unless the run is over."""
        if not self.restarts:
            return
        self.process = Process(self.name)
        self.process.clock_skew = self.cluster.chance.uniform(-0.05, 0.05)
        self._stop = asyncio.Event()
        with self.cluster.loop.within(self.process):
            self.cluster.loop.create_task(self._run(self.process, self._stop))

    async def _run(self, process: Process, stop: asyncio.Event) -> None:
        """The life of one process, as in `runtime.process`."""
        connector = RedisConnector(URL, KEYS)
        service = self.service = self.build(connector, self.metrics())
        try:
            await run_service(service, stop, self.config.drain_seconds)
        except Exception as error:
            # What is left of a crashed process is closed at the end of the run.
            if process.alive:
                self.cluster.failures.append(f"{self.name} failed: {error!r}")
        finally:
            await service.close()
            await self.end_responses()
            await connector.close()
            process.end()
            with self.cluster.loop.within(None):
                self.cluster.loop.call_soon(self._on_end, process)

    @abstractmethod
    async def end_responses(self) -> None:
        """Ends what the HTTP server still sends."""

    def _on_end(self, process: Process) -> None:
        self.cluster.network.end(self.name, noticed=True)
        if tasks := [task for task in process.tasks if not task.done()]:
            # The task that ends the process is the first one.
            self.cluster.failures += [f"{self.name} left a task behind: {task!r}" for task in tasks[1:]]
        self.restart(RESTART_SECONDS)

    def restart(self, seconds: float) -> None:
        """Starts a new process after a pause."""
        if self.restarts:
            with self.cluster.loop.within(None):
                self.cluster.loop.call_later(seconds, self.start)

    def crash(self, noticed: bool, restart_after: float) -> None:
        """Kills the process, or its machine: then Redis does not notice."""
        if self.process.alive:
            self.process.end()
            self.cluster.network.end(self.name, noticed)
            self.restart(restart_after)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        with self.cluster.loop.within(self.process):
            self.cluster.loop.call_soon(self._stop.set)

    def pause(self, seconds: float) -> None:
        """Sends SIGSTOP, and later SIGCONT."""
        process, loop = self.process, self.cluster.loop
        if process.alive and not process.paused:
            loop.pause(process)
            with loop.within(None):
                loop.call_later(seconds, loop.resume, process)

    def apply(self, settings: dict[str, Any]) -> None:
        """Changes the live settings, as `PUT /settings` does."""

        def change() -> None:
            self.service.live.apply(SettingsUpdate(settings))
            self.service.settings_changed()

        if self.process.alive and self.service is not None:
            with self.cluster.loop.within(self.process):
                self.cluster.loop.call_soon(change)

    @property
    def serves(self) -> bool:
        """The process runs and is ready."""
        return self.process.alive and self.service is not None and self.service.ready() is None


class Worker(Replica):
    """A talker or codec; `engine` is that of the last process."""

    engine: Any

    def __init__(self, cluster: Cluster, name: str, config: StageConfig, pace: Pace, depth: int) -> None:
        super().__init__(cluster, name, config)
        self._pace = pace
        self._depth = depth

    async def end_responses(self) -> None:
        """A worker sends none."""

    def leftovers(self) -> list[str]:
        """Returns what an idle worker must not hold."""
        service = self.service
        held = {"rows": service.rows, "claims": service.ownership.claims, "engine rows": self.engine.rows}
        return [f"{self.name} still has {what}: {sorted(value)}" for what, value in held.items() if value]


class Talker(Worker):
    stage = "talker"

    def build(self, connector: RedisConnector, metrics: Metrics) -> TalkerService:
        cluster, config = self.cluster, self.config
        self.engine = SimulatedTalkerEngine(cluster.loop, self._pace, cluster.rows_of(self.name), self._depth)
        live = LiveSettings(config.talker, 0, config.max_resident, cluster.loop.time)
        load: Callable[[], Any] = lambda: (self.engine, READING)  # noqa: E731
        return TalkerService(connector, load, self.name, config.max_resident, live, metrics)


class Codec(Worker):
    stage = "codec"

    def build(self, connector: RedisConnector, metrics: Metrics) -> CodecService:
        cluster, config = self.cluster, self.config
        self.engine = SimulatedCodecEngine(cluster.loop, self._pace, cluster.rows_of(self.name), self._depth)
        live = LiveSettings(config.codec, 0, config.max_resident, cluster.loop.time)
        load: Callable[[], Any] = lambda: self.engine  # noqa: E731
        return CodecService(connector, load, self.name, config.max_resident, live, metrics)


class Gateway(Replica):
    """A gateway and its public application, without an HTTP server."""

    stage = "gateway"

    def __init__(self, cluster: Cluster, name: str, config: StageConfig) -> None:
        super().__init__(cluster, name, config)
        self.app: Any = None
        self.responses: dict[asyncio.Task[None], Callable[[], None]] = {}
        """Requests in progress, and what disconnects their clients."""

    def build(self, connector: RedisConnector, metrics: Metrics) -> GatewayService:
        service = GatewayService(self.config, [connector], metrics)
        self.app = create_app(service)
        self.responses = {}
        return service

    def serve(self, exchange: Any, disconnect: Callable[[], None]) -> asyncio.Task[None]:
        """Runs one HTTP exchange in the gateway's process."""
        with self.cluster.loop.within(self.process):
            task: asyncio.Task[None] = self.cluster.loop.create_task(exchange)
        responses = self.responses
        responses[task] = disconnect
        task.add_done_callback(lambda _: responses.pop(task))
        return task

    async def end_responses(self) -> None:
        if not self.responses:
            return
        await asyncio.wait(list(self.responses), timeout=RESPONSE_SECONDS)
        for task, disconnect in list(self.responses.items()):
            disconnect()
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*self.responses, return_exceptions=True)

    def crash(self, noticed: bool, restart_after: float) -> None:
        if self.process.alive:
            for disconnect in list(self.responses.values()):
                disconnect()
        super().crash(noticed, restart_after)
