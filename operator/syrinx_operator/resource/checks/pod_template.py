"""Which parts of a pod template a user may change: all but what the operator and the stages rely on. Pure."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from syrinx_operator.resource.checks.conditions import ItemsCondition, Rule
from syrinx_operator.resource.checks.documents import Path
from syrinx_operator.resource.fields import pods
from syrinx_stages.contract.settings import NAMESPACE_VARIABLE, SETTINGS_PORT, TOKEN_VARIABLE

RESERVED_ENV = frozenset(
    {TOKEN_VARIABLE, "REDIS_URL", "REDIS_PASSWORD", "REDIS_CA_FILE", "POD_NAME", "HOME", "HF_TOKEN", "HF_ENDPOINT"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED", NAMESPACE_VARIABLE}
)
"""Environment variables that Syrinx sets in its pods."""
_RESERVED_REDIS_ENV = frozenset({"REDISCLI_AUTH", "SELF", "HOSTS"})
RESERVED_PATHS = ("/etc/syrinx", "/models", "/tmp")
"""Directories on which Syrinx mounts its own volumes."""
RESERVED_VOLUME_PREFIX = "syrinx-"
_PORT_NAMES = ("http", "admin", "settings", "codec-admin", "codec-settings", "redis", "sentinel")
_PRIVATE_PORTS = (pods.ADMIN_PORT, SETTINGS_PORT, pods.CODEC_ADMIN_PORT, pods.CODEC_SETTINGS_PORT)
RESERVED_LABEL_PREFIXES = ("syrinx.dev/", "app.kubernetes.io/")

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


def pod_template(container: str, *own_ports: int) -> Rule:
    """The rule of `podTemplate`, which only the operator evaluates. `own_ports`: those without a field."""
    own = (container, "sentinel") if container == "redis" else (container,)
    directories = ("/data", *RESERVED_PATHS) if container == "redis" else RESERVED_PATHS

    def failures(value: Any) -> Iterator[tuple[Path, str]]:
        if value.pod_template is not None:
            ports = {*_PRIVATE_PORTS, getattr(value, "port", 0), *own_ports}
            yield from _problems(value.pod_template, own, directories, ports)

    return Rule("podTemplate", ItemsCondition("", failures), "must not change what Syrinx sets", detail="{item}")


def _problems(
    template: dict[str, Any], own: Collection[str], directories: Collection[str], ports: Collection[int]
) -> Iterator[tuple[Path, str]]:
    """Yields what a template must not contain; `own` are the containers of Syrinx, the rest what it reserves."""
    for name in template.keys() - {"metadata", "spec"}:
        yield (name,), "unknown field; accepted here: metadata, spec"
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield (), "metadata and spec must be mappings"
        return
    yield from _metadata(metadata)
    for name in spec.keys() & _POD_FIELDS.keys():
        yield ("spec", name), _POD_FIELDS[name]
    for name, each, path in [*_items(spec, "volumes"), *_items(spec, "containers"), *_items(spec, "initContainers")]:
        if not isinstance(name, str):
            yield path, "must be a list of objects, each with a name"
        elif path[1] == "volumes":
            if name.startswith(RESERVED_VOLUME_PREFIX):
                yield (*path, "name"), f"names that start with {RESERVED_VOLUME_PREFIX} are reserved"
        elif name in own or (path[1] == "initContainers" and name in _OWN_INIT_CONTAINERS):
            yield from _own(each, path, directories)
        else:
            yield from _other(each, path, ports)


def _metadata(metadata: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    for name, values in metadata.items():
        path: Path = ("metadata", name)
        if name not in ("labels", "annotations"):
            yield path, "unknown field; accepted here: labels, annotations"
        elif not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
            yield path, "must be a mapping of texts"
        else:
            for key in values:
                if key.startswith(RESERVED_LABEL_PREFIXES):
                    yield (*path, key), f"keys that start with {' or '.join(RESERVED_LABEL_PREFIXES)} are reserved"


def _items(part: dict[str, Any], field: str, path: Path = ("spec",)) -> Iterator[tuple[Any, dict[str, Any], Path]]:
    """Yields name, value and path of each item of a list; the name is None for anything else."""
    items = part.get(field, [])
    if not isinstance(items, list):
        yield None, {}, (*path, field)
        return
    for index, item in enumerate(items):
        each = item if isinstance(item, dict) else {}
        yield each.get("name"), each, (*path, field, index)


def _own(container: dict[str, Any], path: Path, directories: Collection[str]) -> Iterator[tuple[Path, str]]:
    for name in sorted(container.keys() - _OWN_FIELDS):
        yield (*path, name), _SET
    resources = container.get("resources", {})
    if not isinstance(resources, dict) or resources.keys() - {"claims"}:
        yield (*path, "resources"), f"{_SET}, except claims: use the field resources"
    for name, _, where in _items(container, "env", path):
        if not isinstance(name, str):
            yield where, "must be a list of objects, each with a name"
        elif name in RESERVED_ENV | _RESERVED_REDIS_ENV:
            yield (*where, "name"), f"{name} {_SET}"
    for name, mount, where in _items(container, "volumeMounts", path):
        directory = mount.get("mountPath")
        if not isinstance(name, str) or not isinstance(directory, str):
            yield where, "must be a list of objects, each with name and mountPath"
        elif any(f"{directory}/".startswith(f"{each}/") for each in directories):
            yield (*where, "mountPath"), f"{', '.join(directories)} are reserved"


def _other(container: dict[str, Any], path: Path, ports: Collection[int]) -> Iterator[tuple[Path, str]]:
    for name, port, where in _items(container, "ports", path):
        if name in _PORT_NAMES:
            yield (*where, "name"), f"{name} is a port of Syrinx"
        if port.get("containerPort") in ports:
            yield (*where, "containerPort"), f"{port['containerPort']} is a port of Syrinx"
