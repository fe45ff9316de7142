"""Turns snapshots of counters into evidence for any time window. Pure.

Counters are differenced per replica when a snapshot is added, so resets are detected, nothing is counted twice, and
the count of a window is a sum. Counts between the last snapshot of a process and its end are lost.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.observed.arrivals import Arrivals, Interval
from syrinx_operator.observed.evidence import (
    CallStats,
    Evidence,
    Objective,
    Outcomes,
    ReplicaStats,
    StepStats,
    StreamStats,
)
from syrinx_operator.observed.snapshot import (
    ARRIVALS,
    BUCKET,
    STARTED,
    Series,
    Snapshot,
    values_of,
    work_of,
)
from syrinx_operator.resource.knobs import Identity
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.settings import MAX_ROWS

STALE_SECONDS = 90.0
"""Age at which counters become stale, unless three scrape intervals are longer."""
MAX_AGE = timedelta(hours=3)
MAX_VALUES = 500_000
"""Over all replicas; the oldest deltas are dropped first."""
_EDGES = (*m.TTFA_BUCKETS, math.inf)

Sums = Mapping[Series, float]


class Observation(Struct, frozen=True, kw_only=True):
    """Everything observed of a pipeline at one evaluation."""

    snapshots: tuple[Snapshot, ...] = ()
    """Of gateways, talkers and codecs. Snapshots that are already known are ignored."""
    replicas: tuple[ReplicaStats, ...] = ()
    """The current replicas. Their counts are filled in from the snapshots."""
    identity: Identity
    disruption: str = ""
    """Another change in progress that prevents trials; empty if there is none."""
    scrape_interval: float = 0.0
    """Seconds between two snapshots of a replica if another system scrapes it, else 0."""
    problem: str = ""
    """Why there are no counters, as a message for the user; empty if there are."""


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
        self._arrivals = Arrivals()
        self._arrived: dict[str, list[_Delta]] = {}
        """Of each gateway, since the last interval of arrivals."""
        self._observed = Observation(identity=Identity(model="", image="", device=""))

    def observe(self, observation: Observation) -> None:
        """Adds an observation's snapshots and uses its other values as the current ones."""
        self._observed = replace(observation, snapshots=())
        for snapshot in observation.snapshots:
            self.add(snapshot)
        self._count_arrivals()

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot. Ignores one that is not newer than the last of its replica."""
        replica = self._replicas.setdefault((snapshot.stage, snapshot.replica), _Replica(snapshot))
        before = replica.last
        if snapshot.time <= before.time:
            return
        replica.last = snapshot
        counts = _difference(before.counts, snapshot.counts)
        delta = _Delta(before.time, snapshot.time, before.live_streams, counts)
        replica.deltas.append(delta)
        if snapshot.stage == "gateway":
            self._arrived.setdefault(snapshot.replica, []).append(delta)
        self._values += len(counts) + 1
        self._trim(snapshot.time)

    def _count_arrivals(self) -> None:
        """Adds an interval of arrivals once all gateways that were read lately have a part of it."""
        last = {name: each.last.time for (stage, name), each in self._replicas.items() if stage == "gateway"}
        newest = max(last.values(), default=datetime.min)
        current = {name for name, time in last.items() if (newest - time).total_seconds() < STALE_SECONDS}
        if not self._arrived or current - self._arrived.keys():
            return
        parts = [delta for deltas in self._arrived.values() for delta in deltas]
        seconds = sum((delta.until - delta.since).total_seconds() for delta in parts)
        total = _sum(delta.counts for delta in parts)
        requests, texts, characters = (
            _by_task_type(total, name) for name in (m.STREAMS_ACCEPTED.name, *work_of(m.STREAM_CHARACTERS.name))
        )
        known = {series.edge: value for series, value in total.items() if series.name == ARRIVALS}
        # Beyond the last bucket, how many is not known.
        crowds = {edge: value for edge, value in known.items() if edge < math.inf}
        crowds[0.0] = max(seconds - sum(known.values()), 0.0)
        until = max(delta.until for delta in parts)
        self._arrivals.add(Interval(until, seconds / len(self._arrived), requests, texts, characters, crowds))
        self._arrived = {}

    def devices(self) -> dict[str, str]:
        """Returns the devices that talkers and codecs report, by replica name."""
        return {name: each.last.device for (_, name), each in self._replicas.items() if each.last.device}

    def evidence(
        self, objectives: Mapping[str, Objective], interval: float, since: datetime, until: datetime
    ) -> Evidence:
        """Returns what is known of the window from `since` to `until`.

        objectives: by task type. interval: seconds between two observations.

        Each replica counts from its first snapshot at or after `since`. The evidence ends with the oldest of the
        gateways' last snapshots, so that all gateways cover it. A problem is reported only once the counters are
        stale: older than 90 s, three intervals, and three scrape intervals.
        """
        seen = self._observed
        found = Evidence(
            since=since,
            until=since,
            identity=seen.identity,
            replicas=tuple(self._with_counts(stats, since, until) for stats in seen.replicas),
            disruption=seen.disruption,
            change=self._arrivals.change,
        )
        gateways = [each for each in self._replicas.values() if each.last.stage == "gateway"]
        if not gateways:
            return replace(found, problem=seen.problem or "no gateway metrics yet")
        stale = max(STALE_SECONDS, 3 * interval, 3 * seen.scrape_interval)
        newest = max(each.last.time for each in gateways)
        if (until - newest).total_seconds() > stale:
            return replace(found, problem=seen.problem or f"the newest gateway metrics are older than {stale:g} s")
        current = [each for each in gateways if (newest - each.last.time).total_seconds() <= stale]
        end = min((time for each in current if (time := each.known_until(until))), default=since)
        windows = [deltas for each in gateways if (deltas := each.within(since, end))]
        if not windows:
            return found
        total = _sum(delta.counts for deltas in windows for delta in deltas)
        return replace(
            found,
            since=min(deltas[0].since for deltas in windows),
            until=end,
            streams=_stream_stats(total, objectives),
            burst=self._arrivals.burst(end),
            failed=_failed(total),
            outcomes=_outcomes(total),
            completed=_requests(total, m.REQUESTS.name, "stop", "length"),
            lost_forwards=_requests(total, m.CANARY_FORWARDS.name, "fallback", "failed"),
            live_streams=sum(deltas[0].live_streams for deltas in windows) + round(total.get(Series(STARTED, ()), 0.0)),
        )

    def _with_counts(self, stats: ReplicaStats, since: datetime, until: datetime) -> ReplicaStats:
        replica = self._replicas.get((stats.stage.value, stats.name))
        if replica is None:
            return stats
        stats = replace(stats, captures=replica.last.captures)
        deltas = replica.within(since, until)
        if not deltas:
            return stats
        sums = _sum(delta.counts for delta in deltas)
        return replace(
            stats,
            frames=round(sums.get(Series(m.FRAMES.name, ()), 0.0)),
            prefills=_work(sums, m.PREFILL_SECONDS.name).get("", StepStats(0, 0.0)),
            prepares=_work(sums, m.PREPARE_SECONDS.name),
            steps={
                # Beyond the metric's last finite bucket.
                MAX_ROWS if rows == "+Inf" else int(rows): step
                for rows, step in _work(sums, m.STEP_SECONDS.name).items()
                if rows == "+Inf" or rows.isdecimal()
            },
            calls=_calls(sums),
        )

    def _trim(self, now: datetime) -> None:
        for key, each in list(self._replicas.items()):
            while each.deltas and now - each.deltas[0].since > MAX_AGE:
                self._drop(each)
            if now - each.last.time > MAX_AGE:
                del self._replicas[key]
        while self._values > MAX_VALUES:
            oldest = (each for each in self._replicas.values() if each.deltas)
            self._drop(min(oldest, key=lambda each: each.deltas[0].until))

    def _drop(self, replica: _Replica) -> None:
        self._values -= len(replica.deltas.popleft().counts) + 1


def _stream_stats(sums: Sums, objectives: Mapping[str, Objective]) -> dict[str, StreamStats]:
    buckets: dict[str, dict[float, int]] = {}
    for series, value in sums.items():
        if series.name == BUCKET:
            buckets.setdefault(series.labels[0], {})[series.edge] = round(value)
    underruns = values_of(sums, m.UNDERRUNS.name)
    found = {}
    for task_type in sorted({*buckets, *(name for (name,) in underruns)}):
        counts = buckets.get(task_type, {})
        limit = objectives[task_type].seconds if task_type in objectives else math.inf
        edges = sorted({*_EDGES, *counts}) if counts else []
        found[task_type] = StreamStats(
            requests=sum(counts.values()),
            within_objective=sum(count for edge, count in counts.items() if edge <= limit),
            underruns=round(underruns.get((task_type,), 0.0)),
            ttfa_histogram=dict(zip(edges, accumulate(counts.get(edge, 0) for edge in edges), strict=True)),
        )
    return found


def _by_task_type(sums: Sums, name: str) -> dict[str, float]:
    """Returns the values of a metric by its first label."""
    found: dict[str, float] = {}
    for (task_type, *_), value in values_of(sums, name).items():
        found[task_type] = found.get(task_type, 0.0) + value
    return found


def _failed(sums: Sums) -> dict[str, int]:
    found: dict[str, int] = {}
    for (task_type, outcome), value in values_of(sums, m.REQUESTS.name).items():
        if outcome in ("refused", "error"):
            found[task_type] = found.get(task_type, 0) + round(value)
    return found


def _outcomes(sums: Sums) -> dict[tuple[str, str], Outcomes]:
    accepted, outcomes = values_of(sums, m.STREAMS_ACCEPTED.name), values_of(sums, m.STREAM_OUTCOMES.name)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for (task_type, arm), value in accepted.items():
        counts.setdefault((task_type, arm), {})["accepted"] = round(value)
    for (task_type, arm, outcome), value in outcomes.items():
        # A newer gateway may know more outcomes.
        if outcome in Outcomes.__struct_fields__:
            counts.setdefault((task_type, arm), {})[outcome] = round(value)
    return {key: Outcomes(**found) for key, found in sorted(counts.items())}


def _requests(sums: Sums, name: str, *outcomes: str) -> int:
    """Returns how many requests had one of the outcomes, which are the last label of the metric."""
    return round(sum(value for labels, value in values_of(sums, name).items() if labels[-1] in outcomes))


def _work(sums: Sums, name: str) -> dict[str, StepStats]:
    """Returns the counts and sums of a histogram, by its label if it has one."""
    counts, seconds = (values_of(sums, each) for each in work_of(name))
    return {
        "".join(labels): StepStats(round(count), seconds.get(labels, 0.0)) for labels, count in sorted(counts.items())
    }


def _calls(sums: Sums) -> tuple[CallStats, ...]:
    counts, seconds = values_of(sums, m.CODEC_CALLS.name), values_of(sums, m.CODEC_CALL_SECONDS.name)
    return tuple(
        CallStats(int(rows), int(frames), result, round(count), seconds.get((rows, frames, result), 0.0))
        for (rows, frames, result), count in sorted(counts.items())
        if rows.isdecimal() and frames.isdecimal()
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
