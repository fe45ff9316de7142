"""Compares a live object with its manifest, so that only changed objects are applied. Pure.

A live object may contain more than was applied: defaults and fields of other managers. It must contain everything
that was applied, possibly in the API server's normalized form.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from kubernetes.utils import parse_quantity

from syrinx_operator.cluster.state import Manifest

_KEYED: Final = frozenset(
    {"containers", "initContainers", "volumes", "env", "volumeMounts", "ports", "imagePullSecrets", "ownerReferences"}
)
"""Lists with named items, to which others may add."""
_ATOMIC: Final = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
"""Maps that are compared as a whole, because an additional entry changes their meaning."""
_RESOURCE_MAPS: Final = frozenset({"requests", "limits"})


def differs(desired: Manifest, live: Manifest) -> bool:
    """Returns whether `desired` must be applied."""
    metadata = {name: value for name, value in desired["metadata"].items() if name not in ("resourceVersion", "uid")}
    # An additional port in a NetworkPolicy would allow traffic that the manifest forbids.
    keyed = _KEYED - {"ports"} if desired["kind"] == "NetworkPolicy" else _KEYED
    return not _contains(live, {**desired, "metadata": metadata}, "", keyed)


def _contains(live: Any, desired: Any, field: str, keyed: frozenset[str]) -> bool:
    """Returns whether `live`, the value of `field`, contains all of `desired`."""
    if isinstance(desired, dict):
        return isinstance(live, dict) and _map_contains(live, desired, field, keyed)
    if isinstance(desired, list):
        return isinstance(live, list) and _list_contains(live, desired, field, keyed)
    if field == "sizeLimit":
        return quantity(desired) == quantity(live)
    return type(desired) is type(live) and bool(desired == live)


def _map_contains(live: Manifest, desired: Manifest, field: str, keyed: frozenset[str]) -> bool:
    if field in _RESOURCE_MAPS:
        return all(name in live and quantity(value) == quantity(live[name]) for name, value in desired.items())
    if field in _ATOMIC and not set(live) <= set(desired):
        return False
    return all(
        _contains(live[name], value, _inner(field, name), keyed) if name in live else _is_empty(value)
        for name, value in desired.items()
    )


def _inner(field: str, name: str) -> str:
    """Returns the field name for a nested value; the `matchLabels` of a selector are atomic too."""
    return field if field in _ATOMIC and name == "matchLabels" else name


def _list_contains(live: list[Any], desired: list[Any], field: str, keyed: frozenset[str]) -> bool:
    if field in keyed and all(isinstance(item, dict) for item in desired):
        return all(any(_contains(other, item, "", keyed) for other in live) for item in desired)
    return len(desired) == len(live) and all(
        _contains(other, item, "", keyed) for item, other in zip(desired, live, strict=True)
    )


def _is_empty(value: Any) -> bool:
    """Returns whether the API server may omit the value."""
    return value in (None, "", 0, [], {})


def quantity(value: Any) -> Decimal:
    """Returns a Kubernetes quantity as a number, so that `1000m`, `1` and 1 compare equal. Raises ValueError."""
    number: Decimal = parse_quantity(value)  # type: ignore[no-untyped-call]
    return number
