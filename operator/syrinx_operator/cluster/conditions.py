"""The conditions of a pipeline's status. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from syrinx_operator.cluster import diagnosis, names
from syrinx_operator.cluster.diagnosis import Diagnosis, parse_time
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.state import STAGES, Component, Metrics, Observed, Owner, Problem
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.status import MAX_MESSAGE, Condition, ConditionStatus, ConditionType, PipelineStatus
from syrinx_operator.resource.tuning_status import Phase, State

_ACTIVE_PHASES: frozenset[Phase] = frozenset({"Watching", "Trial", "Promoting", "Soaking"})
_SOURCES = {"gateways": "the gateways", "prometheus": "Prometheus"}


class StatusInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a status."""

    pipeline: TTSPipeline
    owner: Owner
    before: PipelineStatus
    plan: Plan
    observed: Observed
    problems: Sequence[Problem]
    """What kept the plan from being applied."""
    metrics: Metrics
    tuning: State
    """The state after the tuner's decision."""
    now: datetime

    @property
    def previous(self) -> dict[ConditionType, Condition]:
        """Conditions of the previous status, by type."""
        return {condition.type: condition for condition in self.before.conditions}


class ConditionValue(NamedTuple):
    """A condition without its times."""

    status: ConditionStatus
    reason: str
    message: str


def conditions(inputs: StatusInputs) -> tuple[Condition, ...]:
    """Returns all conditions: Ready ← GatewayReady, TalkerReady, CodecReady, ConnectorReady; and independent ones.

    Ready: a gateway, a talker and a codec of one model generation are ready, of the current generation or, during a
    rollout, of the previous one. Progressing: the actual state differs from the desired one. Degraded: a problem needs
    intervention. MetricsAvailable and TuningReady are omitted with tuning Off.
    """
    serving = serving_generation(inputs)
    components: dict[ConditionType, ConditionValue] = {
        "GatewayReady": _stage(inputs, Component.GATEWAY, serving),
        "TalkerReady": _stage(inputs, Component.TALKER, serving),
        "CodecReady": _stage(inputs, Component.CODEC, serving),
        "ConnectorReady": _connector(inputs),
    }
    found: dict[ConditionType, ConditionValue] = {"Ready": _ready(inputs, components, serving), **components}
    if inputs.pipeline.spec.tuning.mode != "Off":
        found["MetricsAvailable"] = _metrics_available(inputs.metrics)
        found["TuningReady"] = _tuning_ready(inputs)
    found["Progressing"] = _progressing(inputs)
    found["Degraded"] = _degraded(inputs)
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


def incomplete(plan: Plan, observed: Observed, component: Component) -> Problem | None:
    """Returns how a component differs from the plan; None if it does not."""
    live, desired = observed.live(component), plan.replicas[component]
    updated = [pod for pod in live if pod.template == plan.templates[component]]
    if len(updated) < len(live):
        return Problem("RollingOut", f"{component}: {len(updated)} of {desired} replicas are updated")
    if len(live) != desired:
        return Problem("Scaling", f"{component}: {len(live)} of {desired} pods")
    if unready := [pod.name for pod in updated if not pod.ready]:
        return Problem("Starting", f"{component}: {', '.join(unready)} not ready")
    if component is Component.REDIS:
        return None
    generation = plan.settings[component].generation
    if unconfirmed := [pod.name for pod in updated if not pod.has_confirmed(generation)]:
        message = f"{component}: {', '.join(unconfirmed)} has not confirmed settings generation {generation}"
        return Problem("ConfirmingSettings", message)
    return None


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


def _stage(inputs: StatusInputs, stage: Component, serving: str) -> ConditionValue:
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
    if found := _diagnoses(inputs, component):
        return ConditionValue("False", found[0].reason, found[0].message)
    if any(pod.ready for pod in live):
        message = f"{component}: no replica of model generation {inputs.plan.generation} is ready yet"
        return ConditionValue("False", "RollingOut", message)
    if not live:
        return ConditionValue("False", "Starting", f"{component}: no pod exists yet")
    hint = " (a gateway becomes ready once a talker and a codec are)" if component is Component.GATEWAY else ""
    return ConditionValue("False", "Starting", f"{', '.join(pod.name for pod in live)}: starting{hint}")


def _connector(inputs: StatusInputs) -> ConditionValue:
    """An external Redis is inferred from talkers and codecs, which are ready only once they read from it."""
    url = inputs.pipeline.spec.connector.url
    if url is None:
        ready = [pod.name for pod in inputs.observed.live(Component.REDIS) if pod.ready]
        return ConditionValue("True", "Serving", f"{ready[0]} is ready") if ready else _unready(inputs, Component.REDIS)
    if any(pod.ready for stage in (Component.TALKER, Component.CODEC) for pod in inputs.observed.live(stage)):
        return ConditionValue("True", "Reachable", f"the stages are connected to {url}")
    message = f"no talker or codec is ready; their logs show whether they can connect to {url}"
    return ConditionValue("Unknown", "NotVerified", message)


def _metrics_available(metrics: Metrics) -> ConditionValue:
    if problem := metrics.evidence.problem:
        return ConditionValue("False", f"Metrics{metrics.reason}", problem)
    return ConditionValue("True", "MetricsFound", f"read from {_SOURCES.get(metrics.source, metrics.source)}")


def _tuning_ready(inputs: StatusInputs) -> ConditionValue:
    """Returns whether tuning is active; the reason is the tuner's phase."""
    phase, message = inputs.tuning.phase, inputs.tuning.message
    if phase == "NoData" and not inputs.pipeline.spec.slo.ttfa:
        return ConditionValue("False", "NoObjective", message)
    return ConditionValue("True" if phase in _ACTIVE_PHASES else "False", phase, message)


def _progressing(inputs: StatusInputs) -> ConditionValue:
    """Returns how the state differs from the plan: unapplied changes first, then rollouts, counts and settings."""
    pending = [Problem("NotApplied", problem.message) for problem in inputs.problems]
    found = (incomplete(inputs.plan, inputs.observed, component) for component in inputs.plan.templates)
    pending += (each for each in found if each is not None)
    if not pending:
        return ConditionValue("False", "Complete", "all components match the spec")
    order = ("NotApplied", "RollingOut", "Scaling", "Starting", "ConfirmingSettings")
    return _joined(sorted(pending, key=lambda each: order.index(each.reason)))


def _degraded(inputs: StatusInputs) -> ConditionValue:
    found = [*inputs.problems]
    for component in (Component.REDIS, Component.TALKER, Component.CODEC, Component.GATEWAY):
        found += _blocking(inputs, component) or _missing(inputs, component)
    monitor = inputs.pipeline.spec.monitoring.pod_monitor
    if monitor is not None and "PodMonitor" not in inputs.observed.served_kinds:
        advice = "install the Prometheus Operator or remove the field"
        message = f"spec.monitoring.podMonitor: this cluster has no kind PodMonitor; {advice}"
        found.append(Problem("KindNotServed", message))
    # Stages in one pod share its problem.
    found = list(dict.fromkeys(found))
    return _joined(found) if found else ConditionValue("False", "AsExpected", "no problem needs intervention")


def _joined(problems: Sequence[Problem]) -> ConditionValue:
    return ConditionValue("True", problems[0].reason, "; ".join(problem.message for problem in problems))


def _blocking(inputs: StatusInputs, component: Component) -> list[Problem]:
    found = [Problem(each.reason, each.message) for each in _diagnoses(inputs, component) if each.needs_intervention]
    difference = incomplete(inputs.plan, inputs.observed, component) if found else None
    if difference is not None and difference.reason == "RollingOut":
        advice = f"the rollout of {component} is blocked until this is fixed or the spec edited"
        found[-1] = Problem(found[-1].reason, f"{found[-1].message}; {advice}")
    return found


def _missing(inputs: StatusInputs, component: Component) -> list[Problem]:
    """Returns the problem of a workload whose pods the cluster does not create."""
    workload = inputs.observed.objects.get(names.workload_key(inputs.pipeline.name, component))
    since = _true_since(inputs, "Progressing")
    message = workload and since and diagnosis.missing_pods(workload, since, inputs.now)
    return [Problem("PodsMissing", message)] if message else []


def _diagnoses(inputs: StatusInputs, component: Component) -> list[Diagnosis]:
    """Returns the diagnoses of a component's replicas; those that need intervention come first."""
    if component not in inputs.plan.templates:
        return []
    since = None
    if component is Component.GATEWAY:
        # Gateways wait until talker and codec are both ready.
        ready_since = [_true_since(inputs, kind) or inputs.now for kind in ("TalkerReady", "CodecReady")]
        since = max(ready_since)
    limit = diagnosis.startup_limit(inputs.pipeline.spec, component)
    loops = [before.message for before in inputs.previous.values() if before.reason == diagnosis.CRASH_LOOP]
    found = [
        diagnosis.diagnose(
            pod, limit, inputs.now, crash_looping=any(pod.name in message for message in loops), since=since
        )
        for pod in inputs.observed.live(component)
    ]
    return sorted((each for each in found if each is not None), key=lambda each: not each.needs_intervention)


def _true_since(inputs: StatusInputs, kind: ConditionType) -> datetime | None:
    """Returns since when a condition of the previous status is true; None if it is not."""
    before = inputs.previous.get(kind)
    return parse_time(before.last_transition_time) if before is not None and before.status == "True" else None
