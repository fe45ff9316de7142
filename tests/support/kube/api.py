"""The API server's storage layer: validation, defaults, field ownership, versions, deletion."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from support.admission import Refused
from support.kube import apply as ssa
from support.kube import checks, defaults, deletion, families, rules
from support.kube.apply import Manager, copy
from support.kube.errors import ApiError, bad_request, conflict, forbidden, invalid, not_found
from support.kube.kinds import Kind, Kinds, from_crd
from support.kube.networks import Addresses
from support.kube.store import Change, Object, Store
from support.virtual import stamp

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


@dataclass
class Write:
    """The writer and the options of a write."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    trusted: bool = False
    """Whether a built-in controller writes, whose types are not checked again."""
    before_create: Callable[[], None] = lambda: None
    """Called before an apply creates an object, which needs the verb `create`. May raise ApiError 403."""


class Api:
    """The API verbs. Callers must not modify returned objects."""

    def __init__(self, kinds: Kinds, store: Store, addresses: Addresses) -> None:
        self.kinds = kinds
        self.store = store
        self._addresses = addresses
        self._random = random.Random(7)
        store.listeners.append(self._serve_custom_kinds)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        found = self.store.get(kind, namespace, name)
        if found is None:
            raise not_found(kind.resource, name)
        return found

    def create(self, kind: Kind, namespace: str | None, obj: Object, write: Write) -> Object:
        new = copy(obj)
        self._identify(kind, namespace, new)
        meta = new["metadata"]
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if "generateName" in meta:
            meta["name"] = meta["generateName"] + "".join(self._random.choices(_LETTERS, k=5))
        if self.store.get(kind, namespace, meta["name"]):
            raise ApiError(409, "AlreadyExists", f'{kind.resource} "{meta["name"]}" already exists')
        return self._insert(kind, new, write, {})

    def replace(
        self, kind: Kind, namespace: str | None, name: str, obj: Object, write: Write, subresource: str = ""
    ) -> Object:
        old = self.get(kind, namespace, name)
        new = copy(obj)
        self._identify(kind, namespace, new, name)
        return self._update(kind, old, new, write, subresource)

    def patch(
        self, kind: Kind, namespace: str | None, name: str, body: Any, form: str, write: Write, subresource: str = ""
    ) -> tuple[Object, bool]:
        """Returns the object, and whether the apply created it."""
        if form == APPLY:
            return self._apply(kind, namespace, name, body, write, subresource)
        if form != MERGE:
            raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {form}")
        old = self.get(kind, namespace, name)
        new = _merge_patch(copy(old), body)
        self._identify(kind, namespace, new, name)
        return self._update(kind, old, new, write, subresource), False

    def delete(self, kind: Kind, namespace: str | None, name: str, options: Object) -> Object:
        """Returns the terminating object, or its last state."""
        return deletion.delete(self.store, kind, self.get(kind, namespace, name), options)

    def _identify(self, kind: Kind, namespace: str | None, obj: Object, name: str = "") -> None:
        """Checks that body and URL name the same object."""
        found = (obj.setdefault("apiVersion", kind.api_version), obj.setdefault("kind", kind.kind))
        if found[0] not in kind.api_versions or found[1] != kind.kind:
            raise bad_request(f"{found} in the body is not {kind.api_version} {kind.kind}")
        obj["apiVersion"] = kind.api_version
        meta = obj.setdefault("metadata", {})
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise bad_request("the namespace of the object does not match the namespace on the request")
            self.get(self.kinds.named("namespace"), None, namespace or "")
        if name and meta.setdefault("name", name) != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")

    def _apply(
        self, kind: Kind, namespace: str | None, name: str, body: Object, write: Write, subresource: str
    ) -> tuple[Object, bool]:
        if not (write.manager and write.force):
            raise bad_request("this server applies only with a manager, and with force")
        config = copy(body)
        self._identify(kind, namespace, config, name)
        old = self.store.get(kind, namespace, name)
        if old is None:
            if subresource:
                raise not_found(kind.resource, name)
            write.before_create()
            if config["metadata"].get("resourceVersion") or config["metadata"].get("uid"):
                raise conflict(kind.resource, name, "it does not exist, and a resourceVersion or uid was given")
        else:
            self._precondition(kind, old, config)
        unknown: list[str] = []
        config = checks.decode(kind, config, unknown, exact=True)
        if unknown:
            detail = f"failed to create typed patch object ({namespace}/{name}; {kind.api_version}, Kind={kind.kind})"
            raise ApiError(500, "", f"{detail}: .{unknown[0]}: field not declared in schema")
        manager = Manager(write.manager, "Apply", kind.api_version, subresource)
        drop = "spec" if subresource == "status" else "status" if "status" in kind.subresources else ""
        config.pop(drop, None)
        merged, managers = ssa.apply(kind.schema, manager, old, config, ssa.read_managers(old or {}))
        if old is None:
            return self._insert(kind, merged, write, managers), True
        return self._finish(kind, old, self._joined(kind, old, merged, subresource), write, managers), False

    def _precondition(self, kind: Kind, old: Object, new: Object) -> None:
        for name in ("resourceVersion", "uid"):
            asked = new["metadata"].get(name)
            if asked and asked != old["metadata"][name]:
                raise conflict(kind.resource, old["metadata"]["name"])

    def _insert(self, kind: Kind, new: Object, write: Write, managers: ssa.Managers) -> Object:
        if "status" in kind.subresources:
            new.pop("status", None)
        identity = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        new["metadata"] |= {"uid": identity, "creationTimestamp": stamp(), "generation": 1}
        new = self._prepared(kind, new, None, write)
        if kind.kind == "Pod":
            self._find_account(new)
            new.setdefault("status", {"phase": "Pending", "qosClass": "Burstable"})
        if not managers:
            writer = Manager(write.manager, "Update", kind.api_version)
            managers = ssa.track_update(kind.schema, writer, None, new, managers)
        ssa.write_managers(new, managers)
        return new if write.dry_run else self.store.put(kind, new)

    def _find_account(self, pod: Object) -> None:
        """Raises ApiError 403 if the pod's ServiceAccount does not exist."""
        meta, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        kind = self.kinds.named("serviceaccount")
        if account != "default" and self.store.get(kind, meta["namespace"], account) is None:
            detail = f'error looking up service account: serviceaccount "{account}" not found'
            raise forbidden(f'pods "{meta["name"]}" is forbidden: {detail}')

    def _update(self, kind: Kind, old: Object, new: Object, write: Write, subresource: str) -> Object:
        self._precondition(kind, old, new)
        manager = Manager(write.manager, "Update", kind.api_version, subresource)
        joined = self._joined(kind, old, new, subresource)
        return self._finish(kind, old, joined, write, ssa.read_managers(old), manager)

    def _joined(self, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
        """Returns the old object with the fields that this endpoint may change taken from the new one."""
        if subresource == "status":
            return {**copy(old), "status": new.get("status", {})}
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
        if manager is not None:
            managers = ssa.track_update(kind.schema, manager, old, new, managers)
        ssa.write_managers(new, managers)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if _same(old, new):
            return old
        if any(new.get(key) != old.get(key) for key in {*old, *new} - {"metadata", "status"}):
            new["metadata"]["generation"] += 1
        if write.dry_run:
            return new
        if new["metadata"].get("deletionTimestamp") and deletion.may_go(new):
            return self.store.remove(kind, new)
        return self.store.put(kind, new)

    def _prepared(self, kind: Kind, obj: Object, old: Object | None, write: Write) -> Object:
        """Returns the object validated and with defaults. Raises ApiError."""
        meta, unknown = obj["metadata"], list[str]()
        meta.pop("managedFields", None)
        new = checks.decode(kind, obj, unknown, exact=kind.crd is not None)
        if unknown:
            raise bad_request("strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in unknown))
        if kind.crd is not None:
            try:
                return checks.admit(kind, new, old)
            except Refused as error:
                causes = [message.partition(": ")[::2] for message in error.messages]
                raise invalid(kind.titled, meta["name"], *causes) from None
        if not write.trusted:
            checks.validate(kind, new)
        defaults.fill(new)
        if kind.kind == "Service":
            address = partial(self._addresses.service, meta["namespace"], meta["name"])
            families.assign(new, old, self._addresses.families, address)
        rules.check(new, old)
        return new

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
