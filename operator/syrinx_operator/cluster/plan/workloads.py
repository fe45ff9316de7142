"""Workloads of the stages, their replica counts and PodDisruptionBudgets."""

from __future__ import annotations

from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.cluster.plan.release import FrozenTemplate
from syrinx_operator.cluster.state import Component, Manifest, ObjectKey, Observed, Owner
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

    @property
    def fields(self) -> Manifest:
        """The `replicas` field of the workload's spec; empty if an autoscaler owns it."""
        return {"replicas": self.count} if self.applied else {}

    def with_precondition(self, workload: Manifest) -> Manifest:
        """Returns the workload with the resource version for which the count is valid."""
        metadata = {**workload["metadata"], **omit_empty(resourceVersion=self.resource_version)}
        return {**workload, "metadata": metadata}


def replica_count(workload: ObjectKey, desired: int, observed: Observed) -> ReplicaCount:
    """Returns the count to apply. With an autoscaler, its count is left alone, or copied while we own the field."""
    live = observed.objects.get(workload)
    if live is None or workload not in observed.autoscaled:
        return ReplicaCount(desired)
    count = live["spec"].get("replicas", 1)
    if _has_other_owner(live):
        return ReplicaCount(count, applied=False)
    # If we left the field out while we are its only owner, server-side apply would reset it to 1.
    return ReplicaCount(count, resource_version=live["metadata"]["resourceVersion"])


def _has_other_owner(workload: Manifest) -> bool:
    return any(
        "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in workload["metadata"].get("managedFields", [])
        if entry.get("manager") != names.FIELD_MANAGER
    )


def stage_workload(
    owner: Owner, stage: Component, template: FrozenTemplate, replicas: ReplicaCount, partition: int
) -> Manifest:
    """Returns the StatefulSet of a talker or codec; pods of ordinals below `partition` keep their template."""
    name = names.workload(owner.name, stage)
    spec = {
        **replicas.fields,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(owner.name, stage)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "template": template.template,
    }
    return replicas.with_precondition(manifest(owner, "apps/v1", "StatefulSet", name, stage, spec=spec))


def gateway_workload(owner: Owner, spec: PipelineSpec, template: FrozenTemplate, replicas: ReplicaCount) -> Manifest:
    """Returns the Deployment of the gateways; new pods become ready before old ones stop."""
    name = names.workload(owner.name, Component.GATEWAY)
    # A gateway becomes ready only once a talker and a codec of its model generation are.
    deadline = max(spec.talker.startup_seconds, codec_process(spec).startup_seconds) + _PROGRESS_SECONDS
    body = {
        **replicas.fields,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": deadline,
        "selector": {"matchLabels": names.selector(owner.name, Component.GATEWAY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template.template,
    }
    return replicas.with_precondition(manifest(owner, "apps/v1", "Deployment", name, Component.GATEWAY, spec=body))


def disruption_budget(owner: Owner, component: Component) -> Manifest:
    """Returns the PodDisruptionBudget of a component with several replicas; with one it would block every drain."""
    spec = {
        "maxUnavailable": 1,
        # A pod that is not ready must not block a node drain.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(owner.name, component)},
    }
    name = names.workload(owner.name, component)
    return manifest(owner, "policy/v1", "PodDisruptionBudget", name, component, spec=spec)
