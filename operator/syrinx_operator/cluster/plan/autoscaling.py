"""Autoscalers of the stages: ScaledObjects of KEDA or HorizontalPodAutoscalers, on streams and the expected wait."""

from typing import Final

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import AUTOSCALER, SCALED_OBJECT
from syrinx_operator.cluster.objects.series import selector
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Observed, Owner
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.resource.fields.autoscaling import AutoscalingSpec, StageAutoscalingSpec
from syrinx_operator.resource.resolve import ResolvedGateway, ResolvedPipeline
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_stages.contract.stages import Stage

STREAMS_METRIC: Final = "syrinx_live_streams"
WAIT_METRIC: Final = "syrinx_expected_wait_seconds"
_WAIT_WINDOW: Final = "2m"
"""The wait is averaged, so that one burst adds no replicas."""
_STREAMS_PER_GATEWAY: Final = 100
_WAIT_SECONDS: Final = 0.1
_POLLING_SECONDS: Final = 15


class _Target(Struct, frozen=True):
    """A metric and its target: for each replica, or as a whole."""

    metric: str
    query: str
    """PromQL, in which SELECTOR is that of the pipeline's series."""
    value: float
    per_replica: bool


def autoscalers(owner: Owner, pipeline: ResolvedPipeline, observed: Observed) -> list[Manifest]:
    """Returns the autoscalers of all stages that request one."""
    found = []
    for stage in pipeline.workloads:
        part = pipeline.stage(stage).spec
        if part.autoscaling is None or part.autoscaling.by == "Syrinx":
            continue
        targets = _targets(pipeline, stage, part.autoscaling)
        kind, other = (SCALED_OBJECT, AUTOSCALER) if part.autoscaling.by == "Keda" else (AUTOSCALER, SCALED_OBJECT)
        if ObjectKey(other.kind, names.workload(owner.name, stage)) in observed.objects:
            # KEDA refuses a workload that has another autoscaler. The former is pruned first.
            continue
        key, bounds = names.workload_key(owner.name, stage), part.autoscaling
        scaled: Manifest = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": key.kind, "name": key.name}}
        if kind is SCALED_OBJECT:
            scaled |= {"minReplicaCount": bounds.min_replicas, "maxReplicaCount": bounds.max_replicas}
            scaled |= {"pollingInterval": _POLLING_SECONDS, "triggers": _triggers(owner, pipeline.spec, targets)}
        else:
            scaled |= {"minReplicas": bounds.min_replicas, "maxReplicas": bounds.max_replicas}
            scaled |= {"metrics": _metrics(owner, targets)}
        found.append(manifest(owner, kind.api_version, kind.kind, stage, spec=scaled))
    return found


def _targets(
    pipeline: ResolvedPipeline, stage: Stage, autoscaling: AutoscalingSpec | StageAutoscalingSpec
) -> list[_Target]:
    resolved = pipeline.stage(stage)
    default = _STREAMS_PER_GATEWAY if isinstance(resolved, ResolvedGateway) else resolved.settings.max_num_seqs
    # A pod that two jobs scrape must count once.
    streams = f"sum(max by (pod) ({STREAMS_METRIC}{{SELECTOR}}))"
    found = [_Target(STREAMS_METRIC, streams, autoscaling.streams_per_replica or default, per_replica=True)]
    if isinstance(autoscaling, StageAutoscalingSpec):
        wait = f"max(avg_over_time({WAIT_METRIC}{{SELECTOR}}[{_WAIT_WINDOW}]))"
        value = autoscaling.max_wait_seconds or _WAIT_SECONDS
        found.append(_Target(WAIT_METRIC, wait, value, per_replica=False))
    return found


def _triggers(owner: Owner, spec: PipelineSpec, targets: list[_Target]) -> list[Manifest]:
    """Returns the triggers of a ScaledObject."""
    prometheus = spec.tuning.prometheus
    assert prometheus is not None
    authentication = prometheus.keda_authentication
    return [
        {
            "type": "prometheus",
            "metricType": "AverageValue" if target.per_replica else "Value",
            "metadata": {
                "serverAddress": prometheus.url,
                "query": target.query.replace("SELECTOR", selector(owner, with_canary=True)),
                "threshold": f"{target.value:g}",
                # Without samples the count stays as it is.
                "ignoreNullValues": "false",
                **omit_empty(authModes=",".join(authentication.modes) if authentication is not None else ""),
            },
            **omit_empty(
                authenticationRef={"name": authentication.name, "kind": authentication.kind}
                if authentication is not None
                else None
            ),
        }
        for target in targets
    ]


def _metrics(owner: Owner, targets: list[_Target]) -> list[Manifest]:
    """Returns the metrics of a HorizontalPodAutoscaler."""
    metrics = []
    for target in targets:
        field, amount = ("averageValue", "AverageValue") if target.per_replica else ("value", "Value")
        metric = {"name": target.metric, "selector": {"matchLabels": {"pipeline": owner.name}}}
        goal = {"type": amount, field: _quantity(target.value)}
        metrics.append({"type": "External", "external": {"metric": metric, "target": goal}})
    return metrics


def _quantity(value: float) -> str:
    """Returns a Kubernetes quantity in its canonical form."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"
