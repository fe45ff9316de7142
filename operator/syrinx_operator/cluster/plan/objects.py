"""Building blocks of manifests: metadata, hashes, and serialization that omits defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.state import Manifest, ObjectKey, Observed, Owner
from syrinx_operator.resource.pods import SecretKey, Storage


def manifest(
    owner: Owner,
    api_version: str,
    kind: str,
    name: str,
    component: str,
    *,
    annotations: Mapping[str, str] | None = None,
    **body: Any,
) -> Manifest:
    """Returns an object of the pipeline with labels and owner reference; `body` holds its other top-level fields."""
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": names.labels(owner.name, component),
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [names.owner_reference(owner)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def with_applied_hash(manifest: Manifest) -> Manifest:
    """Returns the manifest with its hash as an annotation, so that a field removed from the plan is detected."""
    metadata = manifest["metadata"]
    # resourceVersion is a precondition of one apply and differs every time.
    content = {**manifest, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
    annotations = {**metadata.get("annotations", {}), names.APPLIED_ANNOTATION: short_hash(content)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def find_owned(owner: Owner, observed: Observed, key: ObjectKey) -> Manifest | None:
    """Returns the observed object if this pipeline owns it, not a former pipeline of the same name."""
    found = observed.objects.get(key)
    references = found["metadata"].get("ownerReferences") or () if found else ()
    return found if any(reference.get("uid") == owner.uid for reference in references) else None


def config_map_text(owner: Owner, observed: Observed, key: ObjectKey, field: str) -> str:
    """Returns a data field of the pipeline's ConfigMap; empty if there is none."""
    found = find_owned(owner, observed, key) or {}
    text: str = (found.get("data") or {}).get(field, "")
    return text


def short_hash(value: Any) -> str:
    """Returns 10 hex digits of the SHA-256 of a JSON value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def omit_empty(**fields: Any) -> Manifest:
    """Returns the fields without None and without empty strings, lists and dicts, which Kubernetes drops too."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def non_defaults(part: Struct) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, so that a field added in a later version changes nothing."""
    fields = {field.encode_name: (field, getattr(part, field.name)) for field in msgspec.structs.fields(part)}
    return {name: _to_json(value) for name, (field, value) in fields.items() if value != _default(field)}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _to_json(value: Any) -> Any:
    if isinstance(value, Struct):
        return non_defaults(value)
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def claim_spec(storage: Storage) -> Manifest:
    """Returns the spec of a PersistentVolumeClaim."""
    spec = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": storage.size}}}
    return {**spec, **omit_empty(storageClassName=storage.storage_class_name)}


def secret_ref(secret: SecretKey) -> Manifest:
    """Returns the `valueFrom` of an environment variable that reads a Secret."""
    return {"secretKeyRef": {"name": secret.name, "key": secret.key}}
