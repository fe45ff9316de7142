"""The API server's storage layer: validation, defaults, field ownership, versions, deletion."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.admission import Refused
from support.kube import admission, checks, defaults, rules
from support.kube import apply as ssa
from support.kube.apply import Manager, copy
from support.kube.deletion import Deletion
from support.kube.errors import ApiError, already_exists, bad_request, conflict, forbidden, invalid, not_found
from support.kube.kinds import Kind, Kinds, crd_version, from_crd
from support.kube.networks import Addresses
from support.kube.store import Change, Object, Store
from support.virtual import stamp

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")


@dataclass
class Write:
    """The writer and the options of a write."""

    manager: str = "unknown"
    dry_run: bool = False
    validation: str = "Warn"
    """Field validation: `Strict` rejects unknown fields, `Warn` drops them with a warning, `Ignore` drops them."""
    force: bool = False
    trusted: bool = False
    """Whether a built-in controller writes, whose types are not checked again."""
    before_create: Callable[[], None] = lambda: None
    """Called before an apply creates an object, which needs the verb `create`. May raise ApiError 403."""
    warnings: list[str] = field(default_factory=list)


class Api:
    """The API verbs. Callers must not modify returned objects."""

    def __init__(self, kinds: Kinds, store: Store, addresses: Addresses) -> None:
        self.kinds = kinds
        self.store = store
        self._addresses = addresses
        self._random = random.Random(7)
        self._deletion = Deletion(store)
        store.listeners.append(self._serve_custom_kinds)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        found = self.store.get(kind, namespace, name)
        if found is None:
            raise not_found(kind.resource, name)
        return found

    def create(self, kind: Kind, namespace: str | None, obj: Object, write: Write) -> Object:
        new = copy(obj)
        meta = new.setdefault("metadata", {})
        self._identify(kind, namespace, new)
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(self._random.choices(_LETTERS, k=5))
        if not meta.get("name"):
            raise invalid(kind.titled, "", ("metadata.name", "Required value: name or generateName is required"))
        if self.store.get(kind, namespace, meta["name"]):
            raise already_exists(kind.resource, meta["name"])
        meta.pop("managedFields", None)
        return self._insert(kind, new, write, {})

    def replace(
        self, kind: Kind, namespace: str | None, name: str, obj: Object, write: Write, subresource: str = ""
    ) -> Object:
        old = self.get(kind, namespace, name)
        new = copy(obj)
        self._identify(kind, namespace, new, name)
        if kind.crd is not None and not new["metadata"].get("resourceVersion"):
            cause = ("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update")
            raise invalid(kind.titled, name, cause)
        return self._update(kind, old, new, write, subresource)

    def patch(
        self, kind: Kind, namespace: str | None, name: str, body: Any, form: str, write: Write, subresource: str = ""
    ) -> tuple[Object, bool]:
        """Returns the object, and whether the apply created it."""
        if form == APPLY:
            return self._apply(kind, namespace, name, body, write, subresource)
        if write.force:
            raise invalid(
                "PatchOptions.meta.k8s.io", "", ("force", "Forbidden: may not be specified for non-apply patch")
            )
        old = self.get(kind, namespace, name)
        if form != MERGE:
            raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {form}")
        new = _merge_patch(copy(old), body)
        self._identify(kind, namespace, new, name)
        return self._update(kind, old, new, write, subresource), False

    def delete(self, kind: Kind, namespace: str | None, name: str, options: Object) -> Object:
        """Returns the terminating object, or its last state."""
        return self._deletion.delete(kind, self.get(kind, namespace, name), options)

    def set_scale(self, kind: Kind, old: Object, replicas: int, write: Write) -> Object:
        """Sets the replicas through the scale subresource; returns the object."""
        new = copy(old)
        *parents, last = _replicas_path(kind)
        target = new
        for step in parents:
            target = target.setdefault(step, {})
        target[last] = replicas
        return self._update(kind, old, new, write, "scale")

    def _identify(self, kind: Kind, namespace: str | None, obj: Object, name: str = "") -> None:
        """Checks that body and URL name the same object."""
        obj.setdefault("apiVersion", kind.api_version)
        obj.setdefault("kind", kind.kind)
        if obj["apiVersion"] in kind.api_versions:
            obj["apiVersion"] = kind.api_version
        if (obj["apiVersion"], obj["kind"]) != (kind.api_version, kind.kind):
            raise bad_request(f"{obj['apiVersion']} {obj['kind']} in the body is not {kind.api_version} {kind.kind}")
        meta = obj.setdefault("metadata", {})
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            self._namespace(namespace or "")
        if name and meta.setdefault("name", name) != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")

    def _namespace(self, name: str) -> None:
        if self.store.get(self.kinds.named("namespace"), None, name) is None:
            raise not_found("namespaces", name)

    def _apply(
        self, kind: Kind, namespace: str | None, name: str, body: Object, write: Write, subresource: str
    ) -> tuple[Object, bool]:
        if not write.manager:
            cause = ("fieldManager", "Required value: is required for apply patch")
            raise invalid("PatchOptions.meta.k8s.io", "", cause)
        config = copy(body)
        self._identify(kind, namespace, config, name)
        if config["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        old = self.store.get(kind, namespace, name)
        if old is None and subresource:
            raise not_found(kind.resource, name)
        if old is None:
            write.before_create()
        if old is None and (config["metadata"].get("resourceVersion") or config["metadata"].get("uid")):
            raise conflict(kind.resource, name, "it does not exist, and a resourceVersion or uid was given")
        if old is not None:
            self._precondition(kind, old, config)
        unknown: list[str] = []
        config = checks.decode(kind, config, unknown, exact=True)
        if unknown:
            detail = f"failed to create typed patch object ({namespace}/{name}; {kind.api_version}, Kind={kind.kind})"
            raise ApiError(500, "", f"{detail}: .{unknown[0]}: field not declared in schema")
        manager = Manager(write.manager, "Apply", kind.api_version, subresource)
        drop = {"spec"} if subresource == "status" else {"status"} if "status" in kind.subresources else set()
        merged, managers = ssa.apply(
            kind.schema, manager, old, config, ssa.read_managers(old or {}), force=write.force, drop=drop
        )
        if old is None:
            return self._insert(kind, merged, write, managers), True
        return self._finish(kind, old, self._joined(kind, old, merged, subresource), write, managers), False

    def _precondition(self, kind: Kind, old: Object, new: Object) -> None:
        for name in ("resourceVersion", "uid"):
            asked = new["metadata"].get(name)
            if asked and asked != old["metadata"][name]:
                raise conflict(kind.resource, old["metadata"]["name"])

    def _insert(self, kind: Kind, new: Object, write: Write, managers: ssa.Managers) -> Object:
        meta = new["metadata"]
        for name in (*_KEPT[:-1], "resourceVersion"):
            meta.pop(name, None)
        if "status" in kind.subresources:
            new.pop("status", None)
        meta |= {"uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4)), "creationTimestamp": stamp()}
        if kind.generation:
            meta["generation"] = 1
        new = self._prepared(kind, new, None, write)
        if kind.kind == "Service":
            self._addresses.assign(new, None)
        self._admitted(kind, new)
        if not managers:
            managers = ssa.track_update(
                kind.schema, Manager(write.manager, "Update", kind.api_version), None, new, managers
            )
        ssa.write_managers(new, managers)
        if write.dry_run:
            return new
        return self.store.put(kind, new)

    def _update(self, kind: Kind, old: Object, new: Object, write: Write, subresource: str) -> Object:
        self._precondition(kind, old, new)
        managers = {} if new["metadata"].get("managedFields") in ([], [{}]) else ssa.read_managers(old)
        manager = Manager(write.manager, "Update", kind.api_version, subresource)
        return self._finish(kind, old, self._joined(kind, old, new, subresource), write, managers, manager)

    def _joined(self, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
        """Returns the old object with the fields that this endpoint may change taken from the new one."""
        if subresource == "status":
            joined = copy(old)
            joined.pop("status", None)
            return joined | ({"status": new["status"]} if "status" in new else {})
        joined = dict(new)
        if "status" in kind.subresources:
            joined.pop("status", None)
            joined |= {"status": copy(old["status"])} if "status" in old else {}
        joined["metadata"] = {key: value for key, value in new["metadata"].items() if key not in _KEPT} | {
            key: old["metadata"][key] for key in _KEPT if key in old["metadata"]
        }
        return joined

    def _finish(
        self,
        kind: Kind,
        old: Object,
        new: Object,
        write: Write,
        managers: ssa.Managers,
        manager: Manager | None = None,
    ) -> Object:
        new = self._prepared(kind, new, old, write)
        if kind.kind == "Service":
            self._addresses.assign(new, old)
        if kind.crd is None:
            rules.check(new, old)
        if manager is not None:
            managers = ssa.track_update(kind.schema, manager, old, new, managers)
        ssa.write_managers(new, managers)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if _same(old, new):
            return old
        if kind.generation and _content(kind, new) != _content(kind, old):
            new["metadata"]["generation"] += 1
        if write.dry_run:
            return new
        if new["metadata"].get("deletionTimestamp") and self._deletion.may_go(new):
            return self.store.remove(kind, new)
        return self.store.put(kind, new)

    def _prepared(self, kind: Kind, obj: Object, old: Object | None, write: Write) -> Object:
        """Returns the object validated, with defaults and without unknown fields."""
        meta, unknown = obj["metadata"], list[str]()
        managed = meta.pop("managedFields", None)
        new = checks.decode(kind, obj, unknown, exact=kind.crd is not None)
        if unknown and write.validation == "Strict":
            raise bad_request("strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in unknown))
        if write.validation == "Warn":
            write.warnings += [f'unknown field "{path}"' for path in unknown]
        if kind.crd is not None:
            try:
                new = checks.admit(kind, new, old)
            except Refused as error:
                raise invalid(kind.titled, meta["name"], *(_cause(message) for message in error.messages)) from None
        else:
            if not write.trusted:
                checks.validate(kind, new)
            defaults.fill(new)
            if old is None:
                rules.check(new, None)
        if managed:
            new["metadata"]["managedFields"] = managed
        return new

    def _admitted(self, kind: Kind, new: Object) -> None:
        """Runs admission for new objects."""
        namespace = self.store.get(self.kinds.named("namespace"), None, new["metadata"].get("namespace", ""))
        if namespace is not None:
            admission.into_namespace(kind, new, namespace)
        if kind.kind == "Pod":
            account = new["spec"]["serviceAccountName"]
            if self.store.get(self.kinds.named("serviceaccount"), new["metadata"]["namespace"], account) is None:
                detail = f'error looking up service account: serviceaccount "{account}" not found'
                raise forbidden(f'pods "{new["metadata"]["name"]}" is forbidden: {detail}')
        admission.complete(new)

    def _serve_custom_kinds(self, change: Change) -> None:
        if change.kind.kind == "CustomResourceDefinition":
            served = from_crd(change.object)
            if change.after is None:
                for obj in self.store.all(served):
                    self.store.remove(served, obj)
                self.kinds.drop(served)
            else:
                self.kinds.add(served)


def _same(old: Object, new: Object) -> bool:
    """Returns whether two objects differ only in the times of managedFields."""

    def essence(obj: Object) -> tuple[Any, ...]:
        meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
        owned = {manager: fields for manager, (fields, _) in ssa.read_managers(obj).items()}
        return {**obj, "metadata": meta}, owned

    return essence(old) == essence(new)


def _content(kind: Kind, obj: Object) -> Object:
    """Returns the part of an object whose changes metadata.generation counts."""
    ignored = {"metadata", "status"} if kind.crd is None or "status" in kind.subresources else {"metadata"}
    return {key: value for key, value in obj.items() if key not in ignored}


def _cause(message: str) -> tuple[str, str]:
    """Returns the causes of messages of the form `field: problem`."""
    field, _, detail = message.partition(": ")
    return field, detail


def _replicas_path(kind: Kind) -> list[str]:
    declared = crd_version(kind.crd)["subresources"]["scale"] if kind.crd else {}
    path: str = declared.get("specReplicasPath", ".spec.replicas")
    return path.split(".")[1:]


def _merge_patch(target: Any, patch: Any) -> Any:
    """Returns the result of a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_patch(result.get(key), value)
    return result
