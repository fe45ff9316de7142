"""One run: processes, clients and faults of a seed, and what was wrong about it."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from support.memory_redis import MemoryRedis
from support.simulation.checks import check_client, check_history, may_leave_streams
from support.simulation.clients import Client, Wish
from support.simulation.engines import Pace
from support.simulation.environment import LISTENER_SECONDS, environment
from support.simulation.faults import Fault, Injector, plan
from support.simulation.history import History
from support.simulation.loop import START
from support.simulation.network import Network, NetworkLoop
from support.simulation.processes import KEYS, Cluster, Codec, Gateway, Replica, Talker
from syrinx_stages.contract.settings import CodecSettings, StageConfig, TalkerSettings

BOUND_SECONDS = 30.0
"""After the last fault, every request ends within this time."""
IDLE_SECONDS = LISTENER_SECONDS + 15.0
"""After the last request, nothing is left within this time: also of those whose gateway has crashed."""
EXIT_SECONDS = 15.0
"""After SIGTERM, a process ends within this time."""


@dataclass
class World:
    """A run in progress."""

    chance: random.Random
    planned: Sequence[Fault] | None = None
    """The faults; None draws them."""
    loop: NetworkLoop = field(default_factory=NetworkLoop)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(self.loop)
        # The server's timers belong to no process.
        self.redis = MemoryRedis(lambda: START + self.loop.time(), self._call_later, self.history.on_append)
        self.redis.replicas = 1
        self.network = self.loop.network = Network(self.loop, self.redis, self.chance)
        self.cluster = Cluster(self.loop, self.network, self.chance, self.violations)
        self.gateways = [Gateway(self.cluster, f"gateway-{n}", config()) for n in range(self.chance.choice((1, 2)))]
        self.talkers = [self._worker(Talker, n) for n in range(2)]
        self.codecs = [self._worker(Codec, n) for n in range(2)]
        self.clients = [Client(wish) for wish in self._wishes()]
        faults = plan(self.chance, [replica.name for replica in self.replicas], len(self.clients))
        self.injector = Injector(self, faults if self.planned is None else self.planned)

    @property
    def replicas(self) -> Sequence[Replica]:
        """All processes."""
        return [*self.gateways, *self.talkers, *self.codecs]

    def _worker(self, kind: type[Talker] | type[Codec], number: int) -> Talker | Codec:
        step = self.chance.choice((0.02, 0.1, 0.15, 0.3))
        pace = Pace(step, self.chance.uniform(0.01, 0.1), self.chance)
        depth = self.chance.choice((1, 2))
        settings = config(lead_limit_seconds=self.chance.choice((0.3, 8.0, 8.0)))
        return kind(self.cluster, f"{kind.stage}-{number}", settings, pace, depth)

    def _wishes(self) -> Iterator[Wish]:
        for number in range(1, self.chance.choice((1, 2, 2, 3)) + 1):
            sentences = self.chance.choice((1, 1, 2, 4))
            yield Wish(
                number=number,
                at=self.chance.uniform(0.3, 1.2),
                frames=self.chance.randint(3, 18) if sentences == 1 else 40,
                sentences=sentences,
                stream=self.chance.choice(("audio", "audio", "sse", None)),
                read_seconds=self.chance.choice((0.0, 0.0, 0.0, 0.1)),
            )

    def _call_later(self, seconds: float, callback: object) -> object:
        return self.loop.call_outside(self.loop.time() + seconds, callback)

    async def run(self) -> None:
        """Runs the scenario to its end."""
        self.injector.schedule()
        for replica in self.replicas:
            replica.start()
        exchanges = [asyncio.ensure_future(client.run(self.gateways)) for client in self.clients]
        await asyncio.wait(exchanges, timeout=self.injector.over_at + BOUND_SECONDS)
        await asyncio.sleep(max(0.0, self.injector.over_at - self.loop.time()))
        self.violations += check_history(self)
        for client in self.clients:
            self.violations += check_client(client, self)
        await self._become_idle()
        await self._stop()

    async def _become_idle(self) -> None:
        deadline = self.loop.time() + IDLE_SECONDS
        while leftovers := [*self._leftovers()]:
            if self.loop.time() > deadline:
                self.violations += leftovers
                return
            await asyncio.sleep(0.25)

    def _leftovers(self) -> Iterator[str]:
        for worker in (*self.talkers, *self.codecs):
            yield from worker.leftovers()
        released = {
            client.request_id for client in self.clients if client.over_at and not may_leave_streams(client, self)
        }
        for name in self.redis.store.names():
            if released & set(name.decode().split(":")):
                yield f"{name.decode()} is left"
        queued = self.redis.store.find(KEYS.requests.encode())
        if queued is not None and queued.ids and len(released) == len(self.clients):
            yield f"{len(queued.ids)} requests are left in the queue"

    async def _stop(self) -> None:
        for replica in self.replicas:
            replica.restarts = False
            replica.terminate()
        deadline = self.loop.time() + EXIT_SECONDS
        while running := [replica.name for replica in self.replicas if replica.process.alive]:
            if self.loop.time() > deadline:
                self.violations.append(f"SIGTERM does not end {running}")
                return
            await asyncio.sleep(0.1)
        names = self.redis.store.names()
        self.violations += [f"{name} never expires" for name in names if name not in self.redis.store.expires]


def config(lead_limit_seconds: float = 8.0) -> StageConfig:
    """Returns the configuration of a process."""
    return StageConfig(
        pipeline="p", generation="g", model="bundled", max_resident=4, drain_seconds=5.0,
        talker=TalkerSettings(max_num_seqs=4, lead_limit_seconds=lead_limit_seconds),
        codec=CodecSettings(max_num_seqs=4),
    )  # fmt: skip


def run(seed: int, faults: Sequence[Fault] | None = None, verbose: bool = False) -> World:
    """Runs a seed, with the faults that it draws or with those given."""
    chance = random.Random(seed)
    with environment(chance, verbose):
        world = World(chance, faults)
        world.loop.run(world.run())
    world.violations += world.loop.errors
    return world
