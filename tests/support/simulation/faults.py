"""Faults: what a seed does to a run, and when."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from support.simulation.history import Owners
from support.simulation.network import DOWN, UP
from support.simulation.processes import KEYS

if TYPE_CHECKING:
    from support.simulation.scenario import World

FIRST, LAST = 0.5, 3.0
"""Seconds of a run between which faults begin."""
KEEPALIVE_SECONDS = 8.0
"""After this long Redis notices that a machine is lost."""


@dataclass(frozen=True)
class Fault:
    """One fault. `seconds` is how long it lasts."""

    kind: str
    at: float
    target: str = ""
    seconds: float = 0.0
    detail: Any = None
    after: str = ""
    """Begins shortly after this event of the history, `at` at the latest."""
    delay: float = 0.0
    """Seconds after the event."""

    @property
    def over_at(self) -> float:
        """When the run is free of it."""
        return self.at + self.seconds

    def __str__(self) -> str:
        detail = "" if self.detail is None else f" ({self.detail})"
        return f"{self.kind} {self.target} for {self.seconds:.2f} s{detail}"


def plan(chance: random.Random, replicas: list[str], clients: int) -> list[Fault]:
    """Returns the faults of a run, by time."""
    faults = [
        _near(chance, _draw(chance, replicas, clients), clients) for _ in range(chance.choice((1, 2, 2, 3, 4, 6)))
    ]
    # A second fail-over within seconds is another problem: that of the replica.
    data_loss = [fault for fault in faults if fault.kind in _REDIS_KINDS]
    return sorted((fault for fault in faults if fault not in data_loss[1:]), key=lambda fault: fault.at)


def _draw(chance: random.Random, replicas: list[str], clients: int) -> Fault:
    kind = chance.choice(_WEIGHTED)
    workers = [name for name in replicas if not name.startswith("gateway")]
    target = chance.choice(replicas if chance.random() < 0.2 else workers)
    at = chance.uniform(FIRST, LAST)
    if kind == "pause":
        return Fault(kind, at, target, _outage(chance))
    if kind == "partition":
        directions = chance.choice(((UP,), (DOWN,), (UP, DOWN)))
        return Fault(kind, at, target, _outage(chance), directions)
    if kind == "crash":
        return Fault(kind, at, target, chance.choice((0.1, 1.0, 2.5)), chance.choice(("process", "machine")))
    if kind == "slow":
        return Fault(kind, at, target, chance.uniform(0.5, 3.0), round(chance.uniform(0.05, 0.8), 3))
    if kind == "settings":
        return Fault(kind, at, chance.choice(workers), detail=_settings(chance))
    if kind == "departure":
        return Fault(kind, at, str(chance.randint(1, clients)))
    if kind == "fail-over":
        return Fault(kind, at, "redis", chance.uniform(0.05, 1.5), round(chance.choice((0.0, chance.random())), 3))
    return Fault(kind, at, target if kind in ("drain", "reset") else "redis", _REDIS_SECONDS[kind](chance))


def _near(chance: random.Random, fault: Fault, clients: int) -> Fault:
    """Moves half of the faults to an event of a request: a claim, its first entries, or its end."""
    if chance.random() < 0.5:
        return fault
    event = f"{chance.randint(1, clients)} {chance.choice(('queued', 'codes', 'audio', 'codes end', 'audio end'))}"
    return replace(fault, after=event, delay=chance.choice((0.002, 0.01, 0.2)) * chance.random())


def _outage(chance: random.Random) -> float:
    """Returns how long a process is absent: mostly longer than a lease."""
    return 6.0 if chance.random() < 0.1 else chance.choice((chance.uniform(0.2, 2.0), chance.uniform(2.1, 3.2)))


def _settings(chance: random.Random) -> dict[str, Any]:
    """Returns live settings; each worker takes those of its stage."""
    ramp = tuple(chance.choice((1, 2, 3, 8)) for _ in range(chance.randint(1, 3)))
    talker = {"max_num_seqs": chance.randint(1, 4), "lead_limit_seconds": chance.choice((0.3, 1.0, 8.0))}
    return {"talker": talker, "codec": {"max_num_seqs": chance.randint(1, 4), "chunk_ramp": ramp}}


_REDIS_KINDS = ("fail-over", "empty restart")
_WEIGHTED = (
    *("pause",) * 5, *("partition",) * 6, *("crash",) * 5, *("reset",) * 2, *("slow",) * 2, *("drain",) * 2,
    "settings", "departure", "full", *("fail-over",) * 3, "empty restart",
)  # fmt: skip
_REDIS_SECONDS: dict[str, Callable[[random.Random], float]] = {
    "drain": lambda chance: 0.0,
    "reset": lambda chance: 0.0,
    "full": lambda chance: chance.uniform(0.2, 3.0),
    "empty restart": lambda chance: chance.uniform(0.05, 1.5),
}


def _lag(fault: Fault) -> float:
    """Returns how far a replica is behind when it is promoted, in seconds."""
    return float(fault.detail) if fault.kind == "fail-over" else 0.0


class Injector:
    """Makes the faults of a plan happen in a world."""

    def __init__(self, world: "World", faults: Sequence[Fault]) -> None:
        self._world = world
        self._network = world.network
        self.faults = list(faults)
        """Those that have begun have their real time."""
        self._begun: set[int] = set()
        self._copies: dict[int, bytes] = {}
        world.history.on_event = self._on_event

    def schedule(self) -> None:
        """Schedules all faults."""
        for number, fault in enumerate(self.faults):
            self._later(max(fault.at - _lag(fault), 0.0), self._begin, number)

    def _on_event(self, event: str) -> None:
        for number, fault in enumerate(self.faults):
            if fault.after == event:
                self._later(self._world.loop.time() + fault.delay, self._begin, number)

    def _begin(self, number: int) -> None:
        if number in self._begun:
            return
        self._begun.add(number)
        fault = self.faults[number] = replace(
            self.faults[number], at=self._world.loop.time() + _lag(self.faults[number])
        )
        if fault.kind == "fail-over":
            self._copy(number)
        self._later(fault.at, self._happen, number, fault)

    @property
    def over_at(self) -> float:
        """When the run is free of faults."""
        return max((fault.over_at for fault in self.faults), default=0.0)

    def of(self, *kinds: str) -> Iterator[Fault]:
        """Yields the faults of some kinds."""
        return (fault for fault in self.faults if fault.kind in kinds)

    def _later(self, at: float, call: Callable[..., None], *arguments: Any) -> None:
        self._world.loop.call_outside(at, call, *arguments)

    def _happen(self, number: int, fault: Fault) -> None:
        self._world.history.note(f"FAULT {fault}")
        end = self._world.loop.time() + fault.seconds
        if fault.target == "redis":
            self._happen_to_redis(number, fault, end)
        elif fault.kind == "departure":
            self._world.clients[int(fault.target) - 1].depart()
        elif fault.kind == "partition":
            self._network.block(fault.target, set(fault.detail))
            self._later(end, self._network.heal, fault.target)
        elif fault.kind == "reset":
            self._network.reset(fault.target)
        elif fault.kind == "slow":
            link = self._network.link(fault.target)
            link.delay, normal = fault.detail, link.delay
            self._later(end, setattr, link, "delay", normal)
        else:
            self._happen_to_process(fault)

    def _happen_to_process(self, fault: Fault) -> None:
        replica = next(replica for replica in self._world.replicas if replica.name == fault.target)
        if fault.kind == "pause":
            replica.pause(fault.seconds)
        elif fault.kind == "crash":
            noticed = fault.detail == "process"
            replica.crash(noticed, fault.seconds)
            if not noticed:
                self._later(fault.at + KEEPALIVE_SECONDS, self._network.drop_dead, fault.target)
        elif fault.kind == "drain":
            replica.terminate()
        else:
            replica.apply(fault.detail[replica.stage])

    def _happen_to_redis(self, number: int, fault: Fault, end: float) -> None:
        if fault.kind == "full":
            self._world.redis.full = True
            self._later(end, setattr, self._world.redis, "full", False)
            return
        self._network.redis_is_down = True
        owners = self._owners()
        self._later(end, setattr, self._network, "redis_is_down", False)
        if fault.kind == "fail-over":
            self._world.redis.replicas_lag = False
            self._world.redis.restart(self._copies[number])
            self._world.history.roll_back(number, owners)
        else:
            self._world.redis.restart()
            self._world.history.lose_everything(owners)

    def _owners(self) -> Owners:
        store, requests = self._world.redis.store, self._world.history.seeds
        owners = {request_id: store.find(KEYS.owners(request_id).encode()) for request_id in requests}
        return {request_id: dict(tokens) for request_id, tokens in owners.items() if tokens is not None}

    def _copy(self, number: int) -> None:
        self._world.redis.replicas_lag = True
        self._copies[number] = self._world.redis.snapshot()
        self._world.history.mark(number, self._owners())
