"""Building blocks of manifests: metadata, hashes, records, defaults; and the comparison with live objects. Pure."""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from kubernetes.utils import parse_quantity
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Observed, Owner
from syrinx_operator.resource.fields.pods import SecretKey, default_of

T = TypeVar("T")

_KEYED = frozenset(
    {"containers", "initContainers", "volumes", "env", "volumeMounts", "ports", "imagePullSecrets", "ownerReferences"}
)
"""Lists with named items, to which others may add."""
_ATOMIC = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
"""Maps that are compared as a whole, because an additional entry changes their meaning."""
_RESOURCE_MAPS = frozenset({"requests", "limits"})


def manifest(
    owner: Owner,
    api_version: str,
    kind: str,
    purpose: str,
    *,
    annotations: Mapping[str, str] | None = None,
    resource_version: str | None = None,
    **body: Any,
) -> Manifest:
    """Returns the object NAME-PURPOSE with labels and owner reference; `body` holds its other top-level fields.

    `purpose` is a component or another purpose (`release`). With `resource_version`, the object can be written only
    while the live object has that version.
    """
    metadata: Manifest = {
        "name": f"{owner.name}-{purpose}",
        "namespace": owner.namespace,
        "labels": names.labels(owner.name, purpose),
        **omit_empty(annotations=dict(annotations or {})),
        "ownerReferences": [names.owner_reference(owner)],
        **omit_empty(resourceVersion=resource_version),
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def with_applied_hash(manifest: Manifest) -> Manifest:
    """Returns the manifest with its hash as an annotation, so that a field removed from the plan is detected."""
    metadata = manifest["metadata"]
    # resourceVersion is a precondition of one apply and differs every time.
    content = {**manifest, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
    annotations = {**metadata.get("annotations", {}), names.APPLIED_ANNOTATION: short_hash(content)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def record(owner: Owner, purpose: str, value: Any, field: str = "") -> Manifest:
    """Returns the ConfigMap NAME-PURPOSE with a value as JSON in a data field (PURPOSE.json by default)."""
    data = {field or f"{purpose}.json": msgspec.json.encode(value, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", purpose, data=data)


def read_record(owner: Owner, observed: Observed, purpose: str, kind: type[T], field: str = "") -> T | None:
    """Returns the value in a pipeline's ConfigMap; None if there is no readable one."""
    found = observed.objects.get(ObjectKey("ConfigMap", f"{owner.name}-{purpose}"), {})
    try:
        return msgspec.json.decode((found.get("data") or {}).get(field or f"{purpose}.json", ""), type=kind)
    except msgspec.MsgspecError:
        return None


def secret(owner: Owner, purpose: str, data: Mapping[str, str]) -> Manifest:
    """Returns the Secret NAME-PURPOSE with texts."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return manifest(owner, "v1", "Secret", purpose, type="Opaque", immutable=True, data=encoded)


def short_hash(value: Any) -> str:
    """Returns 10 hex digits of the SHA-256 of a JSON value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def omit_empty(**fields: Any) -> Manifest:
    """Returns the fields without None and without empty strings, lists and dicts, which Kubernetes drops too."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def non_defaults(part: Struct) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, so that a field added in a later version changes nothing."""
    found = {}
    for field in _fields(type(part)):
        value = getattr(part, field.name)
        if value != default_of(field):
            found[field.encode_name] = _to_json(value)
    return found


_fields = functools.cache(msgspec.structs.fields)  # Which evaluates all annotations.


def _to_json(value: Any) -> Any:
    if isinstance(value, Struct):
        return non_defaults(value)
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def secret_ref(secret: SecretKey) -> Manifest:
    """Returns the `valueFrom` of an environment variable that reads a Secret."""
    return {"secretKeyRef": {"name": secret.name, "key": secret.key}}


def differs(desired: Manifest, live: Manifest) -> bool:
    """Returns whether a manifest must be applied.

    A live object may contain more than was applied: defaults and fields of other managers. It must contain everything
    that was applied, possibly in the API server's normalized form.
    """
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
        # The `matchLabels` of a selector are atomic too; the API server may omit an empty value.
        _contains(live[name], value, field if field in _ATOMIC and name == "matchLabels" else name, keyed)
        if name in live
        else value in (None, "", 0, [], {})
        for name, value in desired.items()
    )


def _list_contains(live: list[Any], desired: list[Any], field: str, keyed: frozenset[str]) -> bool:
    if field in keyed and all(isinstance(item, dict) for item in desired):
        return all(any(_contains(other, item, "", keyed) for other in live) for item in desired)
    return len(desired) == len(live) and all(
        _contains(other, item, "", keyed) for item, other in zip(desired, live, strict=True)
    )


def quantity(value: Any) -> Decimal:
    """Returns a Kubernetes quantity as a number, so that `1000m`, `1` and 1 compare equal. Raises ValueError."""
    number: Decimal = parse_quantity(value)  # type: ignore[no-untyped-call]
    return number
