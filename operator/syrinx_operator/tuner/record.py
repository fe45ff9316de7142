"""What happened within a window of time, from counters that were read now and then. Pure.

Counters are differenced replica by replica, when they are added: so a process that starts anew is seen, nothing is
counted twice, and a window is a sum. What a process counted unseen before it ended is lost, as it must be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from syrinx_operator.resource.knobs import Identity
from syrinx_operator.tuner.counted import as_served, as_turned, streams, with_counts
from syrinx_operator.tuner.evidence import Evidence, Worker
from syrinx_operator.tuner.exposition import snapshot
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.snapshot import Series, Snapshot

__all__ = ["Record", "Snapshot", "snapshot"]

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
        times = (self.last.at, *(look.since for look in reversed(self.looks)))
        return next((at for at in times if at <= until), None)


class Record:
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
        if snapshot.at <= before.at:
            return
        known.last = snapshot
        if snapshot.apart != before.apart:
            return  # Sums over different things have no difference.
        counted = _difference(before.counts, snapshot.counts)
        known.looks.append(_Look(before.at, snapshot.at, before.live, counted))
        self._values += len(counted) + 1
        self._trim(snapshot.at)

    def devices(self) -> dict[str, str]:
        """Where talkers and codecs say that they compute, by name."""
        return {name: each.last.device for (_, name), each in self._replicas.items() if each.last.device}

    def newest(self, stage: str) -> datetime | None:
        """When a stage's replicas were last heard of."""
        return max((each.last.at for each in self._of(stage)), default=None)

    def evidence(
        self,
        policy: Policy,
        workers: Iterable[Worker],
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
            workers=tuple(self._with_counts(worker, since, until) for worker in workers),
            moving=moving,
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
            served=as_served(total, policy.objectives),
            turned=as_turned(total),
            streams=sum(looks[0].live for looks in windows) + streams(total),
            queue_age=age,
        )

    def _with_counts(self, worker: Worker, since: datetime, until: datetime) -> Worker:
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
            if now - each.last.at > MAX_AGE:
                del self._replicas[key]
        while self._values > MAX_VALUES:
            self._drop(min((each for each in self._replicas.values() if each.looks), key=lambda each: each.looks[0].at))

    def _drop(self, replica: _Replica) -> None:
        self._values -= len(replica.looks.popleft().counted) + 1


def _lately(replica: _Replica, newest: datetime, stale: float) -> bool:
    return (newest - replica.last.at).total_seconds() <= stale


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
