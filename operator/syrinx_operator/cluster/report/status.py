"""The status of a TTSPipeline with its conditions, built from the state observed in one reconcile. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, Component, Metrics, Owner, Problem
from syrinx_operator.cluster.plan.records import recorded_settings
from syrinx_operator.cluster.plan.route import route_problems
from syrinx_operator.cluster.report.obstacles import (
    StatusInputs,
    blocking,
    diagnoses,
    download_progress,
    failed_download,
    missing,
    stalled,
    unknown_fields,
    unserved,
)
from syrinx_operator.cluster.report.progress import incomplete
from syrinx_operator.cluster.report.scaling import autoscaling_ready
from syrinx_operator.observed.evidence import slo_statuses, truncated_ratio
from syrinx_operator.resource.knobs import format_setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state import status as report
from syrinx_operator.resource.state.status import (
    MAX_MESSAGE,
    MAX_OUTCOMES,
    Condition,
    ConditionStatus,
    ConditionType,
    PipelineStatus,
    TrialStatus,
    TuningStatus,
)
from syrinx_operator.resource.state.tuning_status import Phase, State, Trial
from syrinx_operator.tuner.account import account
from syrinx_operator.tuner.replicas import summary
from syrinx_stages.contract.metrics import TTFA_BUCKETS
from syrinx_stages.contract.stages import Stage

_MAX_TTFA_MS = TTFA_BUCKETS[-1] * 1000
_ACTIVE_PHASES: frozenset[Phase] = frozenset({"Watching", "Trial", "Soaking"})
_SOURCES = {"gateways": "the gateways", "prometheus": "Prometheus"}
_PAUSED = "spec.paused is set: objects, settings and tuning stay as they are"


class ConditionValue(NamedTuple):
    """A condition without its times."""

    status: ConditionStatus
    reason: str
    message: str


def status(inputs: StatusInputs) -> dict[str, Any]:
    """Returns the complete status as JSON. Equal inputs give an equal status, whatever the time.

    With problems the top-level `observedGeneration` stays at its previous value, so that clients waiting for an edit do
    not read an older state as its result.
    """
    owner, plan, evidence, spec = inputs.owner, inputs.plan, inputs.metrics.evidence, inputs.pipeline.spec
    has_metrics = spec.tuning.mode != "Off"
    slo = slo_statuses(spec.slo.ttfa, evidence) if has_metrics else ()
    p95 = max((each.ttfa_p95_ms for each in slo if each.ttfa_p95_ms is not None), default=None)
    underruns = sum(each.underruns for each in evidence.streams.values())
    scheme = "https" if spec.gateway.tls else "http"
    host = f"{names.workload(owner.name, Stage.GATEWAY)}.{owner.namespace}.svc"
    redis = None
    if (component := inputs.pipeline.redis) is not None:
        pods, desired = inputs.observed.live(component), plan.replicas[component]
        ready, restarts = sum(pod.ready for pod in pods), sum(pod.restarts for pod in pods)
        redis = report.RedisStatus(
            ready=_serving_cells(inputs, component) > 0, summary=f"{ready}/{desired}", restarts=restarts or None
        )
    found = PipelineStatus(
        observed_generation=inputs.before.observed_generation if inputs.problems or spec.paused else owner.generation,
        endpoint=f"{scheme}://{host}:{spec.gateway.port}",
        model=inputs.pipeline.model_name,
        model_generation=plan.generation,
        image=plan.image,
        conditions=conditions(inputs),
        gateway=report.GatewayStatus(**_stage_report(inputs, Stage.GATEWAY, report.GatewayValues)),
        talker=report.TalkerStatus(**_stage_report(inputs, Stage.TALKER, report.TalkerValues)),
        codec=report.CodecStatus(**_stage_report(inputs, Stage.CODEC, report.CodecValues)),
        redis=redis,
        tuning=_tuning(inputs.tuning, owner),
        canary=inputs.canary,
        slo=slo,
        underrun_ratio=truncated_ratio(underruns, evidence.live_streams) if has_metrics else None,
        ttfa_p95=None if p95 is None else f">{_MAX_TTFA_MS:.0f}ms" if p95 >= _MAX_TTFA_MS else f"{p95}ms",
    )
    return _to_json(found)


def failed(previous: Mapping[str, Any], owner: Owner, problem: Problem, now: datetime) -> dict[str, Any]:
    """Returns the previous status with Degraded set for a problem, if no plan could be made.

    Everything else stays as it was written, also by another version.
    """
    kept: dict[str, Condition] = {condition.type: condition for condition in report.read(previous).conditions}
    if kept.get("Ready", report.PENDING) == report.PENDING:
        not_ready = ConditionValue("False", problem.reason, problem.message)
        kept["Ready"] = to_condition(None, "Ready", not_ready, owner.generation, now)
    degraded = ConditionValue("True", problem.reason, problem.message)
    kept["Degraded"] = to_condition(kept.get("Degraded"), "Degraded", degraded, owner.generation, now)
    return {**previous, **_to_json(PipelineStatus(conditions=tuple(kept.values())))}


def _tuning(state: State, owner: Owner) -> TuningStatus:
    """Returns what users read of the tuner's state."""
    return TuningStatus(
        mode=state.mode,
        phase=state.phase,
        message=account(state)[:MAX_MESSAGE],
        config_map=names.tuning_record(owner.name),
        requested=state.requested,
        chosen=state.chosen,
        last_good=state.chosen if state.soak is None else state.soak.before,
        last_change_time=state.last_change_time,
        next_trial_time=state.next_plan_time,
        forecast=state.forecast,
        recommendation=state.recommendation,
        replicas=None if state.replicas is None else summary(state.replicas)[:256],
        trial_count=state.trial_count,
        trial=None if state.trial is None else _trial(state.trial),
        history=state.history[-MAX_OUTCOMES:],
    )


def _trial(trial: Trial) -> TrialStatus:
    knobs = trial.baseline.differing_knobs(trial.candidate)
    return TrialStatus(
        id=trial.id,
        before=format_setting(trial.baseline, knobs)[:256],
        after=format_setting(trial.candidate, knobs)[:256],
        rationale=trial.why,
        start_time=trial.start_time,
    )


def _to_json(status: PipelineStatus) -> dict[str, Any]:
    # Through JSON, so that it compares equal to what the API server returns (lists, no tuples).
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return plain


def _stage_report(inputs: StatusInputs, stage: Stage, values: type[Struct]) -> dict[str, Any]:
    """Returns a stage's report as keyword arguments; `values` is the type of the settings that it shows."""
    owner, plan, live = inputs.owner, inputs.plan, inputs.observed.live(stage)
    before: report.StageStatus | None = getattr(inputs.before, stage)
    desired, ready = plan.settings[stage], sum(pod.ready for pod in live)
    settings = {name: desired.settings[name] for name in values.__struct_fields__}
    if stage is Stage.CODEC:
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


def conditions(inputs: StatusInputs) -> tuple[Condition, ...]:
    """Returns all conditions: Ready ← GatewayReady, TalkerReady, CodecReady, ConnectorReady; and independent ones.

    Ready: a gateway, a talker and a codec of one model generation are ready, of the current generation or, during a
    rollout, of the previous one. Progressing: the actual state differs from the desired one. Degraded: a problem needs
    intervention. MetricsAvailable and TuningReady are omitted with tuning Off, MetricsAvailable also while the pipeline
    is paused, AutoscalingReady unless Syrinx scales a stage, UnknownFields if there are none.
    """
    serving = serving_generation(inputs)
    components: dict[ConditionType, ConditionValue] = {
        "GatewayReady": _stage(inputs, Stage.GATEWAY, serving),
        "TalkerReady": _stage(inputs, Stage.TALKER, serving),
        "CodecReady": _stage(inputs, Stage.CODEC, serving),
        "ConnectorReady": _connector(inputs),
    }
    found: dict[ConditionType, ConditionValue] = {"Ready": _ready(inputs, components, serving), **components}
    is_paused = inputs.pipeline.spec.paused
    if inputs.pipeline.spec.tuning.mode != "Off":
        if not is_paused:
            found["MetricsAvailable"] = _metrics_available(inputs.metrics)
        found["TuningReady"] = _tuning_ready(inputs)
    if (scaling := autoscaling_ready(inputs)) is not None:
        found["AutoscalingReady"] = ConditionValue(*scaling)
    found["Progressing"] = _progressing(inputs)
    if is_paused:
        paused: tuple[ConditionType, ...] = ("TuningReady", "AutoscalingReady")
        found |= dict.fromkeys(
            (*(kind for kind in paused if kind in found), "Progressing"), ConditionValue("False", "Paused", _PAUSED)
        )
    found["Degraded"] = _degraded(inputs)
    if unknown := unknown_fields(inputs):
        found["UnknownFields"] = ConditionValue("True", "Ignored", "; ".join(unknown))
    previous, generation = inputs.previous, inputs.owner.generation
    return tuple(to_condition(previous.get(kind), kind, value, generation, inputs.now) for kind, value in found.items())


def to_condition(
    before: Condition | None, kind: ConditionType, value: ConditionValue, generation: int, now: datetime
) -> Condition:
    """Returns the condition with its transition time, which changes only with its status."""
    is_same = before is not None and before.status == value.status
    changed = before.last_transition_time if before and is_same else now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Condition(
        type=kind,
        status=value.status,
        reason=value.reason,
        message=value.message[:MAX_MESSAGE],
        last_transition_time=changed,
        observed_generation=generation,
    )


def serving_generation(inputs: StatusInputs) -> str:
    """Returns the desired model generation unless only another one has a ready replica of every stage."""
    ready = [{pod.model_generation for pod in inputs.observed.live(stage) if pod.ready} for stage in STAGES]
    complete = set.intersection(*ready)
    desired = inputs.plan.generation
    return desired if desired in complete or not complete else min(complete)


def _ready(inputs: StatusInputs, components: Mapping[ConditionType, ConditionValue], serving: str) -> ConditionValue:
    """The reason is that of the root cause: Redis before talker and codec, those before the gateway."""
    order: tuple[ConditionType, ...] = ("ConnectorReady", "TalkerReady", "CodecReady", "GatewayReady")
    unready = [(kind, components[kind]) for kind in order if components[kind].status != "True"]
    if not unready:
        if serving == inputs.plan.generation:
            return ConditionValue("True", "Serving", f"serving model {inputs.pipeline.model_name}")
        message = f"serving model generation {serving} until {inputs.plan.generation} is ready"
        return ConditionValue("True", "Serving", message)
    # The state of an external Redis is inferred from the stages, so Unknown is never the root cause.
    cause = min((value for _, value in unready), key=lambda value: value.status == "Unknown")
    return ConditionValue("False", cause.reason, "; ".join(f"{kind}: {value.message}" for kind, value in unready))


def _stage(inputs: StatusInputs, stage: Stage, serving: str) -> ConditionValue:
    desired, generation = inputs.plan.replicas[stage], inputs.plan.generation
    ready = sum(pod.ready and pod.model_generation == serving for pod in inputs.observed.live(stage))
    if ready:
        rollout = "" if serving == generation else f" (model generation {serving}; {generation} is rolling out)"
        return ConditionValue("True", "Serving", f"{ready} of {desired} replicas are ready{rollout}")
    if not desired:
        return ConditionValue("False", "ScaledToZero", f"{stage}: scaled to zero by an autoscaler")
    return _unready(inputs, stage)


def _unready(inputs: StatusInputs, component: Component) -> ConditionValue:
    """Returns why no replica of a component is ready."""
    live = inputs.observed.live(component)
    if found := diagnoses(inputs, component):
        return ConditionValue("False", found[0][0].reason, found[0][0].message)
    if any(pod.ready for pod in live):
        message = f"{component}: no replica of model generation {inputs.plan.generation} is ready yet"
        return ConditionValue("False", "RollingOut", message)
    if not live:
        return ConditionValue("False", "Starting", f"{component}: no pod exists yet")
    if reasons := [f"{pod.name}: {pod.unready}" for pod in live if pod.unready]:
        return ConditionValue("False", "Starting", "; ".join(reasons))
    hint = " (a gateway becomes ready once a talker and a codec are)" if component is Stage.GATEWAY else ""
    return ConditionValue("False", "Starting", f"{', '.join(pod.name for pod in live)}: starting{hint}")


def _connector(inputs: StatusInputs) -> ConditionValue:
    """Returns whether the Redis serves, with what the ready stages warn of: all of it is about their Redis."""
    found = _redis(inputs)
    ready = (pod for stage in STAGES for pod in inputs.observed.live(stage) if pod.ready)
    warnings = dict.fromkeys(warning for pod in ready if pod.reported for warning in pod.reported.warnings)
    return found._replace(message="; warning: ".join([found.message, *warnings]))


def _redis(inputs: StatusInputs) -> ConditionValue:
    """An external Redis is inferred from talkers and codecs, which are ready only once they read from it."""
    url = inputs.pipeline.spec.connector.url
    if (component := inputs.pipeline.redis) is not None:
        ready, desired = sum(pod.ready for pod in inputs.observed.live(component)), inputs.plan.replicas[component]
        cells, needed = inputs.pipeline.spec.connector.cells, _needed(inputs.pipeline.spec.connector.replicas)
        if serving := _serving_cells(inputs, component):
            those = f", {serving} of {cells} cells serve" if cells > 1 else ""
            return ConditionValue("True", "Serving", f"{ready} of {desired} servers are ready{those}")
        if not ready:
            return _unready(inputs, component)
        obstacles = [problem.message for problem, _ in diagnoses(inputs, component)]
        of_cell = " of a cell" if cells > 1 else ""
        message = f"{ready} of {desired} servers are ready, and {needed}{of_cell} are needed to have a primary"
        return ConditionValue("False", "NoQuorum", "; ".join([message, *obstacles]))
    if any(pod.ready for stage in (Stage.TALKER, Stage.CODEC) for pod in inputs.observed.live(stage)):
        return ConditionValue("True", "Reachable", f"the stages are connected to {url}")
    message = f"no talker or codec is ready; their logs show whether they can connect to {url}"
    return ConditionValue("Unknown", "NotVerified", message)


def _serving_cells(inputs: StatusInputs, component: Component) -> int:
    """Returns the number of cells whose managed Redis serves."""
    connector = inputs.pipeline.spec.connector
    ready = Counter(pod.cell for pod in inputs.observed.live(component) if pod.ready)
    return sum(ready[cell] >= _needed(connector.replicas) for cell in range(connector.cells))


def _needed(servers: int) -> int:
    """Returns how many servers of a cell's managed Redis must be ready: the majority."""
    return servers // 2 + 1


def _metrics_available(metrics: Metrics) -> ConditionValue:
    """Returns whether the stages' counters are known."""
    if problem := metrics.evidence.problem:
        return ConditionValue("False", f"Metrics{metrics.reason}", problem)
    return ConditionValue("True", "MetricsFound", f"read from {_SOURCES.get(metrics.source, metrics.source)}")


def _tuning_ready(inputs: StatusInputs) -> ConditionValue:
    """Returns whether tuning is active; the reason is the tuner's phase."""
    phase, message = inputs.tuning.phase, account(inputs.tuning)
    if phase == "NoData" and not inputs.pipeline.spec.slo.ttfa:
        return ConditionValue("False", "NoObjective", message)
    return ConditionValue("True" if phase in _ACTIVE_PHASES else "False", phase, message)


def _progressing(inputs: StatusInputs) -> ConditionValue:
    """Returns how the state differs from the plan: unapplied changes first, then rollouts, counts and settings.

    As in a Deployment, it is False once the progress deadline has passed.
    """
    if too_late := [problem for component in inputs.plan.templates if (problem := stalled(inputs, component))]:
        return _joined(too_late)._replace(status="False")
    pending = [Problem("NotApplied", problem.message) for problem in inputs.problems]
    if (download := download_progress(inputs)) is not None:
        pending.append(download)
    for component in inputs.plan.templates:
        if (difference := incomplete(inputs.plan, inputs.observed, component)) is not None:
            obstacles = [problem.message for problem, _ in diagnoses(inputs, component)]
            pending.append(Problem(difference.reason, "; ".join([difference.message, *obstacles])))
    if inputs.canary is not None and inputs.canary.phase != "RolledBack":
        pending.append(Problem("Canary", f"canary of {inputs.canary.image}: {inputs.canary.message}"))
    if not pending:
        is_held = inputs.canary is not None and inputs.canary.phase == "RolledBack"
        message = (
            "all components are of the version before the failed canary" if is_held else "all components match the spec"
        )
        return ConditionValue("False", "Complete", message)
    order = ("NotApplied", "Downloading", "RollingOut", "Scaling", "Starting", "ConfirmingSettings", "Canary")
    return _joined(sorted(pending, key=lambda each: order.index(each.reason)))


def _degraded(inputs: StatusInputs) -> ConditionValue:
    found = [*inputs.problems, *failed_download(inputs), *canary_problems(inputs)]
    components: list[Component] = [Stage.TALKER, Stage.CODEC, Stage.GATEWAY]
    if (redis := inputs.pipeline.redis) is not None:
        components.insert(0, redis)
    for component in components:
        problems = blocking(inputs, component) or missing(inputs, component)
        if not problems and component in inputs.plan.templates and (too_late := stalled(inputs, component)):
            problems = [too_late]
        found += problems
    found += unserved(inputs.pipeline.spec, inputs.observed.served_kinds)
    found += route_problems(inputs.owner, inputs.observed)
    # Stages in one pod share its problem.
    found = list(dict.fromkeys(found))
    return _joined(found) if found else ConditionValue("False", "AsExpected", "no problem needs intervention")


def canary_problems(inputs: StatusInputs) -> list[Problem]:
    """Returns the problem of a canary that was rolled back: the pipeline is not as its spec says."""
    canary = inputs.canary
    if canary is None or canary.phase != "RolledBack":
        return []
    message = (
        f"canary of {canary.image} rolled back: {canary.message}; the running version was kept; "
        "correct the resource, or set the annotation syrinx.dev/rollout to retry or promote"
    )
    return [Problem(f"Canary{canary.reason}", message)]


def _joined(problems: Sequence[Problem]) -> ConditionValue:
    return ConditionValue("True", problems[0].reason, "; ".join(problem.message for problem in problems))
