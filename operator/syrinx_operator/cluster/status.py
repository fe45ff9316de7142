"""The status of a TTSPipeline, built from the state observed in one reconcile. Pure."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.conditions import ConditionValue, StatusInputs, conditions, to_condition
from syrinx_operator.cluster.plan.settings import recorded_settings
from syrinx_operator.cluster.state import Component, Owner, Problem
from syrinx_operator.resource import status as report
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner.evidence import slo_statuses, truncated_ratio
from syrinx_stages.contract.metrics import TTFA_BUCKETS

_MAX_TTFA_MS = TTFA_BUCKETS[-1] * 1000


def status(inputs: StatusInputs) -> dict[str, Any]:
    """Returns the complete status as JSON. Equal inputs give an equal status, whatever the time.

    With problems the top-level `observedGeneration` stays at its previous value, so that clients waiting for an edit do
    not read an older state as its result.
    """
    owner, plan, evidence, spec = inputs.owner, inputs.plan, inputs.metrics.evidence, inputs.pipeline.spec
    has_metrics = spec.tuning.mode != "Off"
    slo = slo_statuses(spec.slo.ttfa, evidence) if has_metrics else ()
    p95 = max((each.ttfa_p95_ms for each in slo if each.ttfa_p95_ms is not None), default=None)
    underruns = sum(each.underruns for each in evidence.routes.values())
    redis = None
    if Component.REDIS in plan.templates:
        pods = inputs.observed.live(Component.REDIS)
        restarts = sum(pod.restarts for pod in pods)
        redis = report.RedisStatus(ready=any(pod.ready for pod in pods), restarts=restarts or None)
    found = report.PipelineStatus(
        observed_generation=inputs.before.observed_generation if inputs.problems else owner.generation,
        endpoint=f"http://{names.workload(owner.name, Component.GATEWAY)}.{owner.namespace}.svc:{spec.gateway.port}",
        model=inputs.pipeline.model_name,
        model_generation=plan.generation,
        image=spec.image or plan.release.image,
        conditions=conditions(inputs),
        gateway=report.GatewayStatus(**_stage(inputs, Component.GATEWAY, report.GatewayValues)),
        talker=report.TalkerStatus(**_stage(inputs, Component.TALKER, report.TalkerValues)),
        codec=report.CodecStatus(**_stage(inputs, Component.CODEC, report.CodecValues)),
        redis=redis,
        tuning=inputs.tuning,
        slo=slo,
        underrun_ratio=truncated_ratio(underruns, evidence.live_streams) if has_metrics else None,
        ttfa_p95=None if p95 is None else f">{_MAX_TTFA_MS:.0f}ms" if p95 >= _MAX_TTFA_MS else f"{p95}ms",
    )
    return _to_json(found)


def failed(before: report.PipelineStatus, owner: Owner, problem: Problem, now: datetime) -> dict[str, Any]:
    """Returns the previous status with Degraded set for a problem, if no plan could be made.

    All other conditions stay, each with the generation that it was observed for.
    """
    kept: dict[str, report.Condition] = {condition.type: condition for condition in before.conditions}
    if "Ready" not in kept:
        not_ready = ConditionValue("False", problem.reason, problem.message)
        kept["Ready"] = to_condition(None, "Ready", not_ready, owner.generation, now)
    degraded = ConditionValue("True", problem.reason, problem.message)
    kept["Degraded"] = to_condition(kept.get("Degraded"), "Degraded", degraded, owner.generation, now)
    return _to_json(msgspec.structs.replace(before, conditions=tuple(kept.values())))


def _to_json(status: report.PipelineStatus) -> dict[str, Any]:
    # Through JSON, so that it compares equal to what the API server returns (lists, no tuples).
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return plain


def _stage(inputs: StatusInputs, stage: Component, values: Callable[..., Any]) -> dict[str, Any]:
    """Returns a stage's report as keyword arguments; `values` is the type of its settings."""
    owner, plan, live = inputs.owner, inputs.plan, inputs.observed.live(stage)
    before: report.StageStatus | None = getattr(inputs.before, stage)
    desired, ready = plan.settings[stage], sum(pod.ready for pod in live)
    settings = dict(desired.settings)
    if stage is Component.CODEC:
        pairs = settings["capture_pairs"]
        settings["capture_pairs"] = tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in pairs)
    everywhere = bool(live) and all(pod.has_confirmed(desired.generation) for pod in live)
    # A generation that could not be written to the ConfigMap must not increase at each reconcile.
    recorded = recorded_settings(owner, stage, inputs.observed)
    by_ordinal = sorted(live, key=lambda pod: (len(pod.name), pod.name))
    return {
        "replicas": len(live),
        "ready_replicas": ready,
        "updated_replicas": sum(pod.template == plan.templates[stage] for pod in live),
        "summary": f"{ready}/{plan.replicas[stage]}",
        "selector": ",".join(f"{label}={value}" for label, value in names.selector(owner.name, stage).items()),
        "settings_generation": recorded.generation if recorded else before.settings_generation if before else 0,
        "confirmed_generation": desired.generation if everywhere else before and before.confirmed_generation,
        "confirmed": tuple(
            report.ReplicaStatus(
                replica=pod.name,
                generation=pod.reported.generation if pod.reported else None,
                restarts=pod.restarts or None,
                problem=pod.problem[:256] or None,
            )
            for pod in by_ordinal[: report.MAX_CONFIRMED]
        ),
        "settings": values(**settings),
    }
