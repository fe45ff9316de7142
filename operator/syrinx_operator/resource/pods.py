"""Fields of the resource for pods: compute, placement, environment, volumes. Kubernetes only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, inspect

KUBERNETES: Final = {"kubernetes": True}
"""`Meta.extra` of fields that `syrinx up` ignores."""

Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""One line of text without control characters."""
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of an object in the same namespace."""
Key = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""Key of a Secret or ConfigMap."""
EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
LABEL_KEY: Final = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""`example.org/name` or `name`."""
LabelKey = Annotated[str, Meta(max_length=317, pattern=LABEL_KEY)]
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
SizeText = Annotated[str, Meta(max_length=32, pattern=r"^[1-9][0-9]*(\.[0-9]+)?(k|Ki|M|Mi|G|Gi|T|Ti)?$")]
Port = Annotated[int, Meta(ge=1, le=65_535)]


class Object(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all objects of the resource: immutable, camelCase in YAML, without unknown fields."""


def kubernetes_only(field: inspect.Field) -> bool:
    """Returns whether `syrinx up` ignores a field."""
    return isinstance(field.type, inspect.Metadata) and bool((field.type.extra or {}).get("kubernetes"))


def list_map(field: str) -> dict[str, Any]:
    """Returns `Meta.extra_json_schema` of a list whose items are identified by one field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


class SecretKey(Object, frozen=True, kw_only=True):
    """One value of a Secret in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the Secret.")]
    key: Annotated[Key, Meta(description="Key in its data.")]


class ConfigMapKey(Object, frozen=True, kw_only=True):
    """One value of a ConfigMap in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the ConfigMap.")]
    key: Annotated[Key, Meta(description="Key in its data.")]


class SecretName(Object, frozen=True, kw_only=True):
    """A Secret in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the Secret.")]


class EnvVar(Object, frozen=True, kw_only=True):
    """An environment variable. Exactly one of `value`, `secret` and `configMap`."""

    name: Annotated[EnvName, Meta(description="Name of the variable.")]
    value: Annotated[Annotated[str, Meta(max_length=4096)] | None, Meta(description="Value in plain text.")] = None
    secret: Annotated[SecretKey | None, Meta(description="Key of a Secret with the value.")] = None
    config_map: Annotated[ConfigMapKey | None, Meta(description="Key of a ConfigMap with the value.")] = None


class EmptyDir(Object, frozen=True, kw_only=True):
    """A directory with the lifetime of the pod."""

    medium: Annotated[Literal["", "Memory"], Meta(description="Empty: the node's disk. Memory: a tmpfs.")] = ""
    size_limit: Annotated[SizeText | None, Meta(description="Maximum size, for example 1Gi. Default: no limit.")] = None


class ExtraVolume(Object, frozen=True, kw_only=True):
    """An additional volume of the stage's container. Exactly one source."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            min_length=1,
            max_length=50,
            description="Name of the volume, unique in the pod.",
        ),
    ]
    mount_path: Annotated[
        str, Meta(pattern="^(/[^/:]+)+$", max_length=512, description="Absolute path in the container.")
    ]
    sub_path: Annotated[
        Annotated[Line, Meta(max_length=512)] | None,
        Meta(description="Directory of the volume to mount. Default: the whole volume."),
    ] = None
    read_only: Annotated[bool, Meta(description="Mount the volume read-only.")] = True
    claim: Annotated[Name | None, Meta(description="Name of a PersistentVolumeClaim.")] = None
    secret: Annotated[Name | None, Meta(description="Name of a Secret. Each key becomes a file.")] = None
    config_map: Annotated[Name | None, Meta(description="Name of a ConfigMap. Each key becomes a file.")] = None
    empty_dir: Annotated[EmptyDir | None, Meta(description="A directory with the lifetime of the pod.")] = None


class Toleration(Object, frozen=True, kw_only=True):
    """A node taint that the pods tolerate."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint. Default: all keys, with operator Exists.")] = (
        None
    )
    operator: Annotated[
        Literal["Exists", "Equal"], Meta(description="Exists: any value. Equal: the value must be equal.")
    ] = "Equal"
    value: Annotated[LabelValue | None, Meta(description="Value of the taint, with operator Equal.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Effect of the taint. Default: all effects."),
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="With effect NoExecute: seconds that a pod stays on a tainted node. Default: indefinitely."),
    ] = None


class Resources(Object, frozen=True, kw_only=True):
    """Compute resources of a container, in Kubernetes quantities."""

    requests: Annotated[Quantities, Meta(description="Requested resources, for example cpu: 500m, memory: 1Gi.")] = {}
    limits: Annotated[
        Quantities, Meta(description="Maximum resources, for example memory: 4Gi, nvidia.com/gpu: 1.")
    ] = {}


class PodFields(Object, frozen=True, kw_only=True):
    """Fields of the pods of all stages."""

    resources: Annotated[Resources, Meta(description="CPU, memory and GPUs of the container.", extra=KUBERNETES)] = (
        Resources()
    )
    node_selector: Annotated[
        Labels, Meta(description="Labels that nodes of these pods must have. Default: none.", extra=KUBERNETES)
    ] = {}
    tolerations: Annotated[
        tuple[Toleration, ...],
        Meta(max_length=16, description="Node taints that these pods tolerate. Default: none.", extra=KUBERNETES),
    ] = ()
    affinity: Annotated[
        dict[str, Any] | None,
        Meta(description="Node and pod affinity, as in a pod's `spec.affinity`. Default: none.", extra=KUBERNETES),
    ] = None
    topology_spread_constraints: Annotated[
        tuple[
            Annotated[
                dict[str, Any], Meta(description="A constraint, as in a pod's `spec.topologySpreadConstraints`.")
            ],
            ...,
        ],
        Meta(
            max_length=8,
            description="How pods spread over nodes and zones, as in a pod's `spec`. Default: the cluster's default.",
            extra=KUBERNETES,
        ),
    ] = ()
    priority_class_name: Annotated[
        Name | None, Meta(description="PriorityClass of the pods. Default: none.", extra=KUBERNETES)
    ] = None
    runtime_class_name: Annotated[
        Name | None,
        Meta(
            description="RuntimeClass of the pods, for example nvidia. Default: the node's default.", extra=KUBERNETES
        ),
    ] = None
    env: Annotated[
        tuple[EnvVar, ...],
        Meta(
            max_length=64,
            description="Additional environment variables. Variables that Syrinx sets are refused. Default: none.",
            extra_json_schema=list_map("name"),
            extra=KUBERNETES,
        ),
    ] = ()
    extra_volumes: Annotated[
        tuple[ExtraVolume, ...],
        Meta(
            max_length=16,
            description="Additional volumes of the container. Default: none.",
            extra_json_schema=list_map("name"),
            extra=KUBERNETES,
        ),
    ] = ()
    pod_labels: Annotated[
        Labels, Meta(description="Additional labels of the pods. Default: none.", extra=KUBERNETES)
    ] = {}
    pod_annotations: Annotated[
        Annotations, Meta(description="Additional annotations of the pods. Default: none.", extra=KUBERNETES)
    ] = {}


class Storage(Object, frozen=True, kw_only=True):
    """A PersistentVolumeClaim that the operator creates and deletes with the pipeline."""

    size: Annotated[SizeText, Meta(description="Size of the volume, for example 20Gi.")]
    storage_class_name: Annotated[
        Name | None, Meta(description="StorageClass of the volume. Default: the cluster's default class.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteMany"],
        Meta(
            description="ReadWriteMany lets pods on several nodes share the volume. Not all storage classes support it."
        ),
    ] = "ReadWriteOnce"


class Peer(Object, frozen=True, kw_only=True):
    """Clients that may connect: pods by namespace and labels, or IP addresses."""

    namespace: Annotated[Name | None, Meta(description="Namespace of the pods. Default: all namespaces.")] = None
    pod_labels: Annotated[Labels, Meta(description="Labels of the pods. Default: all pods of the namespace.")] = {}
    cidr: Annotated[
        Annotated[str, Meta(max_length=64, pattern=CIDR)] | None,
        Meta(description="A range of IP addresses, for example 10.0.0.0/8, instead of pods."),
    ] = None
