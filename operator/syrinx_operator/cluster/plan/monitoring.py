"""A PodMonitor, where the cluster has the Prometheus operator."""

from __future__ import annotations

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.state import STAGES, Manifest, Observed, Owner
from syrinx_operator.resource.spec import PipelineSpec

POD_MONITOR_KIND = "PodMonitor"


def pod_monitors(owner: Owner, spec: PipelineSpec, observed: Observed) -> list[Manifest]:
    """The PodMonitor of all stages, if it is asked for and the cluster serves the kind."""
    asked = spec.monitoring.pod_monitor
    if asked is None or POD_MONITOR_KIND not in observed.served_kinds:
        return []
    endpoint = {
        "port": names.ADMIN_PORT_NAME,
        "path": "/metrics",
        "interval": f"{asked.interval_seconds}s",
        "relabelings": [
            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "pod"},
            {"sourceLabels": ["__meta_kubernetes_pod_label_syrinx_dev_pipeline"], "targetLabel": "pipeline"},
        ],
    }
    stages = {"key": names.COMPONENT_LABEL, "operator": "In", "values": [stage.value for stage in STAGES]}
    pods = {"matchLabels": {names.PIPELINE_LABEL: owner.name}, "matchExpressions": [stages]}
    body = {"selector": pods, "podMetricsEndpoints": [endpoint]}
    made = manifest(owner, "monitoring.coreos.com/v1", POD_MONITOR_KIND, owner.name, "monitoring", spec=body)
    # The user's, by which a Prometheus selects; ours stay what they are.
    made["metadata"]["labels"] = {**asked.labels, **made["metadata"]["labels"]}
    return [made]
