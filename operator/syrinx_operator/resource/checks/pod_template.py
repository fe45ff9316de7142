"""Which parts of a pod template a user may change: all but what the operator and the stages rely on. Pure."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from syrinx_operator.resource.checks.documents import Path

Finding = tuple[Path, str]
"""A path in the template, and a message about it."""

_SET: Final = "is set by Syrinx"
_POD_FIELDS: Final = {
    "terminationGracePeriodSeconds": f"{_SET}: use drainSeconds",
    "serviceAccountName": f"{_SET}: use spec.serviceAccount",
    **dict.fromkeys(("serviceAccount", "restartPolicy", "hostname", "subdomain", "nodeName"), _SET),
    **dict.fromkeys(("activeDeadlineSeconds", "ephemeralContainers"), "must not be set"),
}
_OWN_FIELDS: Final = frozenset(
    {"name", "env", "envFrom", "volumeMounts", "volumeDevices", "securityContext", "resources"}
)
"""What may change in a container of Syrinx."""
_OWN_INIT_CONTAINERS: Final = frozenset({"fetch", "fetch-codec"})


def problems(
    template: dict[str, Any],
    own: Collection[str],
    *,
    ports: Collection[int],
    port_names: Collection[str],
    env: Collection[str],
    directories: Collection[str],
    key_prefixes: tuple[str, ...],
    volume_prefix: str,
) -> Iterator[Finding]:
    """Yields what a template must not contain; `own` are the containers of Syrinx, the rest what it reserves."""
    for name in template.keys() - {"metadata", "spec"}:
        yield (name,), "unknown field; accepted here: metadata, spec"
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield (), "metadata and spec must be mappings"
        return
    yield from _metadata(metadata, key_prefixes)
    for name in spec.keys() & _POD_FIELDS.keys():
        yield ("spec", name), _POD_FIELDS[name]
    for name, each, path in [*_items(spec, "volumes"), *_items(spec, "containers"), *_items(spec, "initContainers")]:
        if not isinstance(name, str):
            yield path, "must be a list of objects, each with a name"
        elif path[1] == "volumes":
            if name.startswith(volume_prefix):
                yield (*path, "name"), f"names that start with {volume_prefix} are reserved"
        elif name in own or (path[1] == "initContainers" and name in _OWN_INIT_CONTAINERS):
            yield from _own(each, path, env, directories)
        else:
            yield from _other(each, path, ports, port_names)


def _metadata(metadata: dict[str, Any], key_prefixes: tuple[str, ...]) -> Iterator[Finding]:
    for name, values in metadata.items():
        path: Path = ("metadata", name)
        if name not in ("labels", "annotations"):
            yield path, "unknown field; accepted here: labels, annotations"
        elif not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
            yield path, "must be a mapping of texts"
        else:
            for key in values:
                if key.startswith(key_prefixes):
                    yield (*path, key), f"keys that start with {' or '.join(key_prefixes)} are reserved"


def _items(part: dict[str, Any], field: str, path: Path = ("spec",)) -> Iterator[tuple[Any, dict[str, Any], Path]]:
    """Yields name, value and path of each item of a list; the name is None for anything else."""
    items = part.get(field, [])
    if not isinstance(items, list):
        yield None, {}, (*path, field)
        return
    for index, item in enumerate(items):
        each = item if isinstance(item, dict) else {}
        yield each.get("name"), each, (*path, field, index)


def _own(
    container: dict[str, Any], path: Path, env: Collection[str], directories: Collection[str]
) -> Iterator[Finding]:
    for name in sorted(container.keys() - _OWN_FIELDS):
        yield (*path, name), _SET
    resources = container.get("resources", {})
    if not isinstance(resources, dict) or resources.keys() - {"claims"}:
        yield (*path, "resources"), f"{_SET}, except claims: use the field resources"
    for name, _, where in _items(container, "env", path):
        if not isinstance(name, str):
            yield where, "must be a list of objects, each with a name"
        elif name in env:
            yield (*where, "name"), f"{name} {_SET}"
    for name, mount, where in _items(container, "volumeMounts", path):
        directory = mount.get("mountPath")
        if not isinstance(name, str) or not isinstance(directory, str):
            yield where, "must be a list of objects, each with name and mountPath"
        elif any(f"{directory}/".startswith(f"{each}/") for each in directories):
            yield (*where, "mountPath"), f"{', '.join(directories)} are reserved"


def _other(
    container: dict[str, Any], path: Path, ports: Collection[int], port_names: Collection[str]
) -> Iterator[Finding]:
    for name, port, where in _items(container, "ports", path):
        if name in port_names:
            yield (*where, "name"), f"{name} is a port of Syrinx"
        if port.get("containerPort") in ports:
            yield (*where, "containerPort"), f"{port['containerPort']} is a port of Syrinx"
