"""A pipeline's objects in the cluster: reads them, applies those that differ, and deletes those no longer planned."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, structs

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError, if_found
from syrinx_operator.cluster.diagnosis import replicas
from syrinx_operator.cluster.kinds import AUTOSCALER, BY_KIND, OPTIONAL, POD, SECRET, WATCHED, Kind
from syrinx_operator.cluster.plan.objects import differs
from syrinx_operator.cluster.state import Manifest, ObjectKey, Observed, Owner, Problem, Replica, is_owned, key_of
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.resource.spec import KIND

log = logging.getLogger(__name__)

DISCOVERY_CACHE_SECONDS: Final = 60.0
_PRUNED = frozenset(kind.kind for kind in (*WATCHED, *OPTIONAL))


class Applied(Struct, kw_only=True):
    """The result of applying or pruning."""

    objects: dict[ObjectKey, Manifest]
    """The observed objects, updated with the API server's answers."""
    problems: list[Problem] = []
    """What the user should know or fix."""
    failure: ApiError | None = None
    """The most severe API error that is worth a retry."""

    def add_error(self, key: ObjectKey, error: ApiError, action: str) -> None:
        """Adds an API error. A conflict (409) is no problem: the next reconcile sees the new version."""
        if self.failure is None or error.unavailable:
            self.failure = error
        if not error.unavailable and error.status != 409:
            message = f"{key.kind} {key.name} cannot be {action}: {error} ({error.reason})"
            self.problems.append(Problem("ApplyFailed", message))


class Objects:
    """Reads objects, and writes them while the fence permits it. It caches only which optional kinds are served."""

    def __init__(self, api: Api, telemetry: Telemetry, fence: Callable[[Owner], None]) -> None:
        self._api = api
        self._telemetry = telemetry
        self._fence = fence
        self._served: frozenset[Kind] = frozenset()
        self._served_until = 0.0

    async def observe(self, owner: Owner, status: Mapping[str, Any]) -> Observed:
        """Returns all objects with the pipeline's label. `status` is the live status. Raises ApiError."""
        served = await self._optional_kinds()
        selector = f"{names.PIPELINE_LABEL}={owner.name}"
        kinds = (*WATCHED, *sorted(served, key=lambda kind: kind.kind))
        lists, pods, autoscalers, password = await asyncio.gather(
            asyncio.gather(*(self._api.list_objects(kind, owner.namespace, selector) for kind in kinds)),
            self._api.list_objects(POD, owner.namespace, selector),
            self._api.list_objects(AUTOSCALER, owner.namespace),
            self._password_uid(owner),
        )
        return Observed(
            objects={key_of(found): found for each in lists for found in each},
            replicas=replicas(pods, datetime.now(UTC)),
            autoscaled=frozenset(autoscaler_targets(autoscalers)),
            password_uid=password,
            served_kinds=frozenset(kind.kind for kind in served),
            status_generations=Observed.settings_generations(status),
        )

    async def with_conflicts(self, owner: Owner, observed: Observed, keys: Iterable[ObjectKey]) -> Observed:
        """Returns the state with unlabeled objects that have one of the planned names. Raises ApiError."""
        unseen = [key for key in keys if key not in observed.objects]
        requests = (self._api.get(BY_KIND[key.kind], owner.namespace, key.name) for key in unseen)
        found = await asyncio.gather(*map(if_found, requests))
        conflicts = {key: each for key, each in zip(unseen, found, strict=True) if each is not None}
        return structs.replace(observed, objects={**observed.objects, **conflicts}) if conflicts else observed

    async def _password_uid(self, owner: Owner) -> str | None:
        """Returns the UID of the password Secret, whose data is never read."""
        name = names.password_secret(owner.name)
        found = await if_found(self._api.get_metadata(SECRET, owner.namespace, name))
        return found["metadata"]["uid"] if found and is_owned(found, owner) else None

    async def _optional_kinds(self) -> frozenset[Kind]:
        if time.monotonic() >= self._served_until:
            served = await asyncio.gather(*(self._api.serves(kind) for kind in OPTIONAL))
            self._served = frozenset(kind for kind, is_served in zip(OPTIONAL, served, strict=True) if is_served)
            self._served_until = time.monotonic() + DISCOVERY_CACHE_SECONDS
        return self._served

    async def apply(self, owner: Owner, manifests: Iterable[Manifest], live: Mapping[ObjectKey, Manifest]) -> Applied:
        """Applies the manifests that differ from the live objects until the server is unavailable. Raises LeaseLost."""
        result = Applied(objects=dict(live))
        for manifest in manifests:
            key = key_of(manifest)
            before = live.get(key)
            if before is not None and not is_owned(before, owner):
                result.problems.append(name_conflict(owner, before))
                continue
            if before is not None and "deletionTimestamp" in before["metadata"]:
                message = f"{key.kind} {key.name} is being deleted and will be recreated."
                result.problems.append(Problem("BeingDeleted", message))
                continue
            try:
                result.objects[key] = await self._apply_one(owner, manifest, before)
            except ApiError as error:
                result.add_error(key, error, "applied")
                if error.unavailable:
                    break
        return result

    async def prune(self, owner: Owner, manifests: Iterable[Manifest], live: Mapping[ObjectKey, Manifest]) -> Applied:
        """Deletes the pipeline's objects that are not planned. Raises LeaseLost."""
        planned = {key_of(manifest) for manifest in manifests}
        result = Applied(objects=dict(live))
        for key, manifest in live.items():
            if key in planned or key.kind not in _PRUNED or not is_owned(manifest, owner):
                continue
            if "deletionTimestamp" in manifest["metadata"]:
                continue
            try:
                await self._delete(owner, key, manifest)
                del result.objects[key]
            except ApiError as error:
                result.add_error(key, error, "deleted")
                if error.unavailable:
                    break
        return result

    async def delete_pods(self, owner: Owner, pods: Iterable[Replica], result: Applied) -> None:
        """Deletes pods, which their StatefulSets create again; adds errors to `result`. Raises LeaseLost."""
        for pod in pods:
            key = ObjectKey(POD.kind, pod.name)
            try:
                await self._delete(owner, key, {"metadata": {"uid": pod.uid}})
            except ApiError as error:
                result.add_error(key, error, "deleted")

    async def _apply_one(self, owner: Owner, manifest: Manifest, live: Manifest | None) -> Manifest:
        if live is not None and not differs(manifest, live):
            return live
        self._fence(owner)
        kind = BY_KIND[manifest["kind"]]
        if live is not None:
            # With its UID the apply fails if another object has taken the name meanwhile.
            manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}
        try:
            answer = await self._api.apply(kind, owner.namespace, manifest)
        except ApiError:
            self._telemetry.object_writes.labels(kind.kind, "rejected").inc()
            raise
        version = answer["metadata"].get("resourceVersion")
        unchanged = live is not None and version == live["metadata"].get("resourceVersion")
        self._telemetry.object_writes.labels(kind.kind, "unchanged" if unchanged else "applied").inc()
        level = logging.DEBUG if unchanged else logging.INFO
        values = owner.namespace, owner.name, kind.kind, manifest["metadata"]["name"]
        log.log(level, "%s/%s: applied %s %s", *values, extra=owner.log_fields)
        return {**answer, "apiVersion": kind.api_version, "kind": kind.kind}

    async def _delete(self, owner: Owner, key: ObjectKey, manifest: Manifest) -> None:
        self._fence(owner)
        try:
            await self._api.delete(BY_KIND[key.kind], owner.namespace, key.name, manifest["metadata"]["uid"])
        except ApiError as error:
            # 404: already deleted. 409: another object has the name now.
            if not error.not_found and error.status != 409:
                raise
        self._telemetry.object_writes.labels(key.kind, "deleted").inc()
        values = owner.namespace, owner.name, key.kind, key.name
        log.info("%s/%s: deleted %s %s", *values, extra=owner.log_fields)


def autoscaler_targets(autoscalers: Iterable[Manifest]) -> Iterable[ObjectKey]:
    """Yields the Deployments and StatefulSets that HorizontalPodAutoscalers target."""
    for autoscaler in autoscalers:
        target = autoscaler.get("spec", {}).get("scaleTargetRef") or {}
        if target.get("kind") in ("Deployment", "StatefulSet"):
            yield ObjectKey(target["kind"], target.get("name", ""))


def name_conflict(owner: Owner, live: Manifest) -> Problem:
    """Returns the problem of an object that has a planned name but does not belong to the pipeline."""
    references = live["metadata"].get("ownerReferences") or ()
    if any((each.get("kind"), each.get("name")) == (KIND, owner.name) for each in references):
        message = "belongs to a deleted pipeline of the same name; it will be recreated once it is garbage collected."
    else:
        message = (
            "exists and does not belong to this pipeline, so it is not changed. "
            "Delete or rename it, or rename the pipeline."
        )
    return Problem("NameConflict", f"{live['kind']} {live['metadata']['name']} {message}")
