"""Workloads of the stages, their replica counts, and PodDisruptionBudgets."""

from collections.abc import Sequence

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, Observed, Owner
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.cluster.plan.records import AnyStage, FrozenTemplate
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import Stage


class ReplicaCount(Struct, frozen=True):
    """A workload's replica count and who owns the field: this operator or an autoscaler."""

    count: int
    applied: bool = True
    """Whether the operator applies `spec.replicas`; False if the autoscaler owns the field."""
    resource_version: str | None = None
    """Precondition of the apply: the autoscaler may change the count at any time."""

    @property
    def is_autoscaled(self) -> bool:
        """Whether an autoscaler decides the count."""
        return not self.applied or self.resource_version is not None


def replica_count(owner: Owner, stage: Stage, part: AnyStage, observed: Observed, decided: int | None) -> ReplicaCount:
    """Returns the count to apply. With an autoscaler, its count is left alone, or copied while we own the field.

    An autoscaler that the spec requests counts before it exists, so that the count never returns to `replicas`.
    `decided` is the tuner's count, which applies unless an autoscaler of others exists; None before its first one.
    """
    key, autoscaling = names.workload_key(owner.name, stage), part.autoscaling
    live = observed.objects.get(key)
    if autoscaling is not None and autoscaling.by == "Syrinx":
        if autoscaling.mode == "Recommend":
            autoscaling = None
        elif key not in observed.autoscaled:
            current = part.replicas if live is None else live["spec"].get("replicas", 1)
            count = current if decided is None else decided
            return ReplicaCount(min(max(count, autoscaling.min_replicas), autoscaling.max_replicas))
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
    owner: Owner,
    stage: str,
    template: Manifest,
    replicas: ReplicaCount,
    partition: int | None,
    claims: Sequence[Manifest] = (),
) -> Manifest:
    """Returns the StatefulSet of a talker, a codec or a cell's Redis.

    Pods of ordinals below `partition` keep their template.

    `claims`: its volumeClaimTemplates.
    """
    rolling_update = {} if partition is None else {"rollingUpdate": {"partition": partition}}
    spec = {
        "serviceName": names.workload(owner.name, stage),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(owner.name, stage)},
        "updateStrategy": {"type": "RollingUpdate", **rolling_update},
        "template": template,
        **omit_empty(volumeClaimTemplates=list(claims)),
    }
    return _workload(owner, stage, replicas, spec)


def gateway_workload(
    owner: Owner, pipeline: ResolvedPipeline, template: FrozenTemplate, replicas: ReplicaCount
) -> Manifest:
    """Returns the Deployment of the gateways; new pods become ready before old ones stop."""
    body = {
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": pipeline.progress_deadline,
        "selector": {"matchLabels": names.selector(owner.name, Stage.GATEWAY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template.template,
    }
    return _workload(owner, Stage.GATEWAY, replicas, body)


def _workload(owner: Owner, component: str, replicas: ReplicaCount, spec: Manifest) -> Manifest:
    kind, version = names.workload_key(owner.name, component).kind, replicas.resource_version
    count = {"replicas": replicas.count} if replicas.applied else {}
    return manifest(owner, "apps/v1", kind, component, resource_version=version, spec={**count, **spec})


def disruption_budget(owner: Owner, component: str) -> Manifest:
    """Returns the PodDisruptionBudget of a component with several replicas; with one it would block every drain."""
    spec = {
        "maxUnavailable": 1,
        # A pod that is not ready must not block a node drain.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(owner.name, component)},
    }
    return manifest(owner, "policy/v1", "PodDisruptionBudget", component, spec=spec)
