"""How many replicas a workload gets, and who decides: the resource, or an autoscaler that targets the workload."""

from __future__ import annotations

from msgspec import Struct

from syrinx_operator.cluster.names import FIELD_MANAGER
from syrinx_operator.cluster.plan.objects import present
from syrinx_operator.cluster.state import Manifest, ObjectKey, Observed


class Replicas(Struct, frozen=True):
    """A workload's replicas."""

    count: int
    """How many there shall be."""
    applied: bool = True
    """Whether the operator says so; otherwise the field is the autoscaler's alone."""
    resource_version: str | None = None
    """The count is only right for this version of the workload: the autoscaler may change it any moment."""

    @property
    def fields(self) -> Manifest:
        """What goes into the workload's spec."""
        return {"replicas": self.count} if self.applied else {}

    def onto(self, workload: Manifest) -> Manifest:
        """The workload, applied only as long as the count is right."""
        metadata = {**workload["metadata"], **present(resourceVersion=self.resource_version)}
        return {**workload, "metadata": metadata}


def replicas(workload: ObjectKey, wanted: int, observed: Observed) -> Replicas:
    """What to apply as `replicas`. An autoscaler's count is left alone, or carried over if the field is still ours."""
    live = observed.objects.get(workload)
    if live is None or workload not in observed.autoscaled:
        return Replicas(wanted)
    count = live["spec"].get("replicas", 1)
    if _owned_by_another(live):
        return Replicas(count, applied=False)
    # Left out now, the field would lose its only owner and fall back to 1.
    return Replicas(count, resource_version=live["metadata"]["resourceVersion"])


def _owned_by_another(workload: Manifest) -> bool:
    entries = workload["metadata"].get("managedFields", [])
    return any(
        "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in entries
        if entry.get("manager") != FIELD_MANAGER
    )
