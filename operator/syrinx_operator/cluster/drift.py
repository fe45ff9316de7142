"""Does a live object still say what was applied? Pure.

Server-side apply is asked only when something differs. A live object may hold more than was applied: defaults, and
fields of others. It must hold all that was applied, in the API server's own spelling.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from syrinx_operator.cluster.state import Manifest

_KEYED: Final = frozenset(
    {"containers", "initContainers", "volumes", "env", "volumeMounts", "ports", "imagePullSecrets", "ownerReferences"}
)
"""Lists that others may add items to: their items have names."""
_WHOLE: Final = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
"""Maps that are applied as a whole: what others add changes their meaning."""
_QUANTITIES: Final = frozenset({"requests", "limits"})
_QUANTITY: Final = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(m|k|[KMGTP]i?)?$")
_SCALE: Final = {"m": Decimal("0.001"), "k": Decimal(1000)} | {
    prefix + binary: Decimal(base**power)
    for binary, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("KMGTP", start=1)
}


def differs(desired: Manifest, live: Manifest) -> bool:
    """Whether `desired` must be applied again."""
    metadata = {name: value for name, value in desired["metadata"].items() if name not in ("resourceVersion", "uid")}
    # Rules of a NetworkPolicy that somebody adds to a list open what it closes.
    keyed = _KEYED - {"ports"} if desired["kind"] == "NetworkPolicy" else _KEYED
    return not _holds({**desired, "metadata": metadata}, live, "", keyed)


def _holds(desired: Any, live: Any, field: str, keyed: frozenset[str]) -> bool:
    """Whether `live`, the value of `field`, holds all of `desired`."""
    if isinstance(desired, dict):
        return isinstance(live, dict) and _map_holds(desired, live, field, keyed)
    if isinstance(desired, list):
        return isinstance(live, list) and _list_holds(desired, live, field, keyed)
    if field == "sizeLimit":
        return bool(_quantity(desired) == _quantity(live))
    return type(desired) is type(live) and bool(desired == live)


def _map_holds(desired: Manifest, live: Manifest, field: str, keyed: frozenset[str]) -> bool:
    if field in _QUANTITIES:
        return all(name in live and _quantity(value) == _quantity(live[name]) for name, value in desired.items())
    if field in _WHOLE and not set(live) <= set(desired):
        return False
    return all(
        _holds(value, live[name], _inner(field, name), keyed) if name in live else _is_empty(value)
        for name, value in desired.items()
    )


def _inner(field: str, name: str) -> str:
    """What a selector holds is as whole as the selector itself."""
    return field if field in _WHOLE and name == "matchLabels" else name


def _list_holds(desired: list[Any], live: list[Any], field: str, keyed: frozenset[str]) -> bool:
    if field in keyed and all(isinstance(item, dict) for item in desired):
        return all(any(_holds(item, other, "", keyed) for other in live) for item in desired)
    return len(desired) == len(live) and all(
        _holds(item, other, "", keyed) for item, other in zip(desired, live, strict=True)
    )


def _is_empty(value: Any) -> bool:
    """Whether the API server may leave it out."""
    return value in (None, "", 0, [], {})


def _quantity(value: Any) -> Any:
    """A quantity as a number: `1000m`, `1` and 1 are the same."""
    match = _QUANTITY.match(str(value))
    return Decimal(match[1]) * _SCALE.get(match[2], Decimal(1)) if match else value
