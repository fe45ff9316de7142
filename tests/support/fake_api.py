"""An in-memory stand-in for `cluster.watch.api.Api`, for tests of decisions rather than of Kubernetes semantics."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from syrinx_operator.cluster.objects.kinds import PIPELINE, Kind
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.watch.api import ApiError, Listing


class FakeApi:
    """Stores objects by kind and name, records writes, and fails requests on demand."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.writes: list[tuple[str, str, str]] = []
        """Verb, kind and name of every write."""
        self.fail: Callable[[str, str, str], ApiError | None] = lambda verb, kind, name: None
        self.image_volumes = "supported"
        """Whether volumes of images are `supported`, `dropped` or, as by older servers, `refused`."""
        self._versions = itertools.count(1)

    def add(self, manifest: Manifest) -> Manifest:
        """Stores an object as if another client had created it."""
        return self._store(copy.deepcopy(manifest))

    def names(self, kind: str) -> list[str]:
        """Returns the names of all objects of a kind."""
        return sorted(name for stored, name in self.objects if stored == kind)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        self._check("get", kind.kind, name)
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f"{kind.plural} {name} not found")
        return copy.deepcopy(self.objects[kind.kind, name])

    get_metadata = get

    async def list_objects(self, kind: Kind, namespace: str | None, selector: str = "") -> Listing:
        self._check("list", kind.kind, "")
        found = [
            copy.deepcopy(each)
            for (stored, _), each in self.objects.items()
            if stored == kind.kind and (not selector or selector in each["metadata"].get("labels", {}))
        ]
        return Listing(found, str(next(self._versions)))

    async def apply(
        self, kind: Kind, namespace: str, manifest: Manifest, subresource: str | None = None, *, dry_run: bool = False
    ) -> Manifest:
        name = manifest["metadata"]["name"]
        if self.image_volumes != "supported":
            manifest = self._without_image_volumes(manifest)
        if dry_run:
            return copy.deepcopy(manifest)
        self._write("apply", f"{kind.kind}/{subresource}" if subresource else kind.kind, name)
        live = self.objects.get((kind.kind, name), {})
        uid = manifest["metadata"].get("uid")
        if uid is not None and uid != live.get("metadata", {}).get("uid"):
            raise ApiError(409, "Conflict", "the UID does not match")
        if subresource == "status":
            return self._store({**live, "status": copy.deepcopy(manifest["status"])})
        return self._store(
            {
                **copy.deepcopy(manifest),
                "metadata": {"namespace": namespace, **live.get("metadata", {}), **manifest["metadata"]},
            }
        )

    def _without_image_volumes(self, manifest: Manifest) -> Manifest:
        copied = copy.deepcopy(manifest)
        pod = copied.get("spec", {}).get("template", {}).get("spec", {})
        kept = [volume for volume in pod.get("volumes", ()) if "image" not in volume]
        if self.image_volumes == "refused" and len(kept) < len(pod.get("volumes", ())):
            path = '.spec.template.spec.volumes[name="syrinx-models"].image'
            raise ApiError(
                500, "InternalError", f"failed to create typed patch object: {path}: field not declared in schema"
            )
        if "volumes" in pod:
            pod["volumes"] = kept
        return copied

    async def create(self, kind: Kind, namespace: str, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        self._write("create", kind.kind, name)
        if (kind.kind, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{kind.plural} {name} already exists")
        return self._store(copy.deepcopy(manifest))

    async def replace(self, kind: Kind, namespace: str, manifest: Manifest, seconds: float = 0.0) -> Manifest:
        name = manifest["metadata"]["name"]
        self._write("replace", kind.kind, name)
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f"{kind.plural} {name} not found")
        live = self.objects[kind.kind, name]["metadata"]["resourceVersion"]
        if manifest["metadata"].get("resourceVersion") != live:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._store(copy.deepcopy(manifest))

    async def merge(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Manifest:
        self._write("merge", kind.kind, name)
        live = copy.deepcopy(self.objects[kind.kind, name])
        if body["metadata"].get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "the UID does not match")
        for field, values in body["metadata"].items():
            if isinstance(values, dict):
                merged = live["metadata"].get(field, {}) | values
                live["metadata"][field] = {key: value for key, value in merged.items() if value is not None}
        return self._store(live)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._write("delete", kind.kind, name)
        if self.objects[kind.kind, name]["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "the UID does not match")
        del self.objects[kind.kind, name]

    def _check(self, verb: str, kind: str, name: str) -> None:
        if (error := self.fail(verb, kind, name)) is not None:
            raise error

    def _write(self, verb: str, kind: str, name: str) -> None:
        self._check(verb, kind, name)
        self.writes.append((verb, kind, name))

    def _store(self, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["name"])
        metadata["resourceVersion"] = str(next(self._versions))
        metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
        self.objects[key] = manifest
        return copy.deepcopy(manifest)


def pipeline_object(spec: dict[str, Any] | None = None, **metadata: Any) -> Manifest:
    """Returns the TTSPipeline `demo` as the API server stores it."""
    return {
        "apiVersion": PIPELINE.api_version,
        "kind": PIPELINE.kind,
        "metadata": {"name": "demo", "namespace": "voices", "uid": "u-1", "generation": 1, **metadata},
        "spec": spec or {},
    }


def unavailable() -> ApiError:
    """Returns the error of an overloaded API server."""
    return ApiError(503, "ServiceUnavailable", "overloaded", retry_after=7.0)


def forbidden() -> ApiError:
    """Returns the error of a missing RBAC rule."""
    return ApiError(403, "Forbidden", "not allowed")
