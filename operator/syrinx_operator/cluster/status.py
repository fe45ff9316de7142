"""The status of a TTSPipeline, built from the state observed in one reconcile. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.conditions import (
    ConditionInputs,
    ConditionValue,
    Problem,
    conditions,
    has_confirmed,
    to_condition,
)
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.settings import recorded_settings
from syrinx_operator.cluster.state import Component, MetricsSummary, Observed, Owner, Replica
from syrinx_operator.resource.spec import CaptureShape, TtfaObjective, TTSPipeline
from syrinx_operator.resource.status import (
    MAX_CONFIRMED,
    CodecStatus,
    CodecValues,
    Condition,
    ConditionStatus,
    GatewayStatus,
    GatewayValues,
    PipelineStatus,
    RedisStatus,
    ReplicaStatus,
    SloStatus,
    StageStatus,
    TalkerStatus,
    TalkerValues,
    read,
)
from syrinx_operator.resource.tuning_status import State
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import TTFA_BUCKETS
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, TalkerSettings


def status(
    pipeline: TTSPipeline,
    owner: Owner,
    observed: Observed,
    plan: Plan,
    metrics: MetricsSummary | None,
    tuning: State,
    previous: Mapping[str, Any] | None,
    problems: Sequence[Problem],
    now: datetime,
) -> dict[str, Any]:
    """Returns the complete status as JSON. Equal inputs give an equal status, whatever the time.

    With `problems` (what kept the plan from being applied) the top-level `observedGeneration` stays at its previous
    value, so that clients waiting for an edit do not read an older state as its result. `metrics` is None until they
    have been read; `tuning` is the state after the tuner's decision. `now` has a time zone.
    """
    before = read(previous)
    inputs = ConditionInputs(
        pipeline=pipeline,
        observed=observed,
        plan=plan,
        metrics=metrics,
        tuning=tuning,
        problems=problems,
        previous={condition.type: condition for condition in before.conditions},
        now=now,
    )
    spec = pipeline.spec
    known = None if metrics is None or metrics.problem or spec.tuning.mode == "Off" else metrics
    quantiles = [each.ttfa_p95_ms for each in known.task_types if each.ttfa_p95_ms is not None] if known else []
    report = PipelineStatus(
        observed_generation=before.observed_generation if problems else owner.generation,
        endpoint=f"http://{names.workload(owner.name, Component.GATEWAY)}.{owner.namespace}.svc:{spec.gateway.port}",
        model=pipeline.model_name,
        model_generation=plan.generation,
        image=spec.image or plan.release.image,
        conditions=conditions(inputs, owner.generation),
        gateway=_gateway(owner, observed, plan, before.gateway),
        talker=_talker(owner, observed, plan, before.talker),
        codec=_codec(owner, observed, plan, before.codec),
        redis=_redis(observed.live(Component.REDIS)) if Component.REDIS in plan.templates else None,
        tuning=tuning,
        slo=() if spec.tuning.mode == "Off" else _slo_reports(spec.slo.ttfa, known),
        underrun_ratio=_ratio(known.underruns, known.live_streams) if known else None,
        ttfa_p95=_milliseconds(max(quantiles)) if quantiles else None,
    )
    return _to_json(report)


def invalid(previous: Mapping[str, Any] | None, owner: Owner, messages: Sequence[str], now: datetime) -> dict[str, Any]:
    """Returns the status of a resource that violates its rules; `messages` say what to correct."""
    message = f"the pipeline keeps running unchanged until this is corrected: {'; '.join(messages)}"
    return failed(previous, owner, [Problem("Invalid", message)], now)


def failed(
    previous: Mapping[str, Any] | None, owner: Owner, problems: Sequence[Problem], now: datetime
) -> dict[str, Any]:
    """Returns the previous status with Degraded set for one or more problems, if no plan could be made.

    All other conditions stay, each with the generation that it was observed for.
    """
    before = read(previous)
    kept: dict[str, Condition] = {condition.type: condition for condition in before.conditions}
    reason, message = problems[0].reason, "; ".join(problem.message for problem in problems)
    if "Ready" not in kept:
        kept["Ready"] = to_condition({}, "Ready", ConditionValue("False", reason, message), owner.generation, now)
    kept["Degraded"] = to_condition(kept, "Degraded", ConditionValue("True", reason, message), owner.generation, now)
    return _to_json(msgspec.structs.replace(before, conditions=tuple(kept.values())))


def _to_json(report: PipelineStatus) -> dict[str, Any]:
    # Through JSON, so that it compares equal to what the API server returns (lists, no tuples).
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))
    return plain


def _gateway(owner: Owner, observed: Observed, plan: Plan, before: StageStatus | None) -> GatewayStatus:
    values = msgspec.convert(plan.settings[Component.GATEWAY].settings, GatewaySettings)
    settings = GatewayValues(max_queue=values.max_queue, max_queue_seconds=values.max_queue_seconds)
    return GatewayStatus(**_stage(owner, observed, plan, Component.GATEWAY, before), settings=settings)


def _talker(owner: Owner, observed: Observed, plan: Plan, before: StageStatus | None) -> TalkerStatus:
    values = msgspec.convert(plan.settings[Component.TALKER].settings, TalkerSettings)
    settings = TalkerValues(max_num_seqs=values.max_num_seqs, lead_limit_seconds=values.lead_limit_seconds)
    return TalkerStatus(**_stage(owner, observed, plan, Component.TALKER, before), settings=settings)


def _codec(owner: Owner, observed: Observed, plan: Plan, before: StageStatus | None) -> CodecStatus:
    values = msgspec.convert(plan.settings[Component.CODEC].settings, CodecSettings)
    pairs = tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in values.capture_pairs)
    settings = CodecValues(max_num_seqs=values.max_num_seqs, chunk_ramp=values.chunk_ramp, capture_pairs=pairs)
    return CodecStatus(**_stage(owner, observed, plan, Component.CODEC, before), settings=settings)


def _stage(
    owner: Owner, observed: Observed, plan: Plan, stage: Component, before: StageStatus | None
) -> dict[str, Any]:
    """Returns the fields common to all stage reports, as keyword arguments."""
    live = observed.live(stage)
    ready = sum(pod.ready for pod in live)
    generation = plan.settings[stage].generation
    everywhere = bool(live) and all(has_confirmed(pod, generation) for pod in live)
    labels = names.selector(owner.name, stage)
    by_ordinal = sorted(live, key=lambda pod: (len(pod.name), pod.name))
    return {
        "replicas": len(live),
        "ready_replicas": ready,
        "updated_replicas": sum(pod.template == plan.templates[stage] for pod in live),
        "summary": f"{ready}/{plan.replicas[stage]}",
        "selector": ",".join(f"{label}={value}" for label, value in labels.items()),
        "settings_generation": _recorded_generation(owner, observed, stage, before),
        "confirmed_generation": generation if everywhere else before and before.confirmed_generation,
        "confirmed": tuple(_confirmed(pod) for pod in by_ordinal[:MAX_CONFIRMED]),
    }


def _recorded_generation(owner: Owner, observed: Observed, stage: Component, before: StageStatus | None) -> int:
    """Returns the generation in the ConfigMap: one that could not be written must not increase at each reconcile."""
    recorded = recorded_settings(owner, stage, observed)
    if recorded is not None:
        return recorded.generation
    return before.settings_generation if before else 0


def _confirmed(pod: Replica) -> ReplicaStatus:
    return ReplicaStatus(
        replica=pod.name,
        generation=None if pod.reported is None else pod.reported.generation,
        restarts=pod.restarts or None,
        problem=pod.problem[:256] or None,
    )


def _redis(live: Sequence[Replica]) -> RedisStatus:
    return RedisStatus(ready=any(pod.ready for pod in live), restarts=sum(pod.restarts for pod in live) or None)


def _slo_reports(objectives: Sequence[TtfaObjective], metrics: MetricsSummary | None) -> tuple[SloStatus, ...]:
    targets = {objective.task_type: objective.target for objective in objectives}
    found = {stats.task_type: stats for stats in metrics.task_types} if metrics else {}
    reports = []
    for task_type in FAMILY.task_types:
        stats, target = found.get(task_type), targets.get(task_type)
        if stats is None:
            if target is not None:
                reports.append(SloStatus(task_type=task_type, requests=0 if metrics else None, met="Unknown"))
            continue
        within = None if stats.within is None else _ratio(stats.within, stats.requests)
        met: ConditionStatus = "Unknown"
        if stats.within is not None and stats.requests and target is not None:
            met = "True" if stats.within / stats.requests >= target else "False"
        p95 = None if stats.ttfa_p95_ms is None else round(stats.ttfa_p95_ms)
        reports.append(SloStatus(task_type=task_type, requests=stats.requests, within=within, ttfa_p95_ms=p95, met=met))
    return tuple(reports)


def _ratio(part: int, whole: int) -> float | None:
    """Returns a ratio truncated to four digits, so that a missed target never rounds up to it; None for 0 of 0."""
    return min(1.0, part * 10_000 // whole / 10_000) if whole else None


def _milliseconds(value: float) -> str:
    last = TTFA_BUCKETS[-1] * 1000
    return f">{last:.0f}ms" if value >= last else f"{value:.0f}ms"
