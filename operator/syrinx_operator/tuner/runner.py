"""Decides for pipelines, look by look: what was seen becomes evidence, and what was decided an audit log. A thin shell.

The cluster's operator and `syrinx up` share it. All that is kept here is counters: lost with the process, they build up
again within minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Setting
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.counters import CounterHistory
from syrinx_operator.tuner.decide import Decision, Event, assignment, decide, window_start
from syrinx_operator.tuner.evidence import Evidence, ReplicaStats
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.snapshot import Snapshot

FAILURE_BACKOFF = timedelta(minutes=30)
"""How long nothing is tried after the tuner itself has failed."""

AUDIT = logging.getLogger("syrinx.tuning")
"""One JSON line for each thing decided."""
log = logging.getLogger(__name__)


class Observation(Struct, frozen=True, kw_only=True):
    """What a shell saw in one look."""

    snapshots: tuple[Snapshot, ...]
    """Of gateways, talkers and codecs; those that are known already change nothing."""
    replicas: tuple[ReplicaStats, ...]
    """The replicas there are; their counts are filled in from snapshots."""
    identity: Identity
    disruption: str = ""
    """What else changes; empty if nothing does."""
    scrape_interval: float = 0.0
    """Seconds between two snapshots of a replica, where that is not the shell's to choose; else 0."""
    problem: str = ""
    """Why this look brought no counters, in words for the user; empty if it did."""


_NOTHING = Observation(snapshots=(), replicas=(), identity=Identity(model="", image="", device=""))


class Tuner:
    """Decides for any number of pipelines, by name."""

    def __init__(self, audit: Callable[[str], None] = AUDIT.info) -> None:
        """`audit` takes one JSON line for each event."""
        self._audit = audit
        self._records: dict[str, CounterHistory] = {}
        self._seen: dict[str, Observation] = {}

    def step(self, name: str, policy: Policy, state: State, seen: Observation, now: datetime) -> Decision:
        """What follows from a look. Never raises: a look that cannot be judged ends what is being tried."""
        try:
            evidence = self.evidence(name, policy, seen, window_start(policy, state, now), now)
            decision = decide(policy, state, evidence, now)
        except Exception as error:
            log.exception("%s: the tuner itself fails", name)
            decision = _given_up(policy, state, error, now)
        for event in (*_compared(state, decision.state), *decision.events):
            self._tell(_line(name, policy, state, decision.state, event, now))
        return decision

    def evidence(
        self, name: str, policy: Policy, seen: Observation | None, since: datetime, until: datetime
    ) -> Evidence:
        """What happened within a window; with None, going by what was seen last."""
        record = self._records.setdefault(name, CounterHistory())
        if seen is not None:
            self._seen[name] = msgspec.structs.replace(seen, snapshots=())
            for snapshot in seen.snapshots:
                record.add(snapshot)
        last = self._seen.get(name, _NOTHING)
        return record.evidence(
            policy, last.replicas, last.identity, last.disruption, last.problem, since, until, last.scrape_interval
        )

    def devices(self, name: str) -> dict[str, str]:
        """Where a pipeline's talkers and codecs say that they compute, by the replica's name."""
        record = self._records.get(name)
        return record.devices() if record else {}

    def forget(self, name: str) -> None:
        """A pipeline that is gone."""
        self._records.pop(name, None)
        self._seen.pop(name, None)

    def _tell(self, line: str) -> None:
        try:
            self._audit(line)
        except OSError as error:
            log.warning("the audit log cannot be written: %s: %s", error, line)


def _given_up(policy: Policy, state: State, error: Exception, now: datetime) -> Decision:
    """Whatever was tried is out of force, and nothing is tried for a while."""
    message = f"the tuner itself fails, its log says more: {type(error).__name__}: {error}"[:256]
    new = msgspec.structs.replace(
        state, trial=None, promotion=None, soak=None, message=message, next_trial_time=now + FAILURE_BACKOFF
    )
    events = () if message == state.message else (Event(kind="Warning", reason="TuningFailed", message=message),)
    return Decision(state=new, events=events, requeue_after=policy.interval)


def _compared(before: State, after: State) -> tuple[Event, ...]:
    """What the audit log tells of each pair of periods, and nobody else: a trial's course can be drawn from it."""
    trial = after.trial
    if before.trial is None or trial is None or not trial.strata or not before.trial.strata:
        return ()
    pairs = trial.strata[0].test.pairs
    if (before.trial.id, before.trial.strata[0].test.pairs) == (trial.id, pairs):
        return ()
    return (Event(reason="Compared", message=f"trial {trial.id}, {pairs} pairs of periods", data={"trial": trial}),)


def _line(name: str, policy: Policy, before: State, after: State, event: Event, now: datetime) -> str:
    record = {
        "time": now,
        "pipeline": name,
        "decision": _decision(before, after),
        "kind": event.kind,
        "reason": event.reason,
        "message": event.message,
        "data": event.data,
        "before": _settings(policy, before),
        "after": _settings(policy, after),
    }
    return msgspec.json.encode(record).decode()


def _decision(before: State, after: State) -> int | None:
    """The trial that it is about; None if there is none."""
    for each in (before.trial, after.trial, before.promotion, after.promotion, before.soak, after.soak):
        if each is not None:
            return each.id
    return None


def _settings(policy: Policy, state: State) -> dict[str, Setting | None]:
    candidate = None
    if state.trial is not None:
        candidate = state.trial.candidate
    elif state.promotion is not None:
        candidate = state.promotion.setting
    return {"base": assignment(policy, state).base, "candidate": candidate}
