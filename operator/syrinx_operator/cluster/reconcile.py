"""One look at a pipeline: read everything, write what differs, say how it is. Level-based; nothing is remembered."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names, status
from syrinx_operator.cluster.announce import announce
from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.apply import Applied, Executor, foreign
from syrinx_operator.cluster.config import Options
from syrinx_operator.cluster.decider import Decider, Shown
from syrinx_operator.cluster.drift import differs
from syrinx_operator.cluster.kinds import PIPELINE, SECRET
from syrinx_operator.cluster.lease import LeaseForeign, LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.loop import Key, Outcome, Result
from syrinx_operator.cluster.observe import Observer, is_owned, key_of
from syrinx_operator.cluster.parse import InvalidSpec, owner_of, parse
from syrinx_operator.cluster.plan import Plan, password_secret, plan
from syrinx_operator.cluster.plan.tuning import copied
from syrinx_operator.cluster.stage_api import StageApi, Wanted
from syrinx_operator.cluster.state import Manifest, Observed, Owner, Replica
from syrinx_operator.cluster.status import Problem, Transition
from syrinx_operator.cluster.tuning import Tuning, as_tuned, look_in, remembered, transitions_of, tuning
from syrinx_operator.resource.spec import TTSPipeline

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""Plans that are made in one look while somebody else changes what they are made from."""
_PASSWORD_BYTES: Final = 32


class Blocked(Exception):
    """Nothing can be planned; the problem says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Carried(Struct, frozen=True):
    """A plan as far as it was carried out."""

    tuning: Tuning
    plan: Plan
    observed: Observed
    applied: Applied


class Reconciler:
    """Looks at pipelines. Every way in which a look can end is a `Result`."""

    def __init__(
        self,
        *,
        api: Api,
        leases: Leases,
        executor: Executor,
        stages: StageApi,
        decider: Decider,
        options: Options,
    ) -> None:
        self._api = api
        self._leases = leases
        self._observer = Observer(api)
        self._executor = executor
        self._stages = stages
        self._decider = decider
        self._config = options.pipelines
        self._identity = options.identity
        self._lease_seconds = options.lease_seconds
        self._period = options.resync_seconds

    def forget(self, key: Key) -> None:
        """The pipeline is gone."""
        self._leases.forget(key.namespace, key.name)
        self._decider.forget(key.namespace, key.name)

    async def reconcile(self, key: Key, failures: int) -> Result:
        """Brings one pipeline nearer to its resource. A server in trouble is told about from the second failure on."""
        try:
            live = await self._api.get(PIPELINE, key.namespace, key.name)
            if "deletionTimestamp" in live["metadata"]:
                return Result(outcome=Outcome.GONE)
            await self._hold(owner_of(live), live.get("status") or {})
            return await self._reconcile(owner_of(live), live, failures)
        except LeaseTaken as taken:
            self._decider.hide(key.namespace, key.name)
            return Result(outcome=Outcome.WATCHING, message=str(taken), look_again=self._lease_seconds / 3)
        except LeaseLost as lost:
            return Result(outcome=Outcome.FAILED, message=str(lost))
        except ApiError as error:
            if error.not_found:
                return Result(outcome=Outcome.GONE)
            return Result(outcome=Outcome.FAILED, message=str(error), retry_after=error.retry_after)

    async def _hold(self, owner: Owner, previous: Mapping[str, Any]) -> None:
        try:
            await self._leases.hold(owner)
        except LeaseForeign as foreign:
            # Without a Lease the status is not ours to write; an Event has one name however often it is said.
            news = [status.Transition("Warning", "NameConflict", str(foreign))]
            await announce(self._api, owner, self._identity, previous, news)
            raise

    async def _reconcile(self, owner: Owner, live: Manifest, failures: int) -> Result:
        previous = live.get("status") or {}
        try:
            return await self._converge(parse(live), owner, previous, failures)
        except InvalidSpec as invalid:
            new = status.invalid(previous, owner, invalid.messages, _now())
            await self._say(owner, previous, new)
            return _result(Outcome.INVALID, new, str(invalid))
        except Blocked as blocked:
            return await self._give_up(Outcome.HINDERED, owner, previous, blocked.problem)
        except ApiError as error:
            if _passes(error, failures):
                raise
            problem = Problem("ApiError", f"The API server refuses what the operator needs: {error} ({error.reason})")
            outcome = Outcome.FAILED if error.unavailable else Outcome.HINDERED
            return await self._give_up(outcome, owner, previous, problem, error)
        except (LeaseTaken, LeaseLost):
            raise
        except Exception as error:
            log.exception("%s/%s: unexpected", owner.namespace, owner.name)
            words = f"The operator itself fails at this resource; its log says more: {type(error).__name__}: {error}"
            return await self._give_up(Outcome.FAILED, owner, previous, Problem("InternalError", words))

    async def _converge(
        self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any], failures: int
    ) -> Result:
        carried = await self._carry_out(pipeline, owner, previous)
        problems, failure = [*carried.applied.problems], carried.applied.failure
        objects = carried.applied.objects
        if not problems and failure is None:
            pruned = await self._executor.prune(owner, carried.plan.manifests, objects)
            problems, failure, objects = [*pruned.problems], pruned.failure, pruned.objects
        if failure is not None and _passes(failure, failures):
            raise failure
        if failure is not None and not problems:
            problems.append(Problem("ApiUnavailable", f"The API server does not do what it is asked: {failure}"))
        observed = msgspec.structs.replace(
            carried.observed,
            objects=_owned(owner, objects),
            replicas=await self._push_settings(owner, carried, objects),
        )
        shown = Shown(
            pipeline=pipeline,
            owner=owner,
            observed_generation=previous.get("observedGeneration"),
            tuning=carried.tuning,
            plan=carried.plan,
            found=carried.observed,
            observed=observed,
            problems=problems,
        )
        decision, does = await self._decider.decide(shown, _now)
        state, told = decision.state, transitions_of(decision.events)
        new = status.status(pipeline, owner, observed, carried.plan, does, state, previous, problems, _now())
        await self._say(owner, previous, new, told)
        message = "; ".join(problem.message for problem in problems)
        outcome = Outcome.DONE if not problems else Outcome.FAILED if _is_down(failure) else Outcome.HINDERED
        result = _result(outcome, new, message, failure)
        return msgspec.structs.replace(result, look_again=look_in(pipeline, carried.tuning, decision, self._period))

    async def _carry_out(self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any]) -> _Carried:
        """Plans and applies; anew if somebody else changed something in between."""
        for _ in range(ATTEMPTS):
            everything = await self._observe(pipeline, owner, previous)
            observed = _only_owned(owner, everything)
            tuned = tuning(pipeline, remembered(previous, owner, observed))
            planned = self._plan(pipeline, owner, observed, tuned)
            wider = await self._observer.with_objects_in_the_way(owner, everything, map(key_of, planned.manifests))
            if wider is not everything:
                everything, observed = wider, _only_owned(owner, wider)
                planned = self._plan(pipeline, owner, observed, tuned)
            applied = await self._executor.apply(owner, planned.manifests, everything.objects)
            if applied.failure is None or applied.failure.status != 409:
                break
        return _Carried(tuned, planned, observed, applied)

    def _plan(self, pipeline: TTSPipeline, owner: Owner, observed: Observed, tuned: Tuning) -> Plan:
        return plan(as_tuned(pipeline, tuned.assignment.base), owner, observed, self._config, copied(tuned.state))

    async def _observe(self, pipeline: TTSPipeline, owner: Owner, previous: Mapping[str, Any]) -> Observed:
        observed = await self._observer.observe(owner, previous)
        replicas = await self._stages.read_settings(owner.namespace, observed.replicas)
        password = observed.password_uid
        if pipeline.spec.connector.managed and password is None:
            password = await self._make_password(owner)
        return msgspec.structs.replace(observed, replicas=replicas, password_uid=password)

    async def _make_password(self, owner: Owner) -> str:
        """The UID of the managed Redis's Secret, which is made with a new password. Raises `Blocked`."""
        self._leases.fence(owner)
        manifest = password_secret(owner, secrets.token_urlsafe(_PASSWORD_BYTES))
        try:
            made = await self._api.create(SECRET, owner.namespace, manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            made = await self._api.get_metadata(SECRET, owner.namespace, manifest["metadata"]["name"])
            if not is_owned(made, owner):
                raise Blocked(foreign(owner, {**made, "kind": SECRET.kind})) from None
        log.info("%s/%s: made a password for its Redis", owner.namespace, owner.name)
        uid: str = made["metadata"]["uid"]
        return uid

    async def _push_settings(
        self, owner: Owner, carried: _Carried, objects: Mapping[Any, Manifest]
    ) -> tuple[Replica, ...]:
        """The replicas after settings went to them, those of stages whose ConfigMap has them already."""
        planned = {key_of(manifest): manifest for manifest in carried.plan.manifests}
        keys = {stage: names.settings_key(owner.name, stage) for stage in carried.plan.settings}
        recorded = {
            stage: base
            for stage, base in carried.plan.settings.items()
            if keys[stage] in objects and not differs(planned[keys[stage]], objects[keys[stage]])
        }

        def wanted(replica: Replica) -> Wanted | None:
            base = recorded.get(replica.component)
            return None if base is None else Wanted(base, carried.tuning.settings_of(replica))

        return await self._stages.push_settings(
            owner.namespace, carried.observed.replicas, wanted, lambda: self._leases.fence(owner)
        )

    async def _give_up(
        self,
        outcome: Outcome,
        owner: Owner,
        previous: Mapping[str, Any],
        problem: Problem,
        failure: ApiError | None = None,
    ) -> Result:
        """Says why nothing could be planned."""
        new = status.failed(previous, owner, [problem], _now())
        await self._say(owner, previous, new)
        return _result(outcome, new, problem.message, failure)

    async def _say(
        self, owner: Owner, previous: Mapping[str, Any], new: dict[str, Any], told: Iterable[Transition] = ()
    ) -> None:
        """Events, then the status they announce: killed in between, the same Events come up again and are there.

        `told` is what was decided besides what the new status itself says.
        """
        if new == previous:
            return
        self._leases.fence(owner)
        news = [*told, *status.transitions(previous, new)]
        await announce(self._api, owner, self._identity, previous, news)
        self._leases.fence(owner)
        metadata = {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid}
        manifest = {
            "apiVersion": PIPELINE.api_version,
            "kind": PIPELINE.kind,
            "metadata": metadata,
            "status": new,
        }
        await self._api.apply(PIPELINE, owner.namespace, manifest, subresource="status")


def _owned(owner: Owner, objects: Mapping[Any, Manifest]) -> dict[Any, Manifest]:
    return {key: each for key, each in objects.items() if is_owned(each, owner)}


def _only_owned(owner: Owner, observed: Observed) -> Observed:
    """Without what others called like this pipeline's own: it says nothing about the pipeline."""
    return msgspec.structs.replace(observed, objects=_owned(owner, observed.objects))


def _passes(failure: ApiError, failures: int) -> bool:
    """Whether it is too early, or no use, to tell people about a failure."""
    return failure.futile or (failure.unavailable and failures == 0)


def _is_down(failure: ApiError | None) -> bool:
    return failure is not None and failure.unavailable


def _result(outcome: Outcome, new: Mapping[str, Any], message: str, failure: ApiError | None = None) -> Result:
    conditions = {condition["type"]: condition["status"] for condition in new.get("conditions") or ()}
    retry_after = failure.retry_after if failure is not None else None
    return Result(outcome=outcome, message=message, retry_after=retry_after, conditions=conditions)


def _now() -> datetime:
    return datetime.now(UTC)
