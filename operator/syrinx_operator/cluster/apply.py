"""Carries out a plan: applies what differs, in order, and deletes what has left it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.drift import differs
from syrinx_operator.cluster.kinds import BY_KIND, OPTIONAL, WATCHED
from syrinx_operator.cluster.observe import is_owned, key_of
from syrinx_operator.cluster.state import Manifest, ObjectKey, Owner
from syrinx_operator.cluster.status import Problem
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.resource.spec import KIND

log = logging.getLogger(__name__)

_PRUNED = frozenset(kind.kind for kind in (*WATCHED, *OPTIONAL))


class Applied(Struct, frozen=True, kw_only=True):
    """How far a plan could be carried out."""

    objects: Mapping[ObjectKey, Manifest]
    """What was observed, brought up to date by what the API server answered."""
    problems: Sequence[Problem] = ()
    """What stands in the way, for people."""
    failure: ApiError | None = None
    """The worst of what went wrong, if it is worth another try soon."""


class Executor:
    """Writes to the API server, as long as the fence lets it."""

    def __init__(self, api: Api, telemetry: Telemetry, fence: Callable[[Owner], None]) -> None:
        self._api = api
        self._telemetry = telemetry
        self._fence = fence

    async def apply(self, owner: Owner, manifests: Iterable[Manifest], live: Mapping[ObjectKey, Manifest]) -> Applied:
        """Brings every object of the plan into being. Raises `LeaseLost`.

        One that is refused does not keep the others waiting; a server in trouble ends it. One that changed meanwhile
        (409) is no problem: the next look sees it.
        """
        objects, problems, failure = dict(live), [], None
        for manifest in manifests:
            key = key_of(manifest)
            obstacle = _obstacle(owner, objects.get(key))
            if obstacle is not None:
                problems.append(obstacle)
                continue
            try:
                objects[key] = await self._bring(owner, manifest, objects.get(key))
            except ApiError as error:
                failure = _worse(failure, error)
                if error.unavailable:
                    break
                if error.status != 409:
                    problems.append(_refusal(key, error))
        return Applied(objects=objects, problems=problems, failure=failure)

    async def prune(self, owner: Owner, manifests: Iterable[Manifest], live: Mapping[ObjectKey, Manifest]) -> Applied:
        """Deletes what is the pipeline's and not in its plan any more. Raises `LeaseLost`."""
        planned = {key_of(manifest) for manifest in manifests}
        objects, problems, failure = dict(live), [], None
        for key, manifest in live.items():
            if key in planned or key.kind not in _PRUNED or not is_owned(manifest, owner):
                continue
            if "deletionTimestamp" in manifest["metadata"]:
                continue
            try:
                await self._delete(owner, key, manifest)
                del objects[key]
            except ApiError as error:
                failure = _worse(failure, error)
                if error.unavailable:
                    break
                problems.append(_refusal(key, error, "deleted"))
        return Applied(objects=objects, problems=problems, failure=failure)

    async def _bring(self, owner: Owner, manifest: Manifest, live: Manifest | None) -> Manifest:
        """The live object, applied if it differs."""
        if live is not None and not differs(manifest, live):
            return live
        self._fence(owner)
        kind = BY_KIND[manifest["kind"]]
        wanted = manifest if live is None else _only_onto(manifest, live)
        try:
            answer = await self._api.apply(kind, owner.namespace, wanted)
        except ApiError:
            self._telemetry.changes.labels(kind.kind, "refused").inc()
            raise
        unchanged = live is not None and _version(answer) == _version(live)
        self._telemetry.changes.labels(kind.kind, "unchanged" if unchanged else "applied").inc()
        level = logging.DEBUG if unchanged else logging.INFO
        log.log(level, "%s/%s: applied %s %s", owner.namespace, owner.name, kind.kind, manifest["metadata"]["name"])
        return {**answer, "apiVersion": kind.api_version, "kind": kind.kind}

    async def _delete(self, owner: Owner, key: ObjectKey, manifest: Manifest) -> None:
        self._fence(owner)
        try:
            await self._api.delete(BY_KIND[key.kind], owner.namespace, key.name, manifest["metadata"]["uid"])
        except ApiError as error:
            # Gone, or another object by now: either way not there any more.
            if not error.not_found and error.status != 409:
                raise
        self._telemetry.changes.labels(key.kind, "deleted").inc()
        log.info("%s/%s: deleted %s %s", owner.namespace, owner.name, key.kind, key.name)


def _obstacle(owner: Owner, live: Manifest | None) -> Problem | None:
    """Why an object of this name must not be touched."""
    if live is None:
        return None
    if not is_owned(live, owner):
        return foreign(owner, live)
    if "deletionTimestamp" in live["metadata"]:
        return Problem("BeingDeleted", f"{_named(live)} is being deleted; it is made anew as soon as it is gone.")
    return None


def foreign(owner: Owner, live: Manifest) -> Problem:
    """An object of the pipeline's name that is not the pipeline's."""
    references = live["metadata"].get("ownerReferences") or ()
    if any((each.get("kind"), each.get("name")) == (KIND, owner.name) for each in references):
        words = "belongs to a former pipeline of this name; it is made anew as soon as it is cleared away."
    else:
        words = (
            "exists and does not belong to this pipeline; it is left alone. "
            "Delete or rename it, or give the pipeline another name."
        )
    return Problem("NameConflict", f"{_named(live)} {words}")


def _named(live: Manifest) -> str:
    return f"{live['kind']} {live['metadata']['name']}"


def _refusal(key: ObjectKey, error: ApiError, done: str = "applied") -> Problem:
    return Problem("ApplyFailed", f"{key.kind} {key.name} cannot be {done}: {error} ({error.reason})")


def _only_onto(manifest: Manifest, live: Manifest) -> Manifest:
    """With the live object's UID: should another have taken its name by now, nothing is applied."""
    return {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}


def _version(manifest: Manifest) -> Any:
    return manifest["metadata"].get("resourceVersion")


def _worse(before: ApiError | None, error: ApiError) -> ApiError:
    return error if before is None or error.unavailable else before
