"""One look at a pipeline: read everything, write what differs, say how it is. Level-based; nothing is remembered."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names, status
from syrinx_operator.cluster.announce import announce
from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.apply import Applied, Executor, foreign
from syrinx_operator.cluster.config import Options
from syrinx_operator.cluster.drift import differs
from syrinx_operator.cluster.kinds import PIPELINE, SECRET
from syrinx_operator.cluster.lease import LeaseForeign, LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.loop import Key, Outcome, Result
from syrinx_operator.cluster.measure import Look, Meter, measured, window
from syrinx_operator.cluster.observe import Observer, is_owned, key_of
from syrinx_operator.cluster.plan import Plan, password_secret, plan
from syrinx_operator.cluster.plan.tuning import copied
from syrinx_operator.cluster.resource import InvalidSpec, owner_of, parse
from syrinx_operator.cluster.stage_api import StageApi, Wanted
from syrinx_operator.cluster.state import Component, Manifest, Measured, Observed, Owner, Replica
from syrinx_operator.cluster.status import Problem, Transition
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.cluster.tuning import (
    Tuning,
    as_tuned,
    identity,
    look_in,
    moving,
    remembered,
    transitions_of,
    tuning,
    workers,
)
from syrinx_operator.spec import TTSPipeline
from syrinx_operator.tuner.decide import Decision
from syrinx_operator.tuner.runner import Seen, Tuner

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""Plans that are made in one look while somebody else changes what they are made from."""
TRIAL_SCRAPE_SECONDS: Final = 1.0
"""Between two looks at the metrics at least, while something is tried."""
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
        meter: Meter,
        tuner: Tuner,
        telemetry: Telemetry,
        options: Options,
    ) -> None:
        self._api = api
        self._leases = leases
        self._observer = Observer(api)
        self._executor = executor
        self._stages = stages
        self._meter = meter
        self._tuner = tuner
        self._telemetry = telemetry
        self._config = options.pipelines
        self._identity = options.identity
        self._lease_seconds = options.lease_seconds
        self._period = options.resync_seconds
        self._last: dict[str, Measured] = {}
        """What was measured of each pipeline last; lost with the process, it is measured again."""

    def forget(self, key: Key) -> None:
        """The pipeline is gone."""
        self._leases.forget(key.namespace, key.name)
        self._tuner.forget(str(key))
        self._last.pop(str(key), None)
        self._telemetry.tuning.forget((key.namespace, key.name))

    async def reconcile(self, key: Key, failures: int) -> Result:
        """Brings one pipeline nearer to its resource. A server in trouble is told about from the second failure on."""
        try:
            live = await self._api.get(PIPELINE, key.namespace, key.name)
            if "deletionTimestamp" in live["metadata"]:
                return Result(outcome=Outcome.GONE)
            await self._hold(owner_of(live), live.get("status") or {})
            return await self._reconcile(owner_of(live), live, failures)
        except LeaseTaken as taken:
            self._telemetry.tuning.forget((key.namespace, key.name))
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
        look = await self._look(pipeline, owner, observed, carried.tuning)
        now = _now()
        decision = self._decide(pipeline, owner, carried, observed, look, previous, problems, now)
        found = self._measured(owner, carried.tuning, look, now)
        state, told = decision.state, transitions_of(decision.events)
        new = status.status(pipeline, owner, observed, carried.plan, found, state, previous, problems, now)
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

    async def _look(self, pipeline: TTSPipeline, owner: Owner, observed: Observed, tuned: Tuning) -> Look | None:
        """What the stages have counted. While something is tried, at every look: it was asked for when it is due."""
        trial = tuned.state.trial
        changing = trial is not None or tuned.state.promotion is not None
        return await self._meter.look(
            pipeline,
            owner,
            observed.replicas,
            lambda replica: self._scrape(owner, replica),
            every=TRIAL_SCRAPE_SECONDS if changing else None,
            tuned=None if trial is None else trial.knob.stage,
        )

    def _measured(self, owner: Owner, tuned: Tuning, look: Look | None, now: datetime) -> Measured | None:
        """What the status says of the last minutes: it changes when something new is known, not with the clock."""
        name = _named(owner)
        if look is None:
            self._last.pop(name, None)
            return None
        if look.snapshots or look.problem or name not in self._last:
            since = now - timedelta(seconds=window(tuned.policy))
            evidence = self._tuner.evidence(name, tuned.policy, None, since, now)
            self._last[name] = measured(look, tuned.policy, evidence)
        return self._last[name]

    def _decide(
        self,
        pipeline: TTSPipeline,
        owner: Owner,
        carried: _Carried,
        observed: Observed,
        look: Look | None,
        previous: Mapping[str, Any],
        problems: Sequence[Problem],
        now: datetime,
    ) -> Decision:
        """What tuning makes of this look. The status remembers it, and the next look carries it out."""
        name, tuned, planned = _named(owner), carried.tuning, carried.plan
        before = status.read(previous)
        seen = Seen(
            snapshots=() if look is None else look.snapshots,
            scraped_every=0.0 if look is None else look.scraped_every,
            problem="" if look is None else look.problem,
            # As they were before this look set anything: what they did until now, they did under these settings.
            workers=workers(carried.observed),
            identity=identity(pipeline, planned, observed, self._tuner.devices(name), tuned.state.identity),
            moving=moving(planned, observed, problems, before.observed_generation, owner),
        )
        decision = self._tuner.tick(name, tuned.policy, tuned.state, seen, now)
        self._telemetry.tuning.tell(
            (owner.namespace, owner.name),
            base=tuned.assignment.base,
            state=decision.state,
            events=decision.events,
            metrics_until=max((each.at for each in seen.snapshots if each.stage == Component.GATEWAY), default=None),
        )
        return decision

    async def _scrape(self, owner: Owner, replica: Replica) -> str:
        return await self._stages.scrape(owner.namespace, replica)

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


def _named(owner: Owner) -> str:
    return str(Key(owner.namespace, owner.name))


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
