"""Reconciles one pipeline: reads its state, applies the plan, writes the status. Level-based and stateless."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names, status
from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.apply import Applied, Executor, name_conflict
from syrinx_operator.cluster.conditions import Problem
from syrinx_operator.cluster.config import Options
from syrinx_operator.cluster.drift import differs
from syrinx_operator.cluster.events import Event, EventRecorder, status_events
from syrinx_operator.cluster.kinds import PIPELINE, SECRET
from syrinx_operator.cluster.lease import LeaseForeign, LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.observe import Observer, is_owned, key_of
from syrinx_operator.cluster.plan import Plan, plan
from syrinx_operator.cluster.plan.redis import password_secret
from syrinx_operator.cluster.plan.tuning_backup import backup_of
from syrinx_operator.cluster.stage_api import DesiredSettings, StageApi
from syrinx_operator.cluster.state import InvalidSpec, Manifest, Observed, Owner, Replica, owner_of, parse_pipeline
from syrinx_operator.cluster.tuning import (
    Tuning,
    TuningInputs,
    TuningRunner,
    requeue_after,
    tuner_events,
    tuner_state,
    tuning_of,
    with_setting,
)
from syrinx_operator.cluster.workqueue import NamespacedName, Outcome, Result
from syrinx_operator.resource.spec import TTSPipeline

log = logging.getLogger(__name__)

MAX_PLANS: Final = 3
"""Plans per reconcile while others change the objects that it is made from (409)."""
_PASSWORD_BYTES: Final = 32


class Blocked(Exception):
    """No plan can be made; the problem says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _AppliedPlan(Struct, frozen=True):
    """A plan, its inputs, and the result of applying it."""

    tuning: Tuning
    plan: Plan
    observed: Observed
    applied: Applied


class Reconciler:
    """Reconciles pipelines. `reconcile` returns a `Result` for every outcome."""

    def __init__(
        self,
        *,
        api: Api,
        leases: Leases,
        executor: Executor,
        stages: StageApi,
        tuning: TuningRunner,
        options: Options,
    ) -> None:
        self._api = api
        self._leases = leases
        self._observer = Observer(api)
        self._executor = executor
        self._stages = stages
        self._tuning = tuning
        self._events = EventRecorder(api, options.identity)
        self._options = options

    def forget(self, key: NamespacedName) -> None:
        """Drops what is kept in memory for a deleted pipeline."""
        self._leases.forget(key.namespace, key.name)
        self._tuning.forget(key.namespace, key.name)

    async def reconcile(self, key: NamespacedName, failures: int) -> Result:
        """Moves a pipeline toward its spec. `failures` is the number of consecutive failures before."""
        try:
            live = await self._api.get(PIPELINE, key.namespace, key.name)
            if "deletionTimestamp" in live["metadata"]:
                return Result(outcome=Outcome.DELETED)
            owner, previous = owner_of(live), live.get("status") or {}
            await self._acquire_lease(owner, previous)
            return await self._reconcile(owner, live, previous, failures)
        except LeaseTaken as taken:
            self._tuning.drop_metrics(key.namespace, key.name)
            seconds = self._options.lease_seconds / 3
            return Result(outcome=Outcome.STANDBY, message=str(taken), requeue_after=seconds)
        except LeaseLost as lost:
            return Result(outcome=Outcome.FAILED, message=str(lost))
        except ApiError as error:
            if error.not_found:
                return Result(outcome=Outcome.DELETED)
            return Result(outcome=Outcome.FAILED, message=str(error), retry_after=error.retry_after)

    async def _acquire_lease(self, owner: Owner, previous: Mapping[str, Any]) -> None:
        try:
            await self._leases.hold(owner)
        except LeaseForeign as error:
            # Without the Lease we must not write the status; repeating the Event has no effect.
            await self._events.record(owner, previous, [Event("Warning", "NameConflict", str(error))])
            raise

    async def _reconcile(self, owner: Owner, live: Manifest, previous: Mapping[str, Any], failures: int) -> Result:
        """Reconciles with the Lease held, and writes errors to the status."""
        try:
            return await self._reconcile_valid(parse_pipeline(live), owner, previous, failures)
        except InvalidSpec as invalid:
            new = status.invalid(previous, owner, invalid.messages, _now())
            await self._update_status(owner, previous, new)
            return _result(Outcome.INVALID, new, str(invalid))
        except Blocked as blocked:
            return await self._report(Outcome.BLOCKED, owner, previous, blocked.problem)
        except ApiError as error:
            if _is_unreportable(error, failures):
                raise
            problem = Problem("ApiError", f"The API server rejected a request: {error} ({error.reason})")
            outcome = Outcome.FAILED if error.unavailable else Outcome.BLOCKED
            return await self._report(outcome, owner, previous, problem, error)
        except (LeaseTaken, LeaseLost):
            raise
        except Exception as error:
            log.exception("%s/%s: unexpected error", owner.namespace, owner.name)
            message = f"Internal error of the operator; see its log: {type(error).__name__}: {error}"
            return await self._report(Outcome.FAILED, owner, previous, Problem("InternalError", message))

    async def _reconcile_valid(
        self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any], failures: int
    ) -> Result:
        done = await self._apply_plan(pipeline, owner, previous)
        applied, problems = done.applied, [*done.applied.problems]
        if not problems and applied.failure is None:
            applied = await self._executor.prune(owner, done.plan.manifests, applied.objects)
            problems = [*applied.problems]
        failure = applied.failure
        if failure is not None and _is_unreportable(failure, failures):
            raise failure
        if failure is not None and not problems:
            problems.append(Problem("ApiUnavailable", f"The API server is unavailable: {failure}"))
        replicas = await self._push_settings(owner, done, applied.objects)
        observed = msgspec.structs.replace(done.observed, objects=applied.objects, replicas=replicas)
        observed = _without_foreign(owner, observed)
        inputs = TuningInputs(
            pipeline=pipeline,
            owner=owner,
            observed_generation=previous.get("observedGeneration"),
            tuning=done.tuning,
            plan=done.plan,
            observed_before=done.observed,
            observed=observed,
            problems=problems,
        )
        decision, metrics = await self._tuning.decide(inputs, _now)
        new = status.status(pipeline, owner, observed, done.plan, metrics, decision.state, previous, problems, _now())
        await self._update_status(owner, previous, new, tuner_events(decision.events))
        message = "; ".join(problem.message for problem in problems)
        outcome = Outcome.SUCCEEDED
        if problems:
            outcome = Outcome.FAILED if failure is not None and failure.unavailable else Outcome.BLOCKED
        seconds = requeue_after(pipeline, done.tuning, decision, self._options.resync_seconds)
        return _result(outcome, new, message, failure, seconds)

    async def _apply_plan(self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any]) -> _AppliedPlan:
        """Plans and applies; starts over if an object changed in between."""
        for _ in range(MAX_PLANS):
            everything = await self._observe(pipeline, owner, previous)
            observed = _without_foreign(owner, everything)
            tuning = tuning_of(pipeline, tuner_state(previous, owner, observed))
            planned = self._plan(pipeline, owner, observed, tuning)
            with_conflicts = await self._observer.with_conflicts(owner, everything, map(key_of, planned.manifests))
            if with_conflicts is not everything:
                everything, observed = with_conflicts, _without_foreign(owner, with_conflicts)
                planned = self._plan(pipeline, owner, observed, tuning)
            applied = await self._executor.apply(owner, planned.manifests, everything.objects)
            if applied.failure is None or applied.failure.status != 409:
                break
        return _AppliedPlan(tuning, planned, observed, applied)

    def _plan(self, pipeline: TTSPipeline, owner: Owner, observed: Observed, tuning: Tuning) -> Plan:
        pipeline = with_setting(pipeline, tuning.assignment.base)
        return plan(pipeline, owner, observed, self._options.pipelines, backup_of(tuning.state))

    async def _observe(self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any]) -> Observed:
        observed = await self._observer.observe(owner, previous)
        replicas = await self._stages.read_settings(owner.namespace, observed.replicas)
        password = observed.password_uid
        if pipeline.spec.connector.managed and password is None:
            password = await self._create_password(owner)
        return msgspec.structs.replace(observed, replicas=replicas, password_uid=password)

    async def _create_password(self, owner: Owner) -> str:
        """Creates the managed Redis's Secret with a new password and returns its UID. Raises Blocked."""
        self._leases.fence(owner)
        manifest = password_secret(owner, secrets.token_urlsafe(_PASSWORD_BYTES))
        try:
            created = await self._api.create(SECRET, owner.namespace, manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            created = await self._api.get_metadata(SECRET, owner.namespace, manifest["metadata"]["name"])
            if not is_owned(created, owner):
                raise Blocked(name_conflict(owner, {**created, "kind": SECRET.kind})) from None
        log.info("%s/%s: created a password for its Redis", owner.namespace, owner.name)
        uid: str = created["metadata"]["uid"]
        return uid

    async def _push_settings(
        self, owner: Owner, done: _AppliedPlan, objects: Mapping[Any, Manifest]
    ) -> tuple[Replica, ...]:
        """Sends settings to replicas of stages whose ConfigMap is up to date; returns all replicas."""
        planned = {key_of(manifest): manifest for manifest in done.plan.manifests}
        keys = {stage: names.settings_key(owner.name, stage) for stage in done.plan.settings}
        recorded = {
            stage: base
            for stage, base in done.plan.settings.items()
            if keys[stage] in objects and not differs(planned[keys[stage]], objects[keys[stage]])
        }

        def desired(replica: Replica) -> DesiredSettings | None:
            base = recorded.get(replica.component)
            return None if base is None else DesiredSettings(base, done.tuning.overrides_for(replica))

        return await self._stages.push_settings(
            owner.namespace, done.observed.replicas, desired, lambda: self._leases.fence(owner)
        )

    async def _report(
        self,
        outcome: Outcome,
        owner: Owner,
        previous: Mapping[str, Any],
        problem: Problem,
        failure: ApiError | None = None,
    ) -> Result:
        """Writes to the status why no plan could be made."""
        new = status.failed(previous, owner, [problem], _now())
        await self._update_status(owner, previous, new)
        return _result(outcome, new, problem.message, failure)

    async def _update_status(
        self, owner: Owner, previous: Mapping[str, Any], new: dict[str, Any], events: Iterable[Event] = ()
    ) -> None:
        """Writes Events, then the status. After a crash in between, the same Events are recognized as duplicates."""
        if new == previous:
            return
        self._leases.fence(owner)
        await self._events.record(owner, previous, [*events, *status_events(previous, new)])
        self._leases.fence(owner)
        manifest = {
            "apiVersion": PIPELINE.api_version,
            "kind": PIPELINE.kind,
            "metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid},
            "status": new,
        }
        await self._api.apply(PIPELINE, owner.namespace, manifest, subresource="status")


def _without_foreign(owner: Owner, observed: Observed) -> Observed:
    """Returns the state without objects that have a planned name but another owner."""
    owned = {key: each for key, each in observed.objects.items() if is_owned(each, owner)}
    return msgspec.structs.replace(observed, objects=owned)


def _is_unreportable(failure: ApiError, failures: int) -> bool:
    """Returns whether not to report a failure in the status: writing would fail too, or it is the first one."""
    return failure.affects_all_requests or (failure.unavailable and failures == 0)


def _result(
    outcome: Outcome,
    new: Mapping[str, Any],
    message: str,
    failure: ApiError | None = None,
    requeue_after: float | None = None,
) -> Result:
    conditions = {condition["type"]: condition["status"] for condition in new.get("conditions") or ()}
    return Result(
        outcome=outcome,
        message=message,
        retry_after=None if failure is None else failure.retry_after,
        requeue_after=requeue_after,
        conditions=conditions,
    )


def _now() -> datetime:
    return datetime.now(UTC)
