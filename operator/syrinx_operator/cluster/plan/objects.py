"""What every manifest is made with: metadata, hashes, and what a user gave of a part of the spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.state import Manifest, ObjectKey, Observed, Owner
from syrinx_operator.resource.pods import Storage


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
    """An object of the pipeline, with its labels and owner; `body` is what follows the metadata."""
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": names.labels(owner.name, component),
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [names.owner_reference(owner)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with its hash as an annotation, so that a field that left the plan is noticed."""
    metadata = manifest["metadata"]
    # A precondition of one apply, not a part of the plan: it differs every time.
    content = {**manifest, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
    annotations = {**metadata.get("annotations", {}), names.APPLIED_ANNOTATION: digest(content)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def owned(owner: Owner, observed: Observed, key: ObjectKey) -> Manifest | None:
    """An object of this pipeline, as it was observed; one of a former pipeline of its name is none."""
    found = observed.objects.get(key)
    references = found["metadata"].get("ownerReferences") or () if found else ()
    return found if any(reference.get("uid") == owner.uid for reference in references) else None


def recorded_text(owner: Owner, observed: Observed, key: ObjectKey, field: str) -> str:
    """What a ConfigMap of this pipeline says; empty if there is none."""
    found = owned(owner, observed, key) or {}
    text: str = (found.get("data") or {}).get(field, "")
    return text


def digest(value: Any) -> str:
    """10 hex digits that name a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def present(**fields: Any) -> Manifest:
    """The fields that are not None, empty text, list or dict: Kubernetes drops those too."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def given(part: Struct) -> dict[str, Any]:
    """What differs from the schema's defaults: a field that a later version adds changes nothing here."""
    fields = {field.encode_name: (field, getattr(part, field.name)) for field in msgspec.structs.fields(part)}
    return {name: _plain(value) for name, (field, value) in fields.items() if value != _default(field)}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return given(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def claim_spec(storage: Storage) -> Manifest:
    """The spec of a PersistentVolumeClaim."""
    spec = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": storage.size}}}
    return {**spec, **present(storageClassName=storage.storage_class_name)}
