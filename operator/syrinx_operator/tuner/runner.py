"""Runs the tuner for any number of pipelines: observations in, decisions and audit log lines out.

The operator and `syrinx up` share it. It keeps only counters, which build up again within minutes after a restart.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.builder import in_force
from syrinx_operator.tuner.counters import CounterHistory, Observation
from syrinx_operator.tuner.decide import Decision, Event, decide, window_start
from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract import logs

FAILURE_BACKOFF = timedelta(minutes=30)
"""No trial starts for this long after an exception in the tuner."""

AUDIT = logging.getLogger("syrinx.tuning")
"""One JSON line per decision."""
log = logging.getLogger(__name__)


class Tuner:
    """Decides for any number of pipelines, by name."""

    def __init__(self, audit: Callable[[str], None] = AUDIT.info) -> None:
        """`audit` is called with one JSON line per event."""
        self._audit = audit
        self._histories: dict[str, CounterHistory] = {}

    def step(self, name: str, policy: Policy, state: State, observation: Observation, now: datetime) -> Decision:
        """Returns the next decision. Never raises: an exception ends the trial in progress."""
        try:
            evidence = self.evidence(name, policy, observation, window_start(policy, state, now), now)
            decision = decide(policy, state, evidence, now)
        except Exception as error:
            namespace, _, pipeline = name.rpartition("/")
            log.exception("%s: exception in the tuner", name, extra=logs.of_pipeline(namespace, pipeline))
            decision = _after_exception(policy, state, error, now)
        for event in (*_pair_events(state, decision.state), *decision.events):
            line = _audit_line(name, policy, state, decision.state, event, now)
            try:
                self._audit(line)
            except OSError as error:
                log.warning("cannot write the audit log: %s: %s", error, line)
        return decision

    def evidence(
        self, name: str, policy: Policy, observation: Observation | None, since: datetime, until: datetime
    ) -> Evidence:
        """Returns the evidence of a window. Without an observation, uses the last one."""
        history = self._histories.setdefault(name, CounterHistory())
        if observation is not None:
            history.observe(observation)
        return history.evidence(policy, since, until)

    def devices(self, name: str) -> dict[str, str]:
        """Returns the devices that a pipeline's talkers and codecs report, by replica name."""
        history = self._histories.get(name)
        return history.devices() if history else {}

    def forget(self, name: str) -> None:
        """Removes a deleted pipeline."""
        self._histories.pop(name, None)


def _after_exception(policy: Policy, state: State, error: Exception, now: datetime) -> Decision:
    """Ends the change in progress and delays the next trial."""
    message = f"internal error of the tuner, see the log: {type(error).__name__}: {error}"[:256]
    new = msgspec.structs.replace(
        state, trial=None, promotion=None, soak=None, message=message, next_trial_time=now + FAILURE_BACKOFF
    )
    events = () if message == state.message else (Event(kind="Warning", reason="TuningFailed", message=message),)
    return Decision(state=new, events=events, requeue_after=policy.interval)


def _pair_events(before: State, after: State) -> tuple[Event, ...]:
    """Returns an event for the audit log only if a pair was completed, so that a trial's course can be plotted."""
    old, trial = before.trial, after.trial
    if old is None or trial is None or (old.id, old.overall.test.pairs) == (trial.id, trial.overall.test.pairs):
        return ()
    message = f"trial {trial.id}, pair {trial.overall.test.pairs}"
    return (Event(reason="Compared", message=message, data={"trial": trial}),)


def _audit_line(name: str, policy: Policy, before: State, after: State, event: Event, now: datetime) -> str:
    phases = (before.trial, after.trial, before.promotion, after.promotion, before.soak, after.soak)
    record = {
        "time": now,
        "pipeline": name,
        "decision": next((each.id for each in phases if each is not None), None),
        "kind": event.kind,
        "reason": event.reason,
        "message": event.message,
        "data": event.data,
        "before": _settings(policy, before),
        "after": _settings(policy, after),
    }
    return msgspec.json.encode(record).decode()


def _settings(policy: Policy, state: State) -> dict[str, Setting | None]:
    promoted = state.promotion.setting if state.promotion else None
    return {"base": in_force(policy, state), "candidate": state.trial.candidate if state.trial else promoted}
