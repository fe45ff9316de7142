"""Fields of the resource for pods: compute, placement, environment, volumes. Kubernetes only."""

import ast
import functools
import inspect
import itertools
import sys
import typing
from typing import Annotated, Any, Final, Literal

from msgspec import NODEFAULT, Meta, Struct, structs

KUBERNETES: Final = Meta(extra={"kubernetes": True})
"""Marks fields that `syrinx up` ignores."""
ADMIN_PORT: Final = 9090
"""Port of health and metrics in every stage pod."""
CODEC_ADMIN_PORT: Final = 9092
CODEC_SETTINGS_PORT: Final = 9093
"""Those of a codec in a talker's pod."""

Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""One line of text without control characters."""
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of an object in the same namespace."""
Key = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""Key of a Secret or ConfigMap."""
EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
LABEL_KEY: Final = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""`example.org/name` or `name`."""
LabelKey = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=LABEL_KEY,
        description="up to 63 letters, digits, '-', '_' and '.', optionally with a domain prefix, for example "
        "example.org/name",
    ),
]
LabelValue = Annotated[str, Meta(max_length=63, pattern="^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=32)]
Annotations = Annotated[dict[LabelKey, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
Quantity = (
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")]
)
Quantities = Annotated[dict[LabelKey, Quantity], Meta(max_length=16)]
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
CIDR: Final = (
    rf"^(({_OCTET}\.){{3}}{_OCTET}/(3[0-2]|[12]?[0-9])"
    "|[0-9a-fA-F.:]*:[0-9a-fA-F.:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"
)
Cidr = Annotated[str, Meta(max_length=64, pattern=CIDR)]
"""A range of IP addresses."""
SizeText = Annotated[str, Meta(max_length=32, pattern=r"^[1-9][0-9]*(\.[0-9]+)?(k|Ki|M|Mi|G|Gi|T|Ti)?$")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Replicas = Annotated[int, Meta(ge=1, le=64)]
DrainSeconds = Annotated[int, Meta(ge=0, le=3600)]
_COMPONENT = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
IMAGE: Final = (
    r"^(([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/)?"
    rf"{_COMPONENT}(/{_COMPONENT})*(:[A-Za-z0-9_][-A-Za-z0-9_.]*)?(@[a-z0-9]+:[0-9a-f]{{32,128}})?$"
)
Image = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=IMAGE,
        description="a repository in lower case with a tag or digest, for example registry.example/syrinx/stages:1.0",
    ),
]


class Object(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all objects of the resource: immutable, camelCase in YAML, without unknown fields."""


def list_map(field: str) -> Meta:
    """Marks a list whose items are identified by one field."""
    return Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]})


def list_map_key(field: structs.FieldInfo) -> str:
    """Returns the field that identifies the items of a list, or ""."""
    schemas = (meta.extra_json_schema or {} for meta in typing.get_args(field.type) if isinstance(meta, Meta))
    return next((schema["x-kubernetes-list-map-keys"][0] for schema in schemas if schema), "")


def is_kubernetes_only(field: structs.FieldInfo) -> bool:
    """Returns whether `syrinx up` ignores a field."""
    return KUBERNETES in typing.get_args(field.type)


def default_of(field: structs.FieldInfo) -> Any:
    """Returns the default of a field; NODEFAULT for a required one."""
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


@functools.cache
def fields_of(struct: type[Struct]) -> tuple[structs.FieldInfo, ...]:
    """Returns the fields of a type. Their types contain the attribute docstrings as descriptions."""
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, Struct):
            texts |= _attribute_docstrings(base.__module__).get(base.__name__, {})
    annotated: Any = Annotated  # A type checker refuses types that are built at run time.
    fields = []
    for field in structs.fields(struct):
        has_metas = typing.get_origin(field.type) is Annotated
        bare, *metas = typing.get_args(field.type) if has_metas else (field.type,)
        described = annotated[(bare, Meta(description=texts.get(field.name)), *metas)]
        fields.append(structs.replace(field, type=described))
    return tuple(fields)


@functools.cache
def _attribute_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Returns the docstrings of attributes by class and attribute, which only the source contains."""
    texts: dict[str, dict[str, str]] = {}
    for struct in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(struct, ast.ClassDef):
            for pair in itertools.pairwise(struct.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        texts.setdefault(struct.name, {})[name] = " ".join(text.split())
    return texts


class SecretKey(Object, frozen=True, kw_only=True):
    """One value of a Secret in the pipeline's namespace."""

    name: Name
    """Name of the Secret."""
    key: Key
    """Key in its data."""


class ConfigMapKey(Object, frozen=True, kw_only=True):
    """One value of a ConfigMap in the pipeline's namespace."""

    name: Name
    """Name of the ConfigMap."""
    key: Key
    """Key in its data."""


class SecretName(Object, frozen=True, kw_only=True):
    """A Secret in the pipeline's namespace."""

    name: Name
    """Name of the Secret."""


class EnvVar(Object, frozen=True, kw_only=True):
    """An environment variable. Exactly one of `value`, `secret` and `configMap`."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, Meta(max_length=4096)] | None = None
    """Value in plain text."""
    secret: SecretKey | None = None
    """Key of a Secret with the value."""
    config_map: ConfigMapKey | None = None
    """Key of a ConfigMap with the value."""


class EmptyDir(Object, frozen=True, kw_only=True):
    """A directory with the lifetime of the pod."""

    medium: Literal["", "Memory"] = ""
    """Empty: the node's disk. Memory: a tmpfs."""
    size_limit: SizeText | None = None
    """Maximum size, for example 1Gi. Default: no limit."""


class ExtraVolume(Object, frozen=True, kw_only=True):
    """An additional volume of the stage's container. Exactly one source."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=50)]
    """Name of the volume, unique in the pod."""
    mount_path: Annotated[str, Meta(pattern="^(/[^/:]+)+$", max_length=512)]
    """Absolute path in the container."""
    sub_path: Annotated[Line, Meta(max_length=512)] | None = None
    """Directory of the volume to mount. Default: the whole volume."""
    read_only: bool = True
    """Mount the volume read-only."""
    claim: Name | None = None
    """Name of a PersistentVolumeClaim."""
    secret: Name | None = None
    """Name of a Secret. Each key becomes a file."""
    config_map: Name | None = None
    """Name of a ConfigMap. Each key becomes a file."""
    empty_dir: EmptyDir | None = None
    """A directory with the lifetime of the pod."""


class Toleration(Object, frozen=True, kw_only=True):
    """A node taint that the pods tolerate."""

    key: LabelKey | None = None
    """Key of the taint. Default: all keys, with operator Exists."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists: any value. Equal: the value must be equal."""
    value: LabelValue | None = None
    """Value of the taint, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: all effects."""
    toleration_seconds: Annotated[int, Meta(ge=0)] | None = None
    """With effect NoExecute: seconds that a pod stays on a tainted node. Default: indefinitely."""


class Resources(Object, frozen=True, kw_only=True):
    """Compute resources of a container, in Kubernetes quantities."""

    requests: Quantities = {}
    """Requested resources, for example cpu: 500m, memory: 1Gi."""
    limits: Quantities = {}
    """Maximum resources, for example memory: 4Gi, nvidia.com/gpu: 1."""


class PodFields(Object, frozen=True, kw_only=True):
    """Fields of the pods of all stages."""

    resources: Annotated[Resources, KUBERNETES] = Resources()
    """CPU, memory and GPUs of the container."""
    node_selector: Annotated[Labels, KUBERNETES] = {}
    """Labels that nodes of these pods must have. Default: none."""
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=16), KUBERNETES] = ()
    """Node taints that these pods tolerate. Default: none."""
    affinity: Annotated[dict[str, Any] | None, KUBERNETES] = None
    """Node and pod affinity, as in a pod's `spec.affinity`. Default: none."""
    topology_spread_constraints: Annotated[
        tuple[
            Annotated[
                dict[str, Any], Meta(description="A constraint, as in a pod's `spec.topologySpreadConstraints`.")
            ],
            ...,
        ],
        Meta(max_length=8),
        KUBERNETES,
    ] = ()
    """How pods spread over nodes and zones, as in a pod's `spec`. Default: the cluster's default."""
    priority_class_name: Annotated[Name | None, KUBERNETES] = None
    """PriorityClass of the pods. Default: none."""
    runtime_class_name: Annotated[Name | None, KUBERNETES] = None
    """RuntimeClass of the pods, for example nvidia. Default: the node's default."""
    env: Annotated[tuple[EnvVar, ...], Meta(max_length=64), list_map("name"), KUBERNETES] = ()
    """Additional environment variables. Variables that Syrinx sets are refused. Default: none."""
    extra_volumes: Annotated[tuple[ExtraVolume, ...], Meta(max_length=16), list_map("name"), KUBERNETES] = ()
    """Additional volumes of the container. Default: none."""
    pod_template: Annotated[dict[str, Any] | None, KUBERNETES] = None
    """Changes of the pod template, with metadata and spec, for what has no field: sidecars, init containers, volumes,
    hostAliases, dnsConfig, schedulerName and more. Containers, volumes and variables are merged by name. Default:
    none."""
    pod_labels: Annotated[Labels, KUBERNETES] = {}
    """Additional labels of the pods. Default: none."""
    pod_annotations: Annotated[Annotations, KUBERNETES] = {}
    """Additional annotations of the pods. Default: none."""


class Storage(Object, frozen=True, kw_only=True):
    """A PersistentVolumeClaim that the operator creates and deletes with the pipeline."""

    size: SizeText
    """Size of the volume, for example 20Gi."""
    storage_class_name: Name | None = None
    """StorageClass of the volume. Default: the cluster's default class."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"
    """ReadWriteMany lets pods on several nodes share the volume. Not all storage classes support it."""


class Peer(Object, frozen=True, kw_only=True):
    """Clients that may connect: pods by namespace and labels, or IP addresses."""

    namespace: Name | None = None
    """Namespace of the pods. Default: all namespaces."""
    pod_labels: Labels = {}
    """Labels of the pods. Default: all pods of the namespace."""
    cidr: Cidr | None = None
    """A range of IP addresses, for example 10.0.0.0/8, instead of pods."""
