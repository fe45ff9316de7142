"""What happened within a window of time, from counters that were read now and then. Pure.

Counters are differenced replica by replica, when they are added: so a process that starts anew is seen, nothing is
counted twice, and a window is a sum. What a process counted unseen before it ended is lost, as it must be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from syrinx_operator.resource.knobs import Identity
from syrinx_operator.tuner.evidence import (
    CallStats,
    Evidence,
    FailedRequests,
    ReplicaStats,
    Route,
    RouteStats,
    StepStats,
)
from syrinx_operator.tuner.policy import Objective, Policy
from syrinx_operator.tuner.snapshot import BUCKET, STARTED, STEP_COUNT, STEP_SUM, Series, Snapshot
from syrinx_stages.contract import metrics as m

__all__ = ["CounterHistory"]

STALE_SECONDS = 90.0
"""Age from which counters no longer say how things are; three times between two of them, if that is longer."""
MAX_LOOKS = 2048
"""Of one replica."""
MAX_AGE = timedelta(hours=3)
MAX_VALUES = 500_000
"""Of all replicas together; the oldest go first."""


class _Look(NamedTuple):
    """What one replica counted between two snapshots."""

    since: datetime
    at: datetime
    live: int
    """Streams under way at its begin."""
    counted: Mapping[Series, float]
    """Only what happened."""


class _Replica:
    """One replica's past, oldest first."""

    def __init__(self, first: Snapshot) -> None:
        self.last = first
        self.looks: deque[_Look] = deque()

    def within(self, since: datetime, until: datetime) -> list[_Look]:
        return [look for look in self.looks if look.since >= since and look.at <= until]

    def known_until(self, until: datetime) -> datetime | None:
        """When the last snapshot before `until` was taken; None if there is none."""
        times = (self.last.time, *(look.since for look in reversed(self.looks)))
        return next((at for at in times if at <= until), None)


class CounterHistory:
    """The past hours of one pipeline's replicas, bounded."""

    def __init__(self) -> None:
        self._replicas: dict[tuple[str, str], _Replica] = {}
        self._values = 0

    def add(self, snapshot: Snapshot) -> None:
        """Takes up a snapshot; one that is no newer than what is known of its replica changes nothing."""
        key = (snapshot.stage, snapshot.replica)
        known = self._replicas.get(key)
        if known is None:
            self._replicas[key] = _Replica(snapshot)
            return
        before = known.last
        if snapshot.time <= before.time:
            return
        known.last = snapshot
        if snapshot.distinct_stages != before.distinct_stages:
            return  # Sums over different things have no difference.
        counted = _difference(before.counts, snapshot.counts)
        known.looks.append(_Look(before.time, snapshot.time, before.live_streams, counted))
        self._values += len(counted) + 1
        self._trim(snapshot.time)

    def devices(self) -> dict[str, str]:
        """Where talkers and codecs say that they compute, by name."""
        return {name: each.last.device for (_, name), each in self._replicas.items() if each.last.device}

    def newest(self, stage: str) -> datetime | None:
        """When a stage's replicas were last heard of."""
        return max((each.last.time for each in self._of(stage)), default=None)

    def evidence(
        self,
        policy: Policy,
        workers: Iterable[ReplicaStats],
        identity: Identity,
        moving: str,
        problem: str,
        since: datetime,
        until: datetime,
        scraped_every: float = 0.0,
    ) -> Evidence:
        """What happened from `since` to `until`, as far as it is known.

        Each replica counts from its first snapshot at or after `since`. A gateway that was heard of lately is waited
        for: the evidence ends where its counters do. `problem` says why a look brought no counters; it is told once
        what is known is stale: older than 90 s, three intervals, or three times the `scraped_every` of others.
        """
        found = Evidence(
            since=since,
            until=since,
            identity=identity,
            replicas=tuple(self._with_counts(worker, since, until) for worker in workers),
            disruption=moving,
        )
        stale = max(STALE_SECONDS, 3 * policy.interval, 3 * scraped_every)
        newest = self.newest("gateway")
        if newest is None:
            return msgspec.structs.replace(found, problem=problem or "no gateway's counters are known")
        if (until - newest).total_seconds() > stale:
            words = problem or f"the gateways' newest counters are older than {stale:g} seconds"
            return msgspec.structs.replace(found, problem=words)
        return self._counted(
            found, policy, [each for each in self._of("gateway") if _lately(each, newest, stale)], until
        )

    def _counted(self, found: Evidence, policy: Policy, lately: list[_Replica], until: datetime) -> Evidence:
        end = min((at for each in lately if (at := each.known_until(until))), default=found.since)
        windows = [looks for each in self._of("gateway") if (looks := each.within(found.since, end))]
        age = max(each.last.queue_age for each in lately)
        if not windows:
            return msgspec.structs.replace(found, queue_age=age)
        total = _sum(look.counted for looks in windows for look in looks)
        return msgspec.structs.replace(
            found,
            since=min(looks[0].since for looks in windows),
            until=end,
            routes=as_served(total, policy.objectives),
            failed=as_turned(total),
            live_streams=sum(looks[0].live for looks in windows) + streams(total),
            queue_age=age,
        )

    def _with_counts(self, worker: ReplicaStats, since: datetime, until: datetime) -> ReplicaStats:
        known = self._replicas.get((worker.stage.value, worker.name))
        if known is None:
            return worker
        worker = msgspec.structs.replace(worker, captures=known.last.captures)
        looks = known.within(since, until)
        return with_counts(worker, _sum(look.counted for look in looks)) if looks else worker

    def _of(self, stage: str) -> list[_Replica]:
        return [each for each in self._replicas.values() if each.last.stage == stage]

    def _trim(self, now: datetime) -> None:
        for key, each in list(self._replicas.items()):
            while each.looks and (len(each.looks) > MAX_LOOKS or now - each.looks[0].since > MAX_AGE):
                self._drop(each)
            if now - each.last.time > MAX_AGE:
                del self._replicas[key]
        while self._values > MAX_VALUES:
            self._drop(min((each for each in self._replicas.values() if each.looks), key=lambda each: each.looks[0].at))

    def _drop(self, replica: _Replica) -> None:
        self._values -= len(replica.looks.popleft().counted) + 1


def _lately(replica: _Replica, newest: datetime, stale: float) -> bool:
    return (newest - replica.last.time).total_seconds() <= stale


def _difference(before: Mapping[Series, float], after: Mapping[Series, float]) -> dict[Series, float]:
    """What was counted in between; all of it, if the process was started anew: then something is less than before."""
    if any(after.get(one, 0.0) < value for one, value in before.items()):
        return dict(after)
    return {one: more for one, value in after.items() if (more := value - before.get(one, 0.0))}


def _sum(parts: Iterable[Mapping[Series, float]]) -> dict[Series, float]:
    total: dict[Series, float] = {}
    for part in parts:
        for one, value in part.items():
            total[one] = total.get(one, 0.0) + value
    return total


MAX_ROWS = 1024
"""Of a step: the most that `max_num_seqs` can be. Steps of more rows than the metric's last edge count as such."""
_EDGES = (*m.TTFA_BUCKETS, math.inf)

Sums = Mapping[Series, float]


def as_served(sums: Sums, objectives: Mapping[str, Objective]) -> dict[Route, RouteStats]:
    """What listeners got, by route."""
    heard: dict[Route, dict[float, int]] = {}
    waited: dict[Route, int] = {}
    for one, value in sums.items():
        if one.name == BUCKET:
            buckets = heard.setdefault(Route(*one.labels), {})
            buckets[one.edge] = round(value)
        elif one.name == m.UNDERRUNS.name:
            waited[Route(*one.labels)] = round(value)
    return {
        route: _served(heard.get(route, {}), waited.get(route, 0), objectives.get(route.task_type))
        for route in sorted({*heard, *waited})
    }


def _served(buckets: Mapping[float, int], underruns: int, objective: Objective | None) -> RouteStats:
    requests = sum(buckets.values())
    within = requests
    if objective is not None:
        within = sum(count for edge, count in buckets.items() if edge <= objective.seconds)
    return RouteStats(
        requests=requests, within_objective=within, underruns=underruns, ttfa_histogram=_cumulative(buckets)
    )


def _cumulative(buckets: Mapping[float, int]) -> dict[float, int]:
    found, below = {}, 0
    for edge in sorted({*_EDGES, *buckets}) if buckets else ():
        below += buckets.get(edge, 0)
        found[edge] = below
    return found


def as_turned(sums: Sums) -> dict[str, FailedRequests]:
    """Requests that nobody was heard for, by task type."""
    found: dict[str, FailedRequests] = {}
    for one, value in sums.items():
        if one.name == m.REQUESTS.name and one.labels[1] in ("refused", "error"):
            field = "refused" if one.labels[1] == "refused" else "errors"
            before = found.get(one.labels[0], FailedRequests())
            found[one.labels[0]] = msgspec.structs.replace(before, **{field: round(value)})
    return found


def streams(sums: Sums) -> int:
    """Live streams that began."""
    return round(sums.get(Series(STARTED, ()), 0.0))


def with_counts(worker: ReplicaStats, sums: Sums) -> ReplicaStats:
    """A worker with what it counted."""
    return msgspec.structs.replace(
        worker,
        errors=round(sums.get(Series(m.REQUESTS_FINISHED.name, ("error",)), 0.0)),
        frames=round(sums.get(Series(m.FRAMES.name, ()), 0.0)),
        steps=_steps(sums),
        calls=_calls(sums),
    )


def _steps(sums: Sums) -> dict[int, StepStats]:
    counts = {one.labels[0]: value for one, value in sums.items() if one.name == STEP_COUNT}
    return {
        MAX_ROWS if rows == "+Inf" else int(rows): StepStats(round(count), sums.get(Series(STEP_SUM, (rows,)), 0.0))
        for rows, count in sorted(counts.items())
        if rows == "+Inf" or rows.isdecimal()
    }


def _calls(sums: Sums) -> tuple[CallStats, ...]:
    counts = sorted((one.labels, value) for one, value in sums.items() if one.name == m.CODEC_CALLS.name)
    return tuple(
        CallStats(
            rows=int(labels[0]),
            frames=int(labels[1]),
            result=labels[2],
            count=round(value),
            seconds=sums.get(Series(m.CODEC_CALL_SECONDS.name, labels), 0.0),
        )
        for labels, value in counts
        if labels[0].isdecimal() and labels[1].isdecimal()
    )
