"""A pipeline's objects in the cluster: reads them, applies those that differ, and deletes those no longer planned."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import Now
from syrinx_operator.cluster.objects.kinds import AUTOSCALER, BY_KIND, OPTIONAL, PLANNED, POD, Kind
from syrinx_operator.cluster.objects.state import (
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Problem,
    Replica,
    is_owned,
    key_of,
)
from syrinx_operator.cluster.plan.objects import differs, quantity
from syrinx_operator.cluster.report.diagnosis import job_problems, replicas
from syrinx_operator.cluster.watch.api import Api, ApiError, if_found
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.resource.spec import KIND

log = logging.getLogger(__name__)

_PRUNED = frozenset(kind.kind for kind in (*PLANNED, *OPTIONAL))
_DISPENSABLE = frozenset({"PodDisruptionBudget", "PodMonitor"})
"""Kinds that nothing else needs to run."""

_UNKNOWN_FIELD = re.compile(r"\.image: field not declared in schema")
_IMAGE_VOLUMES = Problem(
    "ImageVolumesNotSupported",
    "spec.model.image: this cluster has no image volumes, so the workloads are not changed. They need Kubernetes 1.35, "
    "or 1.33 with the feature gate ImageVolume. Otherwise create a pipeline with spec.model.s3, huggingFace or claim.",
)
_GROWTH_ADVICE = "; if its StorageClass cannot expand volumes, set the size back"
_FAMILY_ADVICE = "; the first of ipFamilies cannot change: set it back, or delete the Service for another address"


class _NotApplicable(Exception):
    """A manifest cannot be applied now; the argument is the Problem."""


class Applied(Struct, kw_only=True):
    """The result of applying or pruning."""

    objects: dict[ObjectKey, Manifest]
    """The observed objects, updated with the API server's answers."""
    problems: list[Problem] = []
    """What the user should know or fix."""
    missing: list[ObjectKey] = []
    """Objects that are not as planned."""
    failure: ApiError | None = None
    """The most severe API error that is worth a retry."""

    def add_error(self, key: ObjectKey, error: ApiError, action: str, advice: str = "") -> None:
        """Adds an API error. A conflict (409) is no problem: the next reconcile sees the new version."""
        if self.failure is None or error.unavailable:
            self.failure = error
        if not error.unavailable and error.status != 409:
            message = f"{key.kind} {key.name} cannot be {action}: {error} ({error.reason}){advice}"
            self.problems.append(Problem("ApplyFailed", message))


@dataclass
class Objects:
    """Reads objects from the cache, and writes them while the fence permits it."""

    _api: Api
    _cache: Cache
    _telemetry: Telemetry
    _fence: Callable[[Owner], None]
    _now: Now

    async def observe(self, owner: Owner, status: Mapping[str, Any]) -> Observed:
        """Returns the pipeline's objects that have its label. `status` is the live status. Raises ApiError."""
        cache, namespace = self._cache, owner.namespace
        await cache.require_current(namespace)
        served = [kind for kind in OPTIONAL if cache.of(kind, namespace).is_served]
        informers = (cache.of(kind, namespace) for kind in (*PLANNED, *served))
        labeled = (each for informer in informers for each in informer.of_pipeline(namespace, owner.name))
        pods = cache.of(POD, namespace).of_pipeline(namespace, owner.name)
        observed = Observed(
            objects={key_of(each): each for each in labeled if is_owned(each, owner)},
            download_problems=job_problems(pods),
            autoscaled=frozenset(autoscaler_targets(cache.of(AUTOSCALER, namespace).all(namespace))),
            served_kinds=frozenset(kind.kind for kind in served),
            status_generations=Observed.settings_generations(status),
        )
        return observed.with_replicas(replicas(pods, self._now()))

    async def apply(self, owner: Owner, manifests: Sequence[Manifest], live: Mapping[ObjectKey, Manifest]) -> Applied:
        """Applies the manifests that differ from the observed objects until the server is unavailable.

        Applies none, with a conflict (409) as the failure, if an object of the pipeline had lost its label: the
        manifests were planned without it. Raises LeaseLost, and ApiError if unobserved objects cannot be read.
        """
        result = Applied(objects=dict(live))
        unobserved = await self._unobserved(owner, [each for each in manifests if key_of(each) not in live])
        if own := [each for each in unobserved.values() if is_owned(each, owner)]:
            for each in own:
                await self._restore_label(owner, each)
            result.missing = [key_of(each) for each in manifests]
            listed = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in own)
            result.failure = ApiError(409, "Conflict", f"{listed} had lost the label {names.PIPELINE_LABEL}")
            return result
        for manifest in manifests:
            key = key_of(manifest)
            before = live.get(key)
            try:
                if key in unobserved:
                    raise _NotApplicable(name_conflict(owner, unobserved[key]))
                result.objects[key] = await self._apply_one(owner, manifest, before)
            except _NotApplicable as reason:
                result.problems = list(dict.fromkeys([*result.problems, reason.args[0]]))
                result.missing.append(key)
            except ApiError as error:
                result.add_error(key, error, "applied", _advice(manifest, before) if before is not None else "")
                result.missing.append(key)
                if error.unavailable:
                    break
        return result

    async def prune(
        self, owner: Owner, manifests: Iterable[Manifest], applied: Applied, keep: AbstractSet[ObjectKey]
    ) -> None:
        """Deletes the pipeline's objects that are neither planned nor in `keep`; updates `applied`. Raises LeaseLost.

        While a planned object is missing that others need to run, an object that is no longer planned may still serve
        in its place. Then only objects that nothing needs are deleted.
        """
        if applied.failure is not None and applied.failure.unavailable:
            return
        planned = keep | {key_of(manifest) for manifest in manifests}
        is_complete = all(key.kind in _DISPENSABLE for key in applied.missing)
        pruned = _PRUNED if is_complete else _DISPENSABLE
        for key, manifest in list(applied.objects.items()):
            if key in planned or key.kind not in pruned or "deletionTimestamp" in manifest["metadata"]:
                continue
            try:
                await self._delete(owner, key, manifest)
                del applied.objects[key]
            except ApiError as error:
                applied.add_error(key, error, "deleted")
                if error.unavailable:
                    break

    async def delete_pods(self, owner: Owner, pods: Iterable[Replica], result: Applied) -> None:
        """Deletes pods, which their StatefulSets create again; adds errors to `result`. Raises LeaseLost."""
        for pod in pods:
            key = ObjectKey(POD.kind, pod.name)
            try:
                await self._delete(owner, key, {"metadata": {"uid": pod.uid}})
            except ApiError as error:
                result.add_error(key, error, "deleted")

    async def _unobserved(self, owner: Owner, manifests: Sequence[Manifest]) -> dict[ObjectKey, Manifest]:
        """Returns the live objects that have the names of manifests, by key. Raises ApiError."""
        keys = [key_of(manifest) for manifest in manifests]
        requests = (self._api.get(BY_KIND[key.kind], owner.namespace, key.name) for key in keys)
        found = await asyncio.gather(*map(if_found, requests))
        return {key: each for key, each in zip(keys, found, strict=True) if each is not None}

    async def _restore_label(self, owner: Owner, live: Manifest) -> None:
        """Restores the label by which an object is observed. Raises LeaseLost or ApiError."""
        self._fence(owner)
        kind, metadata = BY_KIND[live["kind"]], live["metadata"]
        body = {"metadata": {"uid": metadata["uid"], "labels": {names.PIPELINE_LABEL: owner.name}}}
        restored = await self._api.merge(kind, owner.namespace, metadata["name"], body)
        self._cache.of(kind, owner.namespace).put(restored)

    async def _apply_one(self, owner: Owner, manifest: Manifest, live: Manifest | None) -> Manifest:
        if live is not None and "deletionTimestamp" in live["metadata"]:
            message = f"{live['kind']} {live['metadata']['name']} is being deleted and will be recreated."
            raise _NotApplicable(Problem("BeingDeleted", message))
        if live is not None and not differs(manifest, live):
            return live
        self._fence(owner)
        kind = BY_KIND[manifest["kind"]]
        if live is not None:
            # With its UID the apply fails if another object has taken the name meanwhile.
            manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}
        if has_image_volume(manifest) and not (live is not None and has_image_volume(live)):
            await self._require_image_volumes(kind, owner, manifest)
        try:
            answer = await self._api.apply(kind, owner.namespace, manifest)
        except ApiError as error:
            self._telemetry.object_writes.labels(kind.kind, "rejected").inc()
            if error.status == 409:
                await self._reread(owner, key_of(manifest), live)
            raise
        self._cache.of(kind, owner.namespace).put(answer)
        version = answer["metadata"].get("resourceVersion")
        unchanged = live is not None and version == live["metadata"].get("resourceVersion")
        self._telemetry.object_writes.labels(kind.kind, "unchanged" if unchanged else "applied").inc()
        level = logging.DEBUG if unchanged else logging.INFO
        values = owner.namespace, owner.name, kind.kind, manifest["metadata"]["name"]
        log.log(level, "%s/%s: applied %s %s", *values, extra=owner.log_fields)
        return {**answer, "apiVersion": kind.api_version, "kind": kind.kind}

    async def _require_image_volumes(self, kind: Kind, owner: Owner, manifest: Manifest) -> None:
        """Raises _NotApplicable if the API server would refuse or drop an image volume: the pods could only crash."""
        try:
            answer = await self._api.apply(kind, owner.namespace, manifest, dry_run=True)
        except ApiError as error:
            if _UNKNOWN_FIELD.search(str(error)):
                raise _NotApplicable(_IMAGE_VOLUMES) from None
            raise
        if not has_image_volume(answer):
            raise _NotApplicable(_IMAGE_VOLUMES)

    async def _reread(self, owner: Owner, key: ObjectKey, known: Manifest | None) -> None:
        """Puts the live object into the cache, which a conflict has shown to be outdated."""
        kind = BY_KIND[key.kind]
        informer = self._cache.of(kind, owner.namespace)
        live = await if_found(self._api.get(kind, owner.namespace, key.name))
        if known is not None and (live is None or live["metadata"]["uid"] != known["metadata"]["uid"]):
            informer.discard(owner.namespace, key.name, known["metadata"]["uid"])
        if live is not None:
            informer.put(live)

    async def _delete(self, owner: Owner, key: ObjectKey, manifest: Manifest) -> None:
        self._fence(owner)
        kind, namespace, uid = BY_KIND[key.kind], owner.namespace, manifest["metadata"]["uid"]
        try:
            await self._api.delete(kind, namespace, key.name, uid)
        except ApiError as error:
            # 404: already deleted. 409: another object has the name now.
            if not error.not_found and error.status != 409:
                raise
        if key.kind != POD.kind:  # A pod ends first: its watch says when.
            self._cache.of(kind, namespace).discard(namespace, key.name, uid)
        self._telemetry.object_writes.labels(key.kind, "deleted").inc()
        values = owner.namespace, owner.name, key.kind, key.name
        log.info("%s/%s: deleted %s %s", *values, extra=owner.log_fields)


def has_image_volume(workload: Manifest) -> bool:
    """Returns whether an object is a workload whose pods have a volume with the content of an image."""
    template = (workload.get("spec") or {}).get("template") or {}
    return any("image" in volume for volume in (template.get("spec") or {}).get("volumes") or ())


def _advice(manifest: Manifest, before: Manifest) -> str:
    """Returns what to do if the API server refuses a change that it may refuse for a known reason."""
    if _claim_size(manifest) > _claim_size(before):
        return _GROWTH_ADVICE
    families = [each["spec"].get("ipFamilies") for each in (manifest, before) if each["kind"] == "Service"]
    return _FAMILY_ADVICE if all(families) and len({each[0] for each in families}) == 2 else ""


def _claim_size(manifest: Manifest) -> Decimal:
    """Returns the bytes that a PersistentVolumeClaim requests; 0 of other objects."""
    is_claim = manifest["kind"] == "PersistentVolumeClaim"
    return quantity(manifest["spec"]["resources"]["requests"]["storage"]) if is_claim else Decimal(0)


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
