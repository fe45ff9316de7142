"""Formats a pipeline's status for `syrinx status`. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from syrinx_operator.resource.state.status import (
    PENDING,
    Condition,
    PipelineStatus,
    RedisStatus,
    SloStatus,
    StageStatus,
    read,
)

_WIDTH = 10
_HEALTHY = {"Ready": "True", "Degraded": "False", "MetricsAvailable": "True", "UnknownFields": "False"} | {
    f"{stage}Ready": "True" for stage in ("Gateway", "Talker", "Codec", "Connector", "Tuning")
}
"""The status of each condition of a pipeline in which nothing is wrong."""


def lines(pipeline: Mapping[str, Any], now: datetime, command: str) -> list[str]:
    """Returns what an admin wants to know first of a TTSPipeline object, one string per line.

    `command` is how the user runs this program.
    """
    metadata = pipeline["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    title = f"{name} in namespace {namespace}"
    status = read(pipeline.get("status"))
    conditions: dict[str, Condition] = {each.type: each for each in status.conditions}
    if not conditions or conditions.get("Ready") == PENDING:
        return [f"{title}: {PENDING.message}"]
    found = [f"{title}: {_readiness(conditions, now)}"]
    if metadata.get("generation", 0) > (status.observed_generation or 0):
        found.append("  the last edit is not applied yet")
    problems = [each for each in status.conditions if each.status != _HEALTHY.get(each.type, each.status)]
    found += [f"  {each.type}: {each.reason}: {each.message}" for each in problems if each.type != "Ready"]
    found += ["", *_facts(status, conditions)]
    if any(each.type not in ("TuningReady", "UnknownFields") for each in problems):
        found += ["", f"next: {command} logs -n {namespace} {name}"]
    return found


def _readiness(conditions: Mapping[str, Condition], now: datetime) -> str:
    ready = conditions.get("Ready")
    if ready is None:
        return "not known to be ready"
    since = _duration(now - datetime.fromisoformat(ready.last_transition_time))
    return f"ready for {since}" if ready.status == "True" else f"not ready for {since}: {ready.message}"


def _facts(status: PipelineStatus, conditions: Mapping[str, Condition]) -> Iterator[str]:
    if status.model is not None:
        yield _fact("model", f"{status.model}, generation {status.model_generation}")
    yield _fact("image", status.image)
    yield _fact("endpoint", status.endpoint)
    for title, stage in (("gateway", status.gateway), ("talker", status.talker), ("codec", status.codec)):
        if stage is not None:
            yield _fact(title, _stage(stage))
    if status.redis is not None:
        yield _fact("redis", _redis(status.redis))
    if (rollout := conditions.get("Progressing")) is not None:
        yield _fact("rollout", f"{rollout.reason}: {rollout.message}")
    if (canary := status.canary) is not None:
        yield _fact("canary", f"{canary.image}: {canary.phase}")
    for each in status.slo:
        yield _fact("latency", _latency(each))
    if status.tuning is not None:
        yield _fact("tuning", f"{status.tuning.phase}: {status.tuning.message}")


def _fact(title: str, text: str | None) -> str:
    return f"{title:<{_WIDTH}}{text or '-'}"


def _redis(redis: RedisStatus) -> str:
    state = "ready" if redis.ready else "not ready"
    return f"{state}, {redis.summary}" if redis.summary else state


def _stage(stage: StageStatus) -> str:
    problems = [f"{each.replica}: {each.problem}" for each in stage.confirmed if each.problem]
    restarts = sum(each.restarts or 0 for each in stage.confirmed)
    counted = [f"{restarts} restarts"] if restarts else []
    updated = stage.replicas - stage.updated_replicas
    return "; ".join([f"{stage.summary} ready", *([f"{updated} to update"] if updated else []), *counted, *problems])


def _latency(slo: SloStatus) -> str:
    if not slo.requests:
        return f"{slo.task_type}: no recent requests"
    p95 = "" if slo.ttfa_p95_ms is None else f", first audio p95 {slo.ttfa_p95_ms} ms"
    within = "" if slo.within is None else f", {slo.within:.1%} within the objective"
    return f"{slo.task_type}: {slo.requests} recent requests{p95}{within}"


def _duration(elapsed: Any) -> str:
    seconds = max(0, round(elapsed.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
