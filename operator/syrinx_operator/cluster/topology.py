"""Which stages share a pod, by `spec.topology`."""

from __future__ import annotations

from syrinx_operator.cluster.state import STAGES, Component
from syrinx_operator.resource.spec import PipelineSpec

HOST, GUEST = Component.TALKER, Component.CODEC
"""Where they share one: whose workload it is, and who else is in its pods."""


def workloads(spec: PipelineSpec) -> tuple[Component, ...]:
    """The stages that have a workload of their own."""
    return STAGES if spec.topology == "Separate" else tuple(stage for stage in STAGES if stage is not GUEST)


def workload_of(spec: PipelineSpec, stage: Component) -> Component:
    """Whose workload's pods a stage is in."""
    return stage if stage in workloads(spec) else HOST


def members(spec: PipelineSpec, stage: Component) -> tuple[Component, ...]:
    """The stages in the pods of a stage's workload, that stage first."""
    return (HOST, GUEST) if stage is HOST and GUEST not in workloads(spec) else (stage,)
