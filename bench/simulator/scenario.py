"""The simulated scenario: load, replicas and engine times, and the requests that follow from a seed."""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from simulator.costs import Costs
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.knobs import Setting
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.stages import Stage


class Phase(NamedTuple):
    """A part of a scenario with a stationary load. Arrivals do not depend on the service."""

    until: float
    """Seconds."""
    rate: float
    """Requests per second."""
    audio_seconds: float = 4.2
    """Mean length of a request's audio."""
    burst: float = 1.0
    """Mean requests of an arrival: 1 is a Poisson process, more are bursts of geometric size."""


class Request(NamedTuple):
    """A drawn request."""

    at: float
    """Seconds."""
    frames: int


class Failure(NamedTuple):
    """A replica that dies."""

    at: float
    stage: Stage
    replica: int
    down: float
    """Seconds until its next process starts."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A simulated pipeline, its load and failures. Runs with the same seed have the same requests."""

    name: str
    seed: int = 0
    task_type: TaskType = TaskType.CUSTOM_VOICE
    phases: tuple[Phase, ...]
    audio_spread: float = 0.5
    """Standard deviation of the log audio length."""
    objective: Objective
    initial: Setting
    talkers: int = 1
    codecs: int = 1
    costs: Costs
    resident: int = 32
    """Maximum requests of a replica."""
    max_queue_seconds: float = 2.0
    failures: tuple[Failure, ...] = ()

    @property
    def seconds(self) -> float:
        """The length of the scenario."""
        return self.phases[-1].until

    def requests(self) -> Iterator[Request]:
        """Yields the requests in order of time."""
        randoms, now = random.Random(f"requests {self.seed}"), 0.0
        for phase in self.phases:
            while phase.rate:
                following = now + randoms.expovariate(phase.rate / phase.burst)
                if following >= phase.until:
                    break
                now = following
                for _ in range(_geometric(randoms, phase.burst)):
                    mean = phase.audio_seconds / FAMILY.frame_seconds
                    length = mean * math.exp(randoms.gauss(0, self.audio_spread) - self.audio_spread**2 / 2)
                    yield Request(now, max(1, round(length)))
            now = phase.until


def _geometric(randoms: random.Random, mean: float) -> int:
    """Returns 1 or more."""
    return 1 if mean <= 1 else math.ceil(math.log(1 - randoms.random()) / math.log(1 - 1 / mean))
