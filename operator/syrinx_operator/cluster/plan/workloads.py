"""Workloads of the stages: replica counts, rolling updates and PodDisruptionBudgets.

A rolling update of talkers or codecs replaces one replica at a time and stops at the first that does not become ready.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.plan.records import AnyStage, FrozenTemplate, Release
from syrinx_operator.cluster.state import Component, Manifest, Observed, Owner, Replica
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.stage_config import codec_process

_PROGRESS_SECONDS = 600


class ReplicaCount(Struct, frozen=True):
    """A workload's replica count and who owns the field: this operator or an autoscaler."""

    count: int
    applied: bool = True
    """Whether the operator applies `spec.replicas`; False if the autoscaler owns the field."""
    resource_version: str | None = None
    """Precondition of the apply: the autoscaler may change the count at any time."""


def replica_count(owner: Owner, stage: Component, part: AnyStage, observed: Observed) -> ReplicaCount:
    """Returns the count to apply. With an autoscaler, its count is left alone, or copied while we own the field.

    An autoscaler that the spec requests counts before it exists, so that the count never returns to `replicas`.
    """
    key, autoscaling = names.workload_key(owner.name, stage), part.autoscaling
    live = observed.objects.get(key)
    if live is None and autoscaling is not None:
        return ReplicaCount(min(max(part.replicas, autoscaling.min_replicas), autoscaling.max_replicas))
    if live is None or (autoscaling is None and key not in observed.autoscaled):
        return ReplicaCount(part.replicas)
    metadata, count = live["metadata"], live["spec"].get("replicas", 1)
    owners = {
        entry.get("manager")
        for entry in metadata.get("managedFields", [])
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    }
    if owners - {names.FIELD_MANAGER}:
        return ReplicaCount(count, applied=False)
    # If we left the field out while we are its only owner, server-side apply would reset it to 1.
    return ReplicaCount(count, resource_version=metadata.get("resourceVersion"))


def stage_workload(
    owner: Owner, stage: Component, template: FrozenTemplate, replicas: ReplicaCount, partition: int | None
) -> Manifest:
    """Returns the StatefulSet of a talker, codec or Redis; pods of ordinals below `partition` keep their template."""
    rolling_update = {} if partition is None else {"rollingUpdate": {"partition": partition}}
    spec = {
        "serviceName": names.workload(owner.name, stage),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(owner.name, stage)},
        "updateStrategy": {"type": "RollingUpdate", **rolling_update},
        "template": template.template,
    }
    return _workload(owner, stage, replicas, spec)


def gateway_workload(owner: Owner, spec: PipelineSpec, template: FrozenTemplate, replicas: ReplicaCount) -> Manifest:
    """Returns the Deployment of the gateways; new pods become ready before old ones stop."""
    # A gateway becomes ready only once a talker and a codec of its model generation are.
    deadline = max(spec.talker.startup_seconds, codec_process(spec).startup_seconds) + _PROGRESS_SECONDS
    body = {
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": deadline,
        "selector": {"matchLabels": names.selector(owner.name, Component.GATEWAY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template.template,
    }
    return _workload(owner, Component.GATEWAY, replicas, body)


def _workload(owner: Owner, component: Component, replicas: ReplicaCount, spec: Manifest) -> Manifest:
    kind, version = names.workload_key(owner.name, component).kind, replicas.resource_version
    count = {"replicas": replicas.count} if replicas.applied else {}
    return manifest(owner, "apps/v1", kind, component, resource_version=version, spec={**count, **spec})


def disruption_budget(owner: Owner, component: Component) -> Manifest:
    """Returns the PodDisruptionBudget of a component with several replicas; with one it would block every drain."""
    spec = {
        "maxUnavailable": 1,
        # A pod that is not ready must not block a node drain.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(owner.name, component)},
    }
    return manifest(owner, "policy/v1", "PodDisruptionBudget", component, spec=spec)


def stage_partition(
    stage: Component, release: Release, replicas: int, observed: Observed, settings_generations: Mapping[Component, int]
) -> int:
    """Returns the partition of a stage's StatefulSet: pods of this ordinal and above get the new template.

    `settings_generations` has every stage in the pod; a pod is confirmed once all of its stages are. The last replica
    of an old model generation stays while a gateway of another generation exists (even a terminating one, whose
    streams it serves) or no gateway of the new generation is ready.
    """
    unconfirmed = {
        replica.name
        for member, desired in settings_generations.items()
        for replica in observed.replicas_of(member)
        if not replica.has_confirmed(desired)
    }
    pods = [
        structs.replace(pod, reported=None) if pod.name in unconfirmed else pod for pod in observed.replicas_of(stage)
    ]
    gateways = observed.replicas_of(Component.GATEWAY)
    has_old_replica = any(replica.model_generation != release.generation for replica in pods)
    has_new_gateway = any(gateway.ready and gateway.model_generation == release.generation for gateway in gateways)
    has_old_gateway = any(gateway.model_generation != release.generation for gateway in gateways)
    return partition(
        replicas,
        release.templates[stage].hash,
        pods,
        settings_generation=settings_generations[stage],
        keep_last_old=has_old_replica and (has_old_gateway or not has_new_gateway),
    )


def partition(
    replicas: int, template: str, pods: Sequence[Replica], *, settings_generation: int, keep_last_old: bool
) -> int:
    """Returns a StatefulSet's partition: pods of this ordinal and above get `template`, those below keep theirs.

    Kubernetes replaces the highest outdated ordinal at or above the partition. The result permits no replacement while
    a pod of `template` is not settled (ready, with settings of `settings_generation` in force), and one otherwise: a
    template whose pods never settle stops at its first pod. Pods of earlier templates block nothing, ready or not, so
    the next edit still rolls out. `keep_last_old` keeps the last outdated pod if there are two replicas or more.
    """
    live = {number: pod for pod in pods if not pod.terminating and (number := _ordinal(pod)) in range(replicas)}
    old = [number for number, pod in live.items() if pod.template != template]
    if not old:
        return 0
    highest = max(old)
    new = [pod for pod in live.values() if pod.template == template]
    is_recreating = any(number not in live for number in range(highest, replicas))
    is_kept = keep_last_old and replicas > 1 and len(old) == 1
    if is_recreating or is_kept or not all(pod.ready and pod.has_confirmed(settings_generation) for pod in new):
        return highest + 1
    return highest


def _ordinal(pod: Replica) -> int:
    digits = pod.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else -1
