"""Runs the tuner for any number of pipelines: observations in, decisions and audit log lines out.

The operator and `syrinx up` share it. It keeps only counters, which build up again within minutes after a restart.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from multiprocessing import get_context
from typing import Generic, ParamSpec, TypeVar

import msgspec

from syrinx_operator.observed.counters import CounterHistory, Observation
from syrinx_operator.observed.evidence import Evidence
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event, in_force
from syrinx_operator.tuner.decide import Decision, decide
from syrinx_operator.tuner.model.capacity import capacity
from syrinx_operator.tuner.model.plan import plan
from syrinx_operator.tuner.policy import Policy
from syrinx_stages.contract import logs

FAILURE_BACKOFF = timedelta(minutes=30)
"""No trial starts for this long after an exception in the tuner."""

ANSWER_SECONDS = 300.0
"""After this long, an answer is about another load."""

AUDIT = logging.getLogger("syrinx.tuning")
"""One JSON line per decision."""
log = logging.getLogger(__name__)


P = ParamSpec("P")
A = TypeVar("A")


def own_process() -> Executor:
    """Returns a pool of one process, which ends with its work."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_stay_behind)


def _stay_behind() -> None:
    """Leaves Ctrl-C to the process that waits, and the processor to those that serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)


class Planner(Generic[P, A]):
    """Runs the model in a process of its own, one question at a time, because it computes for seconds."""

    def __init__(self, answer: Callable[P, A], pool: Callable[[], Executor]) -> None:
        """`pool` returns where a question is answered; it is shut down with its answer."""
        self._answer = answer
        self._pool = pool
        self._asked: dict[str, tuple[float, Future[A]]] = {}
        """When each pipeline asked, and the answer until the pipeline collects it."""

    def ask(self, name: str, *question: P.args, **more: P.kwargs) -> A | None:
        """Returns the answer to the last question of a pipeline once it is known; until then, and while another
        pipeline's is being answered, None. Raises what the model raised."""
        asked_at, own = self._asked.get(name, (0.0, None))
        if own is not None and own.done():
            del self._asked[name]
            if time.monotonic() - asked_at < ANSWER_SECONDS:
                return own.result()
        if all(answer.done() for _, answer in self._asked.values()):
            pool = self._pool()
            self._asked[name] = time.monotonic(), pool.submit(self._answer, *question, **more)
            pool.shutdown(wait=False)
        return None

    def forget(self, name: str) -> None:
        """Drops the answer for a deleted pipeline. What still computes it ends on its own, beside the next question."""
        self._asked.pop(name, None)


class Tuner:
    """Decides for any number of pipelines, by name."""

    def __init__(self, audit: Callable[[str], None] = AUDIT.info, pool: Callable[[], Executor] = own_process) -> None:
        """`audit` is called with one JSON line per event. `pool` returns where the model computes."""
        self._audit = audit
        self._histories: dict[str, CounterHistory] = {}
        self._planner = Planner(plan, pool)
        self._capacities = Planner(capacity, pool)

    def step(self, name: str, policy: Policy, state: State, observation: Observation, now: datetime) -> Decision:
        """Returns the next decision, without events for the audit log alone. Never raises: an exception ends the trial
        in progress."""
        try:
            history = self._histories.setdefault(name, CounterHistory())
            history.observe(observation)
            look = partial(history.evidence, policy.objectives, policy.interval)
            decision = decide(
                policy, state, look, partial(self._planner.ask, name), partial(self._capacities.ask, name), now
            )
        except Exception as error:
            namespace, _, pipeline = name.rpartition("/")
            log.exception("%s: exception in the tuner", name, extra=logs.of_pipeline(namespace, pipeline))
            decision = _after_exception(policy, state, error, now)
        for event in decision.events:
            line = _audit_line(name, policy, state, decision.state, event, now)
            try:
                self._audit(line)
            except OSError as error:
                log.warning("cannot write the audit log: %s: %s", error, line)
        told = tuple(event for event in decision.events if event.kind != "Audit")
        return msgspec.structs.replace(decision, events=told)

    def evidence(self, name: str, policy: Policy, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence of a window from what was observed."""
        history = self._histories.setdefault(name, CounterHistory())
        return history.evidence(policy.objectives, policy.interval, since, until)

    def devices(self, name: str) -> dict[str, str]:
        """Returns the devices that a pipeline's talkers and codecs report, by replica name."""
        history = self._histories.get(name)
        return history.devices() if history else {}

    def forget(self, name: str) -> None:
        """Removes a deleted pipeline."""
        self._histories.pop(name, None)
        self._planner.forget(name)
        self._capacities.forget(name)


def _after_exception(policy: Policy, state: State, error: Exception, now: datetime) -> Decision:
    """Ends the change in progress and delays the next trial."""
    message = f"internal error of the tuner, see the log: {type(error).__name__}: {error}"[:256]
    new = msgspec.structs.replace(
        state, trial=None, soak=None, message=message, next_plan_time=now + FAILURE_BACKOFF, forecast=None
    )
    events = () if message == state.message else (Event(kind="Warning", reason="TuningFailed", message=message),)
    return Decision(state=new, events=events, requeue_after=policy.interval)


def _audit_line(name: str, policy: Policy, before: State, after: State, event: Event, now: datetime) -> str:
    phases = (before.trial, after.trial, before.soak, after.soak)
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
    return {"base": in_force(policy, state), "candidate": state.trial.candidate if state.trial else None}
