"""The real gateways, talkers and codecs of a scenario in simulated time, with engines that take a machine's times.

What the tuner sees is what it sees of any pipeline: the text of `/metrics`. How requests were served is what their
clients heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import msgspec
from msgspec.structs import replace

from simulator.engines import Device
from simulator.listeners import Listener, Outcome, Spoken, body_of
from simulator.scenario import Failure, Request, Scenario
from simulator.services import Counted, CountedGateway, TimedCodec, TimedTalker, Worker, config_of
from support.memory_redis import MemoryRedis
from support.simulation.environment import environment
from support.simulation.loop import START
from support.simulation.network import Network, NetworkLoop
from support.simulation.processes import Cluster
from syrinx_operator.observed.counters import Observation
from syrinx_operator.observed.evidence import ReplicaStats
from syrinx_operator.observed.snapshot import Snapshot, parse_metrics
from syrinx_operator.resource.knobs import Identity, Setting, live_settings
from syrinx_operator.tuner.decide import Assignment
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import WORKERS, Stage
from syrinx_stages.families import IMPLEMENTATION

AFTER_SECONDS = 30.0
"""Time after the last request in which it may still end."""
_IDENTITY = Identity(model="simulated", image="simulated", device="simulated")


class Ended(Exception):
    """Raised by a director: the run is over."""


class Diverted(Exception):
    """Raised by a director: `live` directs the rest of the run."""

    def __init__(self, live: Callable[[World], Awaitable[None]]) -> None:
        super().__init__()
        self.live = live


Director = Callable[["World"], float]
"""Called while a scenario runs; returns the seconds until the next call."""


class World:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.outcomes: list[Outcome] = []
        """Of the requests that have been sent, in order of time."""
        self._exchanges: set[asyncio.Future[None]] = set()
        """The requests in progress."""
        self._begun_at = 0.0
        chance = random.Random(f"network {scenario.seed}")
        self.loop = NetworkLoop()
        self._redis = MemoryRedis(lambda: START + self.loop.time(), self._call_later, lambda *_: None)
        self._redis.replicas = 1
        self.loop.network = Network(self.loop, self._redis, chance)
        self.cluster = Cluster(self.loop, self.loop.network, chance, [])
        self._devices: dict[int, Device] = {}
        self._config = config_of(scenario)
        self.gateways = [CountedGateway(self.cluster, "gateway-0", self._config)]
        counts = {Stage.TALKER: scenario.talkers, Stage.CODEC: scenario.codecs}
        self._hired: list[Worker] = []
        """All talkers and codecs that there ever were."""
        self._numbers = {stage: itertools.count() for stage in WORKERS}
        self.workers = {
            stage: [self._worker(stage, next(self._numbers[stage])) for _ in range(counts[stage])] for stage in WORKERS
        }
        self._is_diverted = False

    # Time -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the scenario began."""
        return float(self.loop.time()) - self._begun_at

    def clock(self, seconds: float | None = None) -> datetime:
        """Returns the date and time at a time of the scenario, now by default."""
        at = self.now if seconds is None else seconds
        return datetime.fromtimestamp(START + self._begun_at, UTC) + timedelta(seconds=at)

    def _call_later(self, seconds: float, callback: Any) -> Any:
        return self.loop.call_outside(self.loop.time() + seconds, callback)

    def run(self, director: Director = lambda _: 60.0) -> World:
        """Runs the scenario to its end, once. Raises RuntimeError if a service fails."""
        chance = random.Random(f"environment {self.scenario.seed}")
        with environment(chance, verbose=False), _task_type(self.scenario.task_type):
            process = os.getpid()
            try:
                self.loop.run(self._run(director))
            finally:
                if os.getpid() != process:
                    os._exit(1)  # A twin that failed must not go on as its parent would.
        return self

    async def _run(self, director: Director) -> None:
        everyone = [*self.gateways, *self._all_workers()]
        for replica in everyone:
            replica.start()
        while not all(replica.serves for replica in everyone):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self._begun_at = self.loop.time()
        for failure in self.scenario.failures:
            self._call_later(failure.at, lambda failure=failure: self._fail(failure))
        serving, directing = (asyncio.ensure_future(each) for each in (self._serve(), self._direct(director)))
        await asyncio.wait([serving, directing], return_when=asyncio.FIRST_COMPLETED)
        if self._is_diverted or directing.done():
            await directing
        directing.cancel()
        if problems := [*self.cluster.failures, *self.loop.errors]:
            raise RuntimeError(f"{self.scenario.name}: {problems[0]}")

    async def _serve(self) -> None:
        """Sends the requests, and waits until the last ones have ended."""
        exchanges = self._exchanges
        for number, request in enumerate(self.scenario.requests()):
            await asyncio.sleep(max(0.0, request.at - self.now))
            exchange = asyncio.ensure_future(self._listener(number, request).run(self.gateways))
            exchanges.add(exchange)
            exchange.add_done_callback(exchanges.discard)
        await asyncio.sleep(max(0.0, self.scenario.seconds - self.now))
        if exchanges:
            await asyncio.wait(exchanges, timeout=AFTER_SECONDS)

    async def _direct(self, director: Director) -> None:
        while True:
            try:
                pause = director(self)
            except Ended:
                return
            except Diverted as diverted:
                self._is_diverted = True
                await diverted.live(self)
                return
            await asyncio.sleep(pause)

    def _listener(self, number: int, request: Request) -> Listener:
        self.outcomes.append(outcome := Outcome(request.at))
        body = body_of(self.scenario.task_type, number, request.frames)
        wish = Spoken(number, 0.0, request.frames, content=body)
        return Listener(wish, clock=lambda: self.now, outcome=outcome)

    # Replicas -------------------------------------------------------------------------------------------------

    def _worker(self, stage: Stage, number: int) -> Worker:
        scenario = self.scenario
        if number not in self._devices:
            self._devices[number] = Device(self.loop, scenario.costs, f"device {scenario.seed} {number}")
        kind = TimedTalker if stage is Stage.TALKER else TimedCodec
        worker = kind(self.cluster, f"{stage}-{number}", self._config, self._devices[number], lambda: self.now)
        self._hired.append(worker)
        return worker

    def scale(self, counts: Mapping[Stage, int], start_seconds: float) -> None:
        """Sets the number of replicas of each stage.

        New ones start after `start_seconds`. Those that are too many finish their requests and end.
        """
        for stage, count in counts.items():
            workers = self.workers[stage]
            while len(workers) < count:
                worker = self._worker(stage, next(self._numbers[stage]))
                workers.append(worker)
                self._call_later(start_seconds, worker.start)
            for worker in workers[count:]:
                worker.leave()
            del workers[count:]

    def live_streams(self) -> int:
        """Returns the number of requests that wait or are served."""
        return len(self._exchanges)

    @property
    def replica_seconds(self) -> float:
        """Seconds of talkers and codecs that start, serve or drain."""
        return sum((self.now if worker.left_at is None else worker.left_at) - worker.came_at for worker in self._hired)

    def _all_workers(self) -> list[Worker]:
        return [worker for stage in WORKERS for worker in self.workers[stage]]

    def _fail(self, failure: Failure) -> None:
        self.workers[failure.stage][failure.replica].crash(noticed=True, restart_after=failure.down)

    # The operator's view --------------------------------------------------------------------------------------

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment. Candidates and labels end when they expire without renewal."""
        known = msgspec.to_builtins(self._config)
        base = {stage.value: known[stage] | live_settings(assignment.base, stage) for stage in WORKERS}
        self._config = msgspec.convert(known | base, StageConfig)
        for worker in self._all_workers():
            stage, candidate = Stage(worker.stage), assignment.candidate
            temporary = live_settings(candidate, stage) if candidate is not None else {}
            worker.put(stage, live_settings(assignment.base, stage), temporary)
        for gateway in self.gateways:
            gateway.put(Stage.GATEWAY, {}, {"arm": assignment.label} if assignment.label else {})

    def observe(self) -> Observation:
        """Returns what an operator observes now."""
        everyone: list[Counted] = [*self.gateways, *self._all_workers()]
        missing = [f"{each.name} is not ready" for each in everyone if not each.serves]
        return Observation(
            snapshots=tuple(self._snapshot(each) for each in everyone if each.serves),
            replicas=tuple(_stats(worker) for worker in self._all_workers()),
            identity=_IDENTITY,
            disruption="; ".join(missing),
        )

    def _snapshot(self, replica: Counted) -> Snapshot:
        text, _ = replica.exposition.encode("")
        return parse_metrics(replica.name, str(replica.stage), self.clock(), text.decode())


def _stats(worker: Worker) -> ReplicaStats:
    settings = msgspec.json.decode(msgspec.json.encode(worker.service.live.current)) if worker.serves else None
    return ReplicaStats(
        name=worker.name,
        stage=Stage(worker.stage),
        ready=worker.serves,
        restarts=worker.restarts_seen,
        settings=settings,
    )


@contextlib.contextmanager
def _task_type(task_type: TaskType) -> Iterator[None]:
    """Lets gateways have a checkpoint of this task type."""
    known = IMPLEMENTATION.describe("bundled")
    if task_type is not known.task_type:
        known = replace(known, task_type=task_type, voices=(), embedding_size=1024)
    with mock.patch.object(IMPLEMENTATION, "describe", lambda _: known):
        yield


def well(world: World) -> float:
    """Returns the ratio of requests that were served well."""
    limit = world.scenario.objective.seconds
    return sum(outcome.is_well(limit) for outcome in world.outcomes) / max(len(world.outcomes), 1)


def run_fixed(scenario: Scenario, setting: Setting) -> World:
    """Returns a run with a setting that stays."""
    return World(replace(scenario, initial=setting)).run()
