"""PodDisruptionBudgets: a node is drained of one replica of a component at a time."""

from __future__ import annotations

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.state import Component, Manifest, Owner


def disruption_budget(owner: Owner, component: Component) -> Manifest:
    """The budget of a component with more than one replica; with one it could only forbid every drain."""
    spec = {
        "maxUnavailable": 1,
        # A pod that does not run is no reason to keep a node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(owner.name, component)},
    }
    name = names.workload(owner.name, component)
    return manifest(owner, "policy/v1", "PodDisruptionBudget", name, component, spec=spec)
