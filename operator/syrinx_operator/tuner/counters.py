"""Turns snapshots of counters into evidence for any time window. Pure.

Counters are differenced per replica when a snapshot is added, so resets are detected, nothing is counted twice, and
the count of a window is a sum. Counts between the last snapshot of a process and its end are lost.
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

STALE_SECONDS = 90.0
"""Age at which counters become stale, unless three scrape intervals are longer."""
MAX_DELTAS = 2048
"""Per replica."""
MAX_AGE = timedelta(hours=3)
MAX_VALUES = 500_000
"""Over all replicas; the oldest deltas are dropped first."""
MAX_ROWS = 1024
"""Largest possible `max_num_seqs`. Steps beyond the metric's last finite bucket count as this size."""
_EDGES = (*m.TTFA_BUCKETS, math.inf)

Sums = Mapping[Series, float]


class _Delta(NamedTuple):
    """Counts of one replica between two snapshots."""

    since: datetime
    until: datetime
    live_streams: int
    """At `since`."""
    counts: Sums
    """Nonzero differences only."""


class _Replica:
    """Deltas of one replica, oldest first."""

    def __init__(self, first: Snapshot) -> None:
        self.last = first
        self.deltas: deque[_Delta] = deque()

    def within(self, since: datetime, until: datetime) -> list[_Delta]:
        return [delta for delta in self.deltas if delta.since >= since and delta.until <= until]

    def known_until(self, until: datetime) -> datetime | None:
        """Returns the time of the last snapshot up to `until`, or None."""
        times = (self.last.time, *(delta.since for delta in reversed(self.deltas)))
        return next((time for time in times if time <= until), None)


class CounterHistory:
    """Bounded history of the counters of one pipeline's replicas."""

    def __init__(self) -> None:
        self._replicas: dict[tuple[str, str], _Replica] = {}
        self._values = 0

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot. Ignores one that is not newer than the last of its replica."""
        key = (snapshot.stage, snapshot.replica)
        replica = self._replicas.get(key)
        if replica is None:
            self._replicas[key] = _Replica(snapshot)
            return
        before = replica.last
        if snapshot.time <= before.time:
            return
        replica.last = snapshot
        if snapshot.distinct_stages != before.distinct_stages:
            return  # The series are aggregated differently, so they have no difference.
        counts = _difference(before.counts, snapshot.counts)
        replica.deltas.append(_Delta(before.time, snapshot.time, before.live_streams, counts))
        self._values += len(counts) + 1
        self._trim(snapshot.time)

    def devices(self) -> dict[str, str]:
        """Returns the devices that talkers and codecs report, by replica name."""
        return {name: each.last.device for (_, name), each in self._replicas.items() if each.last.device}

    def newest(self, stage: str) -> datetime | None:
        """Returns the time of a stage's newest snapshot, or None."""
        return max((each.last.time for each in self._of(stage)), default=None)

    def evidence(
        self,
        policy: Policy,
        replicas: Iterable[ReplicaStats],
        identity: Identity,
        disruption: str,
        problem: str,
        since: datetime,
        until: datetime,
        scrape_interval: float = 0.0,
    ) -> Evidence:
        """Returns what is known of the window from `since` to `until`.

        Each replica counts from its first snapshot at or after `since`. The evidence ends with the oldest of the
        gateways' last snapshots, so that all gateways cover it. `problem` is reported only once the counters are
        stale: older than 90 s, three policy intervals, and three scrape intervals.
        """
        found = Evidence(
            since=since,
            until=since,
            identity=identity,
            replicas=tuple(self._with_counts(replica, since, until) for replica in replicas),
            disruption=disruption,
        )
        stale = max(STALE_SECONDS, 3 * policy.interval, 3 * scrape_interval)
        newest = self.newest("gateway")
        if newest is None:
            return msgspec.structs.replace(found, problem=problem or "no gateway metrics yet")
        if (until - newest).total_seconds() > stale:
            message = problem or f"the newest gateway metrics are older than {stale:g} s"
            return msgspec.structs.replace(found, problem=message)
        current = [each for each in self._of("gateway") if (newest - each.last.time).total_seconds() <= stale]
        return self._with_gateways(found, policy, current, until)

    def _with_gateways(self, found: Evidence, policy: Policy, current: list[_Replica], until: datetime) -> Evidence:
        """Adds the gateways' counts. `current` are the gateways with a recent snapshot."""
        end = min((time for each in current if (time := each.known_until(until))), default=found.since)
        windows = [deltas for each in self._of("gateway") if (deltas := each.within(found.since, end))]
        age = max(each.last.queue_age for each in current)
        if not windows:
            return msgspec.structs.replace(found, queue_age=age)
        total = _sum(delta.counts for deltas in windows for delta in deltas)
        started = round(total.get(Series(STARTED, ()), 0.0))
        return msgspec.structs.replace(
            found,
            since=min(deltas[0].since for deltas in windows),
            until=end,
            routes=route_stats(total, policy.objectives),
            failed=failed_requests(total),
            live_streams=sum(deltas[0].live_streams for deltas in windows) + started,
            queue_age=age,
        )

    def _with_counts(self, stats: ReplicaStats, since: datetime, until: datetime) -> ReplicaStats:
        replica = self._replicas.get((stats.stage.value, stats.name))
        if replica is None:
            return stats
        stats = msgspec.structs.replace(stats, captures=replica.last.captures)
        deltas = replica.within(since, until)
        return replica_stats(stats, _sum(delta.counts for delta in deltas)) if deltas else stats

    def _of(self, stage: str) -> list[_Replica]:
        return [each for each in self._replicas.values() if each.last.stage == stage]

    def _trim(self, now: datetime) -> None:
        for key, each in list(self._replicas.items()):
            while each.deltas and (len(each.deltas) > MAX_DELTAS or now - each.deltas[0].since > MAX_AGE):
                self._drop(each)
            if now - each.last.time > MAX_AGE:
                del self._replicas[key]
        while self._values > MAX_VALUES:
            oldest = (each for each in self._replicas.values() if each.deltas)
            self._drop(min(oldest, key=lambda each: each.deltas[0].until))

    def _drop(self, replica: _Replica) -> None:
        self._values -= len(replica.deltas.popleft().counts) + 1


def route_stats(sums: Sums, objectives: Mapping[str, Objective]) -> dict[Route, RouteStats]:
    """Returns the requests that reached first audio, by route."""
    buckets: dict[Route, dict[float, int]] = {}
    underruns: dict[Route, int] = {}
    for series, value in sums.items():
        if series.name == BUCKET:
            buckets.setdefault(Route(*series.labels), {})[series.edge] = round(value)
        elif series.name == m.UNDERRUNS.name:
            underruns[Route(*series.labels)] = round(value)
    return {
        route: _route_stats(buckets.get(route, {}), underruns.get(route, 0), objectives.get(route.task_type))
        for route in sorted({*buckets, *underruns})
    }


def _route_stats(buckets: Mapping[float, int], underruns: int, objective: Objective | None) -> RouteStats:
    requests = within = sum(buckets.values())
    if objective is not None:
        within = sum(count for edge, count in buckets.items() if edge <= objective.seconds)
    cumulative, below = {}, 0
    for edge in sorted({*_EDGES, *buckets}) if buckets else ():
        below += buckets.get(edge, 0)
        cumulative[edge] = below
    return RouteStats(requests=requests, within_objective=within, underruns=underruns, ttfa_histogram=cumulative)


def failed_requests(sums: Sums) -> dict[str, FailedRequests]:
    """Returns refused and failed requests by task type."""
    found: dict[str, FailedRequests] = {}
    for series, value in sums.items():
        if series.name == m.REQUESTS.name and series.labels[1] in ("refused", "error"):
            field = "refused" if series.labels[1] == "refused" else "errors"
            before = found.get(series.labels[0], FailedRequests())
            found[series.labels[0]] = msgspec.structs.replace(before, **{field: round(value)})
    return found


def replica_stats(stats: ReplicaStats, sums: Sums) -> ReplicaStats:
    """Returns a replica's stats with its counts."""
    return msgspec.structs.replace(
        stats,
        errors=round(sums.get(Series(m.REQUESTS_FINISHED.name, ("error",)), 0.0)),
        frames=round(sums.get(Series(m.FRAMES.name, ()), 0.0)),
        steps=_steps(sums),
        calls=_calls(sums),
    )


def _steps(sums: Sums) -> dict[int, StepStats]:
    counts = {series.labels[0]: value for series, value in sums.items() if series.name == STEP_COUNT}
    return {
        MAX_ROWS if rows == "+Inf" else int(rows): StepStats(round(count), sums.get(Series(STEP_SUM, (rows,)), 0.0))
        for rows, count in sorted(counts.items())
        if rows == "+Inf" or rows.isdecimal()
    }


def _calls(sums: Sums) -> tuple[CallStats, ...]:
    counts = sorted((series.labels, value) for series, value in sums.items() if series.name == m.CODEC_CALLS.name)
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


def _difference(before: Sums, after: Sums) -> dict[Series, float]:
    """Returns the increase of each counter; all of `after` if a counter decreased, because the process restarted."""
    if any(after.get(series, 0.0) < value for series, value in before.items()):
        return dict(after)
    return {series: more for series, value in after.items() if (more := value - before.get(series, 0.0))}


def _sum(parts: Iterable[Sums]) -> dict[Series, float]:
    total: dict[Series, float] = {}
    for part in parts:
        for series, value in part.items():
            total[series] = total.get(series, 0.0) + value
    return total
