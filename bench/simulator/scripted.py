"""A pipeline of which the ratio of bad requests is given, with the interface of the simulated one.

It has no queues and no engines, so that thousands of trials take seconds.
"""

from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np

from syrinx_operator.observed.arrivals import Arrivals, Interval
from syrinx_operator.observed.evidence import (
    CallStats,
    CaptureCost,
    Evidence,
    Outcomes,
    ReplicaStats,
    StepStats,
    StreamStats,
)
from syrinx_operator.resource.knobs import Identity, Setting, live_settings
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_operator.tuner.decide import Assignment
from syrinx_stages.contract.stages import WORKERS, Stage

Bad = Callable[[Setting, float], float]
"""Ratio of bad requests by setting and seconds since the start."""

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK_TYPE = "CustomVoice"
_FRAMES = 50
"""Frames of a request."""


def clock(seconds: float) -> datetime:
    """Returns the time at a number of seconds after the start."""
    return START + timedelta(seconds=seconds)


class Scripted:
    """Requests and replicas as the tuner observes them. Time advances only in `run`."""

    def __init__(self, bad: Bad, initial: Setting, *, rate: float = 4.0, replicas: int = 1, seed: int = 0) -> None:
        self.bad = bad
        self.rate = rate
        """Requests per second."""
        self.burst = 1
        """Requests that arrive together."""
        self.now = 0.0
        self.restarts = {f"{stage}-{index}": 0 for stage in WORKERS for index in range(replicas)}
        """By replica."""
        self.identity = Identity(model="m1", image="syrinx 0.1.0", device="cpu")
        self.problem = ""
        self.disruption = ""
        self.confirms = True
        """Whether replicas report their settings."""
        self.captures: tuple[CaptureCost, ...] = ()
        """Costs of captured shapes, as the codecs report them."""
        self._arrivals = Arrivals()
        self._randoms = np.random.default_rng(seed)
        self._base, self._label = initial, ""
        self._candidate: Setting | None = None
        self._override_end = float("inf")
        self._times: list[float] = []
        self._totals = [(0, 0)]
        """Requests and bad ones before each second, and after the last one."""
        self._labels: list[tuple[int, str]] = []
        """Each label, with the index of its first second."""

    @property
    def setting(self) -> Setting:
        """The setting that all replicas run."""
        return self._candidate or self._base

    def clock(self) -> datetime:
        """Returns the time now."""
        return clock(self.now)

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment at once. Overrides end when they expire without renewal."""
        self._base, self._candidate, self._label = assignment.base, assignment.candidate, assignment.label
        self._override_end = self.now + OVERRIDE_TTL_SECONDS

    def run(self, until: float) -> None:
        """Serves requests up to `until` seconds."""
        begin, (before, _) = self.now, self._totals[-1]
        crowds: dict[float, float] = {}
        while self.now < until:
            seconds = min(1.0, until - self.now)
            if self.now >= self._override_end:
                self._candidate, self._label = None, ""
            requests = self.burst * int(self._randoms.poisson(self.rate * seconds / self.burst))
            crowds[requests] = crowds.get(requests, 0.0) + seconds
            ratio = min(max(self.bad(self.setting, self.now), 0.0), 1.0)
            self.now += seconds
            if not self._labels or self._labels[-1][1] != self._label:
                self._labels.append((len(self._times), self._label))
            self._times.append(self.now)
            total, bad = self._totals[-1]
            self._totals.append((total + requests, bad + int(self._randoms.binomial(requests, ratio))))
        if self.now > begin:
            arrived = {TASK_TYPE: float(self._totals[-1][0] - before)}
            self._arrivals.add(Interval(self.clock(), self.now - begin, arrived, {}, {}, crowds))

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence of a window."""
        since = max(since, START)
        first, last = (bisect_right(self._times, (at - START).total_seconds()) for at in (since, until))
        if self.problem or first >= last:
            return self._evidence(since, since, {})
        counts: dict[str, tuple[int, int]] = {}
        ends = [*(start for start, _ in self._labels[1:]), len(self._times)]
        for (start, label), end in zip(self._labels, ends, strict=True):
            start, end = max(start, first), min(end, last)
            if start < end:
                parts = zip(counts.get(label, (0, 0)), self._totals[end], self._totals[start], strict=True)
                requests, bad = (known + after - before for known, after, before in parts)
                counts[label] = requests, bad
        return self._evidence(since, until, counts)

    def _evidence(self, since: datetime, until: datetime, counts: dict[str, tuple[int, int]]) -> Evidence:
        requests = sum(each for each, _ in counts.values())
        well = requests - sum(bad for _, bad in counts.values())
        served = StreamStats(
            requests=requests,
            within_objective=well,
            underruns=0,
            ttfa_histogram={0.1: well, 0.5: requests, float("inf"): requests},
        )
        return Evidence(
            since=since,
            until=until,
            identity=self.identity,
            problem=self.problem,
            disruption=self.disruption,
            burst=self._arrivals.burst(until),
            change=self._arrivals.change,
            outcomes={
                (TASK_TYPE, label): Outcomes(accepted=accepted, well=accepted - bad, late=bad)
                for label, (accepted, bad) in counts.items()
                if accepted
            },
            streams={TASK_TYPE: served} if requests else {},
            replicas=tuple(self._replica(name, requests) for name in self.restarts),
        )

    def _replica(self, name: str, requests: int) -> ReplicaStats:
        stage = Stage(name.partition("-")[0])
        frames = _FRAMES * requests
        return ReplicaStats(
            name=name,
            stage=stage,
            ready=True,
            restarts=self.restarts[name],
            settings=live_settings(self.setting, stage) if self.confirms else None,
            frames=frames,
            prefills=StepStats(requests, 0.01 * requests),
            steps={4: StepStats(frames // 4, 0.01 * frames / 4)} if requests else {},
            calls=(CallStats(1, 4, "eager", frames // 4, 0.005 * frames / 4),) if requests else (),
            captures=self.captures if stage is Stage.CODEC else (),
        )
