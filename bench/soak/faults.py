"""The faults of a run and their seeded order. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """A kind of fault."""

    KILL = "kill"
    """SIGKILL; the process is restarted."""
    TERM = "term"
    """SIGTERM: the process drains, exits and is restarted."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after `seconds`."""
    PARTITION = "partition"
    """No packet passes between the process and Redis for `seconds`; TCP delivers them afterwards."""
    PARTITION_TO_REDIS = "partition-to-redis"
    """As `PARTITION`, but only what the process sends is delayed: its writes arrive late."""
    PARTITION_FROM_REDIS = "partition-from-redis"
    """As `PARTITION`, but only what Redis sends is delayed: the process gets no replies to its writes."""
    SLOW = "slow"
    """Every packet between the process and Redis takes 0.2 s for `seconds`."""
    RESET = "reset"
    """All connections of the process to Redis are reset."""


PARTITIONS = (Kind.PARTITION, Kind.PARTITION_TO_REDIS, Kind.PARTITION_FROM_REDIS)
STAGE_KINDS = tuple(Kind)
SERVER_KINDS = (Kind.KILL, Kind.STOP)
"""The faults of a Redis server."""
_LASTING = (Kind.STOP, *PARTITIONS, Kind.SLOW)


class Target(Struct, frozen=True):
    """A process to inject faults into."""

    name: str
    kinds: Sequence[Kind]
    max_seconds: float
    """Longest duration of a fault."""


class Fault(Struct, frozen=True):
    """A fault of one process; `seconds` is 0 for a fault without duration."""

    kind: Kind
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f" for {self.seconds:.1f} s" if self.seconds else "")


MIN_SECONDS = 0.5
"""Shortest duration of a fault. A lease expires after 1 s, so some pauses are shorter and some longer."""


def draw(seed: int, targets: Sequence[Target]) -> Iterator[Fault]:
    """Yields faults forever: every kind of every target, in a random order, then again in another order."""
    generator = random.Random(seed)
    pairs = [(kind, target) for target in targets for kind in target.kinds]
    while True:
        for kind, target in generator.sample(pairs, len(pairs)):
            seconds = round(generator.uniform(MIN_SECONDS, target.max_seconds), 2) if kind in _LASTING else 0.0
            yield Fault(kind, target.name, seconds)


def count(faults: Sequence[Fault], group_of: Mapping[str, str]) -> dict[str, int]:
    """Returns the number of faults by group of targets and kind, for example `talker kill`."""
    names = sorted(f"{group_of[fault.target]} {fault.kind}" for fault in faults)
    return {name: names.count(name) for name in dict.fromkeys(names)}
