"""The part of the resource that says how pods are made: compute, placement, environment, volumes. Kubernetes only."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, inspect

KUBERNETES: Final = {"kubernetes": True}
"""Marks a field (`Meta.extra`) that says something on Kubernetes only; `syrinx up` has no use for it."""

Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Text without control characters."""
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Of an object in the same namespace."""
Key = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""Of a Secret or ConfigMap."""
EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
LABEL_KEY: Final = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""As example.org/name, or name."""
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
    """What all parts of the resource share: immutable, camelCase in YAML, a typo is an error."""


def kubernetes_only(field: inspect.Field) -> bool:
    """Whether `syrinx up` has no use for a field."""
    return isinstance(field.type, inspect.Metadata) and bool((field.type.extra or {}).get("kubernetes"))


def list_map(field: str) -> dict[str, Any]:
    """For `Meta.extra_json_schema` of a list whose items are told apart by one field, which no two may share."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


class SecretKey(Object, frozen=True, kw_only=True):
    """One value of a Secret in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the Secret.")]
    key: Annotated[Key, Meta(description="Key of the value in it.")]


class ConfigMapKey(Object, frozen=True, kw_only=True):
    """One value of a ConfigMap in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the ConfigMap.")]
    key: Annotated[Key, Meta(description="Key of the value in it.")]


class SecretName(Object, frozen=True, kw_only=True):
    """A Secret in the pipeline's namespace."""

    name: Annotated[Name, Meta(description="Name of the Secret.")]


class EnvVar(Object, frozen=True, kw_only=True):
    """One environment variable: a value, or where it is to be found. Exactly one of them."""

    name: Annotated[EnvName, Meta(description="Name of the variable.")]
    value: Annotated[
        Annotated[str, Meta(max_length=4096)] | None, Meta(description="Its value, for what is no secret.")
    ] = None
    secret: Annotated[SecretKey | None, Meta(description="The key of a Secret that holds its value.")] = None
    config_map: Annotated[ConfigMapKey | None, Meta(description="The key of a ConfigMap that holds its value.")] = None


class EmptyDir(Object, frozen=True, kw_only=True):
    """A directory that lives as long as the pod."""

    medium: Annotated[
        Literal["", "Memory"], Meta(description="Empty for the node's disk, Memory for a file system in memory.")
    ] = ""
    size_limit: Annotated[SizeText | None, Meta(description="Its size at most, as 1Gi. Default: no limit.")] = None


class ExtraVolume(Object, frozen=True, kw_only=True):
    """A volume of yours, mounted into the stage's container. Exactly one source."""

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
        str, Meta(pattern="^(/[^/:]+)+$", max_length=512, description="Absolute directory in the container.")
    ]
    sub_path: Annotated[
        Annotated[Line, Meta(max_length=512)] | None,
        Meta(description="Directory of the volume to mount. Default: all of it."),
    ] = None
    read_only: Annotated[bool, Meta(description="Whether the container may only read it.")] = True
    claim: Annotated[Name | None, Meta(description="Name of a PersistentVolumeClaim.")] = None
    secret: Annotated[Name | None, Meta(description="Name of a Secret; each key is a file.")] = None
    config_map: Annotated[Name | None, Meta(description="Name of a ConfigMap; each key is a file.")] = None
    empty_dir: Annotated[EmptyDir | None, Meta(description="A directory that lives as long as the pod.")] = None


class Toleration(Object, frozen=True, kw_only=True):
    """A node taint that the pods may be placed in spite of."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint. Default: every key, with operator Exists.")] = (
        None
    )
    operator: Annotated[Literal["Exists", "Equal"], Meta(description="How `value` is compared with the taint's.")] = (
        "Equal"
    )
    value: Annotated[LabelValue | None, Meta(description="Value of the taint, with operator Equal.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Effect of the taint. Default: all effects."),
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="With NoExecute: seconds a pod stays on a node that was tainted. Default: for ever."),
    ] = None


class Resources(Object, frozen=True, kw_only=True):
    """Compute resources of a container, as Kubernetes counts them."""

    requests: Annotated[Quantities, Meta(description="What the pod is placed by, as cpu: 500m, memory: 1Gi.")] = {}
    limits: Annotated[
        Quantities,
        Meta(description="What the container may use at most, and its GPUs, as nvidia.com/gpu: 1."),
    ] = {}


class PodFields(Object, frozen=True, kw_only=True):
    """What every stage's pods can be given."""

    resources: Annotated[Resources, Meta(description="CPU, memory and GPUs of the container.", extra=KUBERNETES)] = (
        Resources()
    )
    node_selector: Annotated[
        Labels, Meta(description="Labels that a node must have for these pods. Default: none.", extra=KUBERNETES)
    ] = {}
    tolerations: Annotated[
        tuple[Toleration, ...],
        Meta(
            max_length=16,
            description="Node taints that these pods may be placed in spite of. Default: none.",
            extra=KUBERNETES,
        ),
    ] = ()
    affinity: Annotated[
        dict[str, Any] | None,
        Meta(description="Node and pod affinity, as in a pod's `spec.affinity`. Default: none.", extra=KUBERNETES),
    ] = None
    topology_spread_constraints: Annotated[
        tuple[Annotated[dict[str, Any], Meta(description="As in a pod's spec.")], ...],
        Meta(
            max_length=8,
            description="How pods spread over nodes and zones, as in a pod's spec. Default: as the cluster decides.",
            extra=KUBERNETES,
        ),
    ] = ()
    priority_class_name: Annotated[
        Name | None, Meta(description="PriorityClass of the pods. Default: none.", extra=KUBERNETES)
    ] = None
    runtime_class_name: Annotated[
        Name | None, Meta(description="RuntimeClass of the pods, as nvidia. Default: the node's own.", extra=KUBERNETES)
    ] = None
    env: Annotated[
        tuple[EnvVar, ...],
        Meta(
            max_length=64,
            description="More environment variables. Those that Syrinx sets itself are refused. Default: none.",
            extra_json_schema=list_map("name"),
            extra=KUBERNETES,
        ),
    ] = ()
    extra_volumes: Annotated[
        tuple[ExtraVolume, ...],
        Meta(
            max_length=16,
            description="More volumes, mounted into the container. Default: none.",
            extra_json_schema=list_map("name"),
            extra=KUBERNETES,
        ),
    ] = ()
    pod_labels: Annotated[Labels, Meta(description="More labels for the pods. Default: none.", extra=KUBERNETES)] = {}
    pod_annotations: Annotated[
        Annotations, Meta(description="More annotations for the pods. Default: none.", extra=KUBERNETES)
    ] = {}


class Storage(Object, frozen=True, kw_only=True):
    """A PersistentVolumeClaim that the operator makes, and that is deleted with the pipeline."""

    size: Annotated[SizeText, Meta(description="Size of the volume, as 20Gi.")]
    storage_class_name: Annotated[
        Name | None, Meta(description="StorageClass of the volume. Default: the cluster's default class.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteMany"],
        Meta(description="ReadWriteMany lets pods on several nodes share the volume; not every class has it."),
    ] = "ReadWriteOnce"


class Peer(Object, frozen=True, kw_only=True):
    """Who may connect: pods by namespace and labels, or addresses."""

    namespace: Annotated[Name | None, Meta(description="Namespace of the pods. Default: every namespace.")] = None
    pod_labels: Annotated[Labels, Meta(description="Labels of the pods. Default: every pod of the namespace.")] = {}
    cidr: Annotated[
        Annotated[str, Meta(max_length=64, pattern=CIDR)] | None,
        Meta(description="A range of addresses, as 10.0.0.0/8, in place of pods."),
    ] = None
