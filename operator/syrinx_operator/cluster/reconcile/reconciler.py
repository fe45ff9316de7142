"""Reconciles one pipeline: reads its state, applies the plan, writes the status. Level-based and stateless."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from syrinx_operator.cluster.config import Options
from syrinx_operator.cluster.objects import names, state
from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.kinds import PIPELINE
from syrinx_operator.cluster.objects.state import (
    Blocked,
    Manifest,
    Metrics,
    ObjectKey,
    Observed,
    Owner,
    Problem,
    Replica,
    key_of,
)
from syrinx_operator.cluster.plan import Plan, plan
from syrinx_operator.cluster.plan.objects import differs
from syrinx_operator.cluster.plan.settings_token import SettingsToken
from syrinx_operator.cluster.reconcile.apply import Objects
from syrinx_operator.cluster.reconcile.reports import Reports
from syrinx_operator.cluster.reconcile.secrets import UNREADY_SECONDS, Secrets
from syrinx_operator.cluster.report.obstacles import StatusInputs
from syrinx_operator.cluster.report.status import failed, status
from syrinx_operator.cluster.runners.canary_runner import CanaryRunner, command_of, route_overrides
from syrinx_operator.cluster.runners.prometheus_reader import PrometheusReader
from syrinx_operator.cluster.runners.tuning import (
    MetricsReader,
    Tuning,
    TuningRunner,
    disruption_of,
    lost_event,
    paused_metrics,
    requeue_after,
    tuner_state,
    tuning_of,
)
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.watch.stage_api import DesiredSettings, StageApi
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.cluster.watch.workqueue import NamespacedName, Outcome, Result
from syrinx_operator.resource.resolve import ResolvedPipeline, resolve
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_operator.resource.state.status import PipelineStatus, read
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.stages import Stage

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""Attempts per reconcile, each with a plan of its own, while others change the observed objects (409)."""


class Subject(Struct, frozen=True):
    """The pipeline of a reconcile, as it was read."""

    pipeline: ResolvedPipeline
    owner: Owner
    previous: Mapping[str, Any]
    """Its status."""
    before: PipelineStatus
    """The same, as far as this operator can read it."""
    unknown_fields: str
    """Fields of the resource that this operator does not know, as text."""

    @property
    def was_ready(self) -> bool:
        """Whether it was ready at the last reconcile."""
        return any(each.type == "Ready" and each.status == "True" for each in self.before.conditions)

    def status_inputs(
        self,
        planned: Plan,
        observed: Observed,
        tuning: State,
        canary: CanaryStatus | None,
        metrics: Metrics,
        now: datetime,
        problems: Sequence[Problem] = (),
    ) -> StatusInputs:
        """Returns the inputs of its new status."""
        return StatusInputs(
            pipeline=self.pipeline,
            owner=self.owner,
            before=self.before,
            plan=planned,
            observed=observed,
            problems=problems,
            metrics=metrics,
            tuning=tuning,
            canary=canary,
            unknown_fields=self.unknown_fields,
            now=now,
        )


class Reconciler:
    """Reconciles pipelines. `reconcile` returns a `Result` for every outcome."""

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        leases: Leases,
        stages: StageApi,
        telemetry: Telemetry,
        options: Options,
        now: Now = utc_now,
        tuner: Tuner | None = None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._leases = leases
        self._stages = stages
        self._options = options
        self._now = now
        self._secrets = Secrets(api, options.relist_seconds, leases.fence)
        self._objects = Objects(api, cache, telemetry, leases.fence, now)
        reader = MetricsReader(PrometheusReader(api.get, options.prometheus, options.relist_seconds, now), now)
        self._tuning = TuningRunner(reader, tuner or Tuner(), telemetry.tuning, stages.scrape)
        self._canaries = CanaryRunner(stages.scrape)
        self._reports = Reports(api, cache, leases, self._objects, telemetry.conditions, options.identity, now)

    def forget(self, key: NamespacedName) -> None:
        """Drops what is kept in memory for a deleted pipeline."""
        self._tuning.forget(key.namespace, key.name)
        self._canaries.forget(key.namespace, key.name)
        self._secrets.forget(key.namespace, key.name)
        if not any(True for _ in self._cache.of(PIPELINE, key.namespace).all(key.namespace)):
            self._leases.forget(key.namespace)
        self._reports.forget(key.namespace, key.name)

    async def reconcile(self, key: NamespacedName, failures: int) -> Result:
        """Moves a pipeline toward its spec. `failures` is the number of consecutive failures before."""
        try:
            if self._live(key) is None:
                return Result(outcome=Outcome.DELETED)
            await self._leases.hold(key.namespace)
            # Holding the Lease may have refreshed the cache.
            if (live := self._live(key)) is None:
                return Result(outcome=Outcome.DELETED)
            owner, previous = state.owner_of(live), live.get("status") or {}
            return await self._reconcile(owner, live, previous, failures)
        except LeaseTaken as taken:
            self._tuning.drop_metrics(key.namespace, key.name)
            self._reports.forget(key.namespace, key.name)
            seconds = self._options.lease_seconds / 3
            return Result(outcome=Outcome.STANDBY, message=str(taken), requeue_after=seconds)
        except LeaseLost as lost:
            return Result(outcome=Outcome.FAILED, message=str(lost))
        except ApiError as error:
            if error.not_found:
                return Result(outcome=Outcome.DELETED)
            return Result(outcome=Outcome.FAILED, message=str(error), retry_after=error.retry_after)

    def _live(self, key: NamespacedName) -> Manifest | None:
        """Returns a pipeline that is not terminating."""
        live = self._cache.of(PIPELINE, key.namespace).get(key.namespace, key.name)
        return None if live is None or "deletionTimestamp" in live["metadata"] else live

    async def _reconcile(self, owner: Owner, live: Manifest, previous: Mapping[str, Any], failures: int) -> Result:
        """Reconciles with the Lease held, and writes errors to the status."""
        outcome, failure = Outcome.BLOCKED, None
        try:
            pipeline, unknown = resolve(state.parse_pipeline(live)), state.unknown_fields(live)
            subject = Subject(pipeline, owner, previous, read(previous), unknown)
            if subject.pipeline.spec.paused:
                return await self._report_paused(subject)
            return await self._reconcile_valid(subject, failures, command_of(live))
        except state.InvalidSpec as invalid:
            message = f"the pipeline keeps running unchanged until this is corrected: {invalid}"
            outcome, problem = Outcome.INVALID, Problem("Invalid", message)
        except Blocked as blocked:
            problem = blocked.args[0]
        except ApiError as error:
            if _is_unreportable(error, failures):
                raise
            problem = Problem("ApiError", f"The API server rejected a request: {error} ({error.reason})")
            outcome, failure = Outcome.FAILED if error.unavailable else Outcome.BLOCKED, error
        except (LeaseTaken, LeaseLost):
            raise
        except Exception as error:
            log.exception("%s/%s: unexpected error", owner.namespace, owner.name, extra=owner.log_fields)
            message = f"Internal error of the operator; see its log: {type(error).__name__}: {error}"
            outcome, problem = Outcome.FAILED, Problem("InternalError", message)
        new = failed(previous, owner, problem, self._now())
        await self._reports.write(owner, previous, new)
        return _result(outcome, new, problem.message, failure)

    async def _reconcile_valid(self, subject: Subject, failures: int, command: str) -> Result:
        pipeline, owner, previous = subject.pipeline, subject.owner, subject.previous
        if not subject.was_ready:
            self._secrets.forget(owner.namespace, owner.name, UNREADY_SECONDS)
        token = await self._secrets.token(owner)
        for _ in range(MAX_ATTEMPTS):
            before = await self._observe(subject, token, await self._secrets.password(owner, pipeline.redis))
            tuning, lost, planned = self._plan(subject, before)
            applied = await self._objects.apply(owner, planned.manifests, before.objects)
            if applied.failure is None or applied.failure.status != 409:
                break
        await self._objects.prune(owner, planned.manifests, applied, planned.keep)
        if not applied.problems and applied.failure is None:
            await self._objects.delete_pods(owner, planned.delete, applied)
        problems, failure = applied.problems, applied.failure
        if failure is not None and _is_unreportable(failure, failures):
            raise failure
        if failure is not None and not problems:
            problems.append(Problem("ApiUnavailable", f"The API server is unavailable: {failure}"))
        pushed = await self._push_settings(pipeline, owner, tuning, planned, before, applied.objects, token)
        observed = structs.replace(pushed, objects=applied.objects)
        disruption = disruption_of(planned, observed, problems, previous.get("observedGeneration"), owner)
        decision, metrics = await self._tuning.decide(pipeline, owner, tuning, planned, observed, disruption, self._now)
        canary = await self._canaries.decide(
            pipeline, owner, planned, observed, subject.before.canary, decision.state, command, self._now
        )
        inputs = subject.status_inputs(planned, observed, decision.state, canary.status, metrics, self._now(), problems)
        new = status(inputs)
        is_recorded = ObjectKey("ConfigMap", names.tuning_record(owner.name)) not in applied.missing
        lost_events = [lost_event(owner, lost)] if lost and is_recorded else []
        tuner = decision.state if is_recorded else None
        events = [*lost_events, *decision.events, *canary.events]
        await self._reports.write(owner, previous, new, events, tuner, applied.objects)
        if command:
            await self._remove_command(owner)
        message = "; ".join(problem.message for problem in problems)
        outcome = Outcome.BLOCKED if problems else Outcome.SUCCEEDED
        if failure is not None and failure.unavailable:
            outcome = Outcome.FAILED
        seconds = requeue_after(pipeline, tuning, decision, self._options.resync_seconds)
        if canary.requeue_after is not None:
            seconds = min(seconds, canary.requeue_after)
        return _result(outcome, new, message, failure, seconds)

    async def _report_paused(self, subject: Subject) -> Result:
        """Writes the status of a paused pipeline, and nothing else. Raises Blocked if it has no objects yet."""
        owner, previous, redis = subject.owner, subject.previous, subject.pipeline.redis
        token = await self._secrets.find_token(owner)
        password = await self._secrets.find_password(owner, redis)
        if token is None or (redis and password is None):
            raise Blocked(Problem("Paused", "spec.paused is set: the pipeline is created once it is removed"))
        observed = await self._observe(subject, token, password)
        tuning, _, planned = self._plan(subject, observed)
        canary, now = subject.before.canary, self._now()
        new = status(subject.status_inputs(planned, observed, tuning.state, canary, paused_metrics(now), now))
        if "tuning" in previous:
            new["tuning"] = previous["tuning"]
        await self._reports.write(owner, previous, new)
        return _result(Outcome.SUCCEEDED, new, "", None, self._options.resync_seconds)

    def _plan(self, subject: Subject, observed: Observed) -> tuple[Tuning, str, Plan]:
        """Returns the tuning, what is lost of the tuner's state, and the plan with the tuned settings."""
        pipeline, owner = subject.pipeline, subject.owner
        tuner, lost = tuner_state(subject.previous, owner, observed)
        tuning, canary = tuning_of(pipeline, tuner), subject.before.canary
        return tuning, lost, plan(tuning.applied_to(pipeline), owner, observed, self._options.pipelines, tuner, canary)

    async def _observe(self, subject: Subject, token: SettingsToken, password: str | None) -> Observed:
        owner = subject.owner
        observed = await self._objects.observe(owner, subject.previous)
        replicas = (*observed.replicas, *observed.canary)
        found = await self._stages.read_settings(owner.namespace, replicas, token.value)
        return structs.replace(observed.with_replicas(found), password_uid=password, token_uid=token.uid)

    async def _remove_command(self, owner: Owner) -> None:
        """Removes the command about the canary from the pipeline, once the status shows that it was followed."""
        self._leases.fence(owner)
        annotations = {names.ROLLOUT_ANNOTATION: None}
        body = {"metadata": {"uid": owner.uid, "annotations": annotations}}
        answer = await self._api.merge(PIPELINE, owner.namespace, owner.name, body)
        self._cache.of(PIPELINE, owner.namespace).put(answer)

    async def _push_settings(
        self,
        pipeline: ResolvedPipeline,
        owner: Owner,
        tuning: Tuning,
        planned: Plan,
        before: Observed,
        objects: Mapping[ObjectKey, Manifest],
        token: SettingsToken,
    ) -> Observed:
        """Sends settings to replicas of stages whose ConfigMap is up to date; returns `before` with their reports."""
        manifests = {key_of(manifest): manifest for manifest in planned.manifests}

        def desired(replica: Replica) -> DesiredSettings | None:
            key = ObjectKey("ConfigMap", names.workload(owner.name, replica.component))
            stage = replica.component
            if not isinstance(stage, Stage) or key not in objects or differs(manifests[key], objects[key]):
                return None
            # One body: the next one replaces all overrides of a replica.
            overrides = tuning.overrides_for(replica) | route_overrides(planned, pipeline, before, replica)
            return DesiredSettings(planned.settings[stage], overrides)

        replicas, fence = (*before.replicas, *before.canary), partial(self._leases.fence, owner)
        return before.with_replicas(
            await self._stages.push_settings(owner.namespace, replicas, desired, fence, token.value)
        )


def _is_unreportable(failure: ApiError, failures: int) -> bool:
    """Returns whether not to report a failure in the status: writing would fail too, or it is the first one.

    A conflict (409) is resolved by the next reconcile, which sees the new version.
    """
    return failure.affects_all_requests or ((failure.unavailable or failure.status == 409) and failures == 0)


def _result(
    outcome: Outcome, new: Mapping[str, Any], message: str, failure: ApiError | None, requeue_after: float | None = None
) -> Result:
    return Result(
        outcome=outcome,
        message=message,
        retry_after=None if failure is None else failure.retry_after,
        requeue_after=requeue_after,
        conditions={condition["type"]: condition["status"] for condition in new.get("conditions") or ()},
    )
