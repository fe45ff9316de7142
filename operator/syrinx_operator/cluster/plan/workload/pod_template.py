"""Merges a user's pod template into the operator's, like a strategic merge patch. Pure."""

from typing import Any, Final

from syrinx_operator.cluster.objects.state import Manifest

_MERGE_KEYS: Final = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims"), "name"),
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
"""Lists whose items are merged by a field. Other lists are replaced."""


def with_patch(template: Manifest, patch: Manifest | None) -> Manifest:
    """Returns the template with a valid patch merged in. Null removes a field."""
    merged: Manifest = template if patch is None else _merged(template, patch, "")
    return merged


def _merged(value: Any, patch: Any, field: str) -> Any:
    if isinstance(patch, dict):
        base = value if isinstance(value, dict) else {}
        kept = {name: each for name, each in base.items() if patch.get(name, each) is not None}
        given = {name: each for name, each in patch.items() if each is not None}
        return kept | {name: _merged(kept.get(name), each, name) for name, each in given.items()}
    if isinstance(patch, list) and isinstance(value, list) and (key := _MERGE_KEYS.get(field)):
        found = {item[key]: item for item in value}
        for item in patch:
            found[item.get(key)] = _merged(found.get(item.get(key)), item, "")
        return list(found.values())
    return patch
