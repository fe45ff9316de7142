"""The status of a TTSPipeline as made of what was seen in one tick; its events are `transitions`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.conditions import Conclusion, Problem, Seen, conditions, dated, has_confirmed
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.settings import recorded_settings
from syrinx_operator.cluster.state import Component, Measured, Observed, Owner, Replica
from syrinx_operator.cluster.transitions import Transition, transitions
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

__all__ = ["PipelineStatus", "Problem", "Transition", "failed", "invalid", "read", "status", "transitions"]


def status(
    pipeline: TTSPipeline,
    owner: Owner,
    observed: Observed,
    plan: Plan,
    measured: Measured | None,
    tuning: State,
    previous: Mapping[str, Any] | None,
    problems: Sequence[Problem],
    now: datetime,
) -> dict[str, Any]:
    """The status as JSON, of what was seen in this tick. Equal inputs give an equal status, whenever that is.

    It is to replace the `previous` one whole. `problems` are what kept the plan from being applied: with one, top-level
    `observedGeneration` stays behind, so that nobody who waits for an edit takes the state before it for its result.
    `measured` is None as long as nobody looked; `tuning` is what was decided of it. `now` has a time zone.
    """
    before = read(previous)
    seen = Seen(
        pipeline=pipeline,
        observed=observed,
        plan=plan,
        measured=measured,
        tuning=tuning,
        problems=problems,
        previous={condition.type: condition for condition in before.conditions},
        now=now,
    )
    spec = pipeline.spec
    known = None if measured is None or measured.problem or spec.tuning.mode == "Off" else measured
    slowest = (
        max((o.ttfa_p95_ms for o in known.task_types if o.ttfa_p95_ms is not None), default=None) if known else None
    )
    report = PipelineStatus(
        observed_generation=before.observed_generation if problems else owner.generation,
        endpoint=f"http://{names.workload(owner.name, Component.GATEWAY)}.{owner.namespace}.svc:{spec.gateway.port}",
        model=pipeline.model_name,
        model_generation=plan.generation,
        image=spec.image or plan.release.image,
        conditions=conditions(seen, owner.generation),
        gateway=_gateway(owner, observed, plan, before.gateway),
        talker=_talker(owner, observed, plan, before.talker),
        codec=_codec(owner, observed, plan, before.codec),
        redis=_redis(observed.of(Component.REDIS)) if Component.REDIS in plan.templates else None,
        tuning=tuning,
        slo=() if spec.tuning.mode == "Off" else _objectives(spec.slo.ttfa, known),
        underrun_ratio=_share(known.underruns, known.live_streams) if known else None,
        ttfa_p95=None if slowest is None else _milliseconds(slowest),
    )
    return _json(report)


def invalid(previous: Mapping[str, Any] | None, owner: Owner, messages: Sequence[str], now: datetime) -> dict[str, Any]:
    """The status of a resource that breaks the rules: as `failed`, with what to correct."""
    words = f"what runs stays as it was until this is corrected: {'; '.join(messages)}"
    return failed(previous, owner, [Problem("Invalid", words)], now)


def failed(
    previous: Mapping[str, Any] | None, owner: Owner, problems: Sequence[Problem], now: datetime
) -> dict[str, Any]:
    """The status when nothing could be planned: what was said last, and Degraded with what helps (one or more).

    The other conditions stay, each with the generation that it was concluded for.
    """
    before = read(previous)
    kept: dict[str, Condition] = {condition.type: condition for condition in before.conditions}
    reason, words = problems[0].reason, "; ".join(problem.message for problem in problems)
    if "Ready" not in kept:
        kept["Ready"] = dated({}, "Ready", Conclusion("False", reason, words), owner.generation, now)
    kept["Degraded"] = dated(kept, "Degraded", Conclusion("True", reason, words), owner.generation, now)
    return _json(msgspec.structs.replace(before, conditions=tuple(kept.values())))


def _json(report: PipelineStatus) -> dict[str, Any]:
    # As it comes back from the API server, so that the two can be compared: lists, never tuples.
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
    """What is said of every stage, as keyword arguments."""
    live = [pod for pod in observed.of(stage) if not pod.terminating]
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
    """Of the settings in the ConfigMap: what could not be written counts for nothing, or every look would count on."""
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


def _redis(pods: Sequence[Replica]) -> RedisStatus:
    live = [pod for pod in pods if not pod.terminating]
    return RedisStatus(ready=any(pod.ready for pod in live), restarts=sum(pod.restarts for pod in live) or None)


def _objectives(wanted: Sequence[TtfaObjective], known: Measured | None) -> tuple[SloStatus, ...]:
    targets = {objective.task_type: objective.target for objective in wanted}
    found = {objective.task_type: objective for objective in known.task_types} if known else {}
    reports = []
    for task_type in FAMILY.task_types:
        seen, target = found.get(task_type), targets.get(task_type)
        if seen is None:
            if target is not None:
                reports.append(SloStatus(task_type=task_type, requests=0 if known else None, met="Unknown"))
            continue
        within = None if seen.within is None else _share(seen.within, seen.requests)
        met: ConditionStatus = "Unknown"
        if seen.within is not None and seen.requests and target is not None:
            met = "True" if seen.within / seen.requests >= target else "False"
        p95 = None if seen.ttfa_p95_ms is None else round(seen.ttfa_p95_ms)
        reports.append(SloStatus(task_type=task_type, requests=seen.requests, within=within, ttfa_p95_ms=p95, met=met))
    return tuple(reports)


def _share(part: int, whole: int) -> float | None:
    """A ratio, cut to four digits: one that misses its target never looks as if it met it. None of nothing."""
    return min(1.0, part * 10_000 // whole / 10_000) if whole else None


def _milliseconds(value: float) -> str:
    last = TTFA_BUCKETS[-1] * 1000
    return f">{last:.0f}ms" if value >= last else f"{value:.0f}ms"
