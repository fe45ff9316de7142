"""The object store: objects by name, one version counter, and the history of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support.kube.kinds import Kind

Object = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One write. `before` is None for a new object, `after` for a deleted one."""

    version: int
    kind: Kind
    before: Object | None
    after: Object | None

    @property
    def object(self) -> Object:
        found = self.after if self.after is not None else self.before
        assert found is not None
        return found


class Store:
    """Stored objects are never changed in place."""

    def __init__(self) -> None:
        self.version = 1000
        self.history: list[Change] = []
        self.listeners: list[Callable[[Change], None]] = []
        self._kinds: dict[tuple[str, str], dict[str, dict[str, Object]]] = {}
        """Objects by group and plural, namespace, and name."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        return self._of(kind).get(namespace or "" if kind.namespaced else "", {}).get(name)

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        """Yields objects sorted by namespace and name."""
        namespaces = self._of(kind)
        within = sorted(namespaces) if namespace is None else [namespace]
        return [obj for each in within for _, obj in sorted(namespaces.get(each, {}).items(), key=lambda item: item[0])]

    def everything(self) -> Iterator[Object]:
        yield from [obj for kind in self._kinds.values() for within in kind.values() for obj in within.values()]

    def _of(self, kind: Kind) -> dict[str, dict[str, Object]]:
        return self._kinds.setdefault((kind.group, kind.plural), {})

    def put(self, kind: Kind, obj: Object) -> Object:
        """Stores a new version of an object; `obj` belongs to the store from now on."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        within, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        objects = self._of(kind).setdefault(within, {})
        before = objects.get(name)
        objects[name] = obj
        self._tell(Change(self.version, kind, before, obj))
        return obj

    def remove(self, kind: Kind, obj: Object) -> Object:
        """Removes an object; returns its last state with the version of its removal."""
        self.version += 1
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        within, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        del self._of(kind)[within][name]
        self._tell(Change(self.version, kind, last, None))
        return last

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        for listener in list(self.listeners):
            listener(change)
