"""Reads the current state of a pipeline from the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.diagnosis import replicas
from syrinx_operator.cluster.kinds import AUTOSCALER, BY_KIND, OPTIONAL, POD, SECRET, WATCHED, Kind
from syrinx_operator.cluster.state import STAGES, Component, Manifest, ObjectKey, Observed, Owner

DISCOVERY_SECONDS: Final = 60.0
"""How long the list of served optional kinds is cached."""


class Observer:
    """Reads pipelines' objects. It caches only which optional kinds the cluster serves."""

    def __init__(self, api: Api) -> None:
        self._api = api
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
            replicas=replicas(pods),
            autoscaled=frozenset(autoscaler_targets(autoscalers)),
            password_uid=password,
            served_kinds=frozenset(kind.kind for kind in served),
            status_generations=settings_generations(status),
        )

    async def with_conflicts(self, owner: Owner, observed: Observed, keys: Iterable[ObjectKey]) -> Observed:
        """Returns the state with unlabeled objects that have one of the planned names. Raises ApiError."""
        unseen = [key for key in keys if key not in observed.objects]
        found = await asyncio.gather(*(self._find(owner, key) for key in unseen))
        conflicts = {key: each for key, each in zip(unseen, found, strict=True) if each is not None}
        if not conflicts:
            return observed
        return msgspec.structs.replace(observed, objects={**observed.objects, **conflicts})

    async def _find(self, owner: Owner, key: ObjectKey) -> Manifest | None:
        try:
            return await self._api.get(BY_KIND[key.kind], owner.namespace, key.name)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _password_uid(self, owner: Owner) -> str | None:
        """Returns the UID of the password Secret, whose data is never read."""
        try:
            found = await self._api.get_metadata(SECRET, owner.namespace, names.password_key(owner.name).name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        uid: str = found["metadata"]["uid"]
        return uid if is_owned(found, owner) else None

    async def _optional_kinds(self) -> frozenset[Kind]:
        if time.monotonic() >= self._served_until:
            served = await asyncio.gather(*(self._api.serves(kind) for kind in OPTIONAL))
            self._served = frozenset(kind for kind, is_served in zip(OPTIONAL, served, strict=True) if is_served)
            self._served_until = time.monotonic() + DISCOVERY_SECONDS
        return self._served


def key_of(manifest: Manifest) -> ObjectKey:
    """Returns the key of an object."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def is_owned(manifest: Manifest, owner: Owner) -> bool:
    """Returns whether this pipeline controls an object, not a former pipeline of the same name."""
    return any(
        reference.get("uid") == owner.uid and reference.get("controller")
        for reference in manifest["metadata"].get("ownerReferences") or ()
    )


def autoscaler_targets(autoscalers: Iterable[Manifest]) -> Iterable[ObjectKey]:
    """Yields the Deployments and StatefulSets that HorizontalPodAutoscalers target."""
    for autoscaler in autoscalers:
        target = autoscaler.get("spec", {}).get("scaleTargetRef") or {}
        if target.get("kind") in ("Deployment", "StatefulSet"):
            yield ObjectKey(target["kind"], target.get("name", ""))


def settings_generations(status: Mapping[str, Any]) -> dict[Component, int]:
    """Returns the settings generation of each stage in a status."""
    found = {stage: (status.get(stage.value) or {}).get("settingsGeneration") for stage in STAGES}
    return {stage: generation for stage, generation in found.items() if isinstance(generation, int)}
