"""What is concluded about a pipeline: the tree of its conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.diagnosis import CRASH_LOOP, Trouble, moment, time_to_start, trouble
from syrinx_operator.cluster.missing import missing
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.state import STAGES, Component, Measured, Observed, Replica
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.status import MAX_MESSAGE, Condition, ConditionStatus, ConditionType
from syrinx_operator.resource.tuning_status import Phase, State

_AT_WORK: frozenset[Phase] = frozenset({"Watching", "Trial", "Promoting", "Soaking"})
_SOURCES = {"gateways": "the gateways", "prometheus": "Prometheus"}


class Problem(Struct, frozen=True):
    """Something that kept the operator from carrying out the plan."""

    reason: str
    """In one CamelCase word, as ApplyFailed."""
    message: str
    """What happened to which object, and what helps."""


class Seen(Struct, frozen=True, kw_only=True):
    """What conclusions are drawn from."""

    pipeline: TTSPipeline
    observed: Observed
    plan: Plan
    measured: Measured | None
    tuning: State
    problems: Sequence[Problem]
    previous: Mapping[str, Condition]
    """The conditions of the last status, by type."""
    now: datetime


class Conclusion(NamedTuple):
    """A condition before it is dated."""

    status: ConditionStatus
    reason: str
    message: str


def conditions(seen: Seen, generation: int) -> tuple[Condition, ...]:
    """The tree: Ready ← GatewayReady, TalkerReady, CodecReady, ConnectorReady; and what stands for itself.

    Ready: the service answers, as there is a model generation of which a gateway, a talker and a codec are ready: the
    one that is wanted, or while that one is not complete, the one before it. Progressing: something is not as wanted
    yet. Degraded: something is wrong that waiting will not mend. MetricsAvailable and TuningReady (tuning does its
    work) are left out with tuning Off. `generation` is that of the resource that all this is about.
    """
    serving = serving_generation(seen)
    parts: dict[ConditionType, Conclusion] = {
        "GatewayReady": _stage(seen, Component.GATEWAY, serving),
        "TalkerReady": _stage(seen, Component.TALKER, serving),
        "CodecReady": _stage(seen, Component.CODEC, serving),
        "ConnectorReady": _connector(seen),
    }
    found: dict[ConditionType, Conclusion] = {"Ready": _ready(seen, parts, serving), **parts}
    if seen.pipeline.spec.tuning.mode != "Off":
        found["MetricsAvailable"] = _metrics(seen.measured)
        found["TuningReady"] = _tuning(seen)
    found["Progressing"] = _progressing(seen)
    found["Degraded"] = _degraded(seen)
    return tuple(dated(seen.previous, kind, conclusion, generation, seen.now) for kind, conclusion in found.items())


def dated(
    previous: Mapping[str, Condition], kind: ConditionType, conclusion: Conclusion, generation: int, now: datetime
) -> Condition:
    """A conclusion as a condition; its time moves only when its status does."""
    before = previous.get(kind)
    same = before is not None and before.status == conclusion.status
    changed = before.last_transition_time if before and same else now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Condition(
        type=kind,
        status=conclusion.status,
        reason=conclusion.reason,
        message=conclusion.message[:MAX_MESSAGE],
        last_transition_time=changed,
        observed_generation=generation,
    )


def serving_generation(seen: Seen) -> str:
    """The model generation that is complete, rather the wanted one; the wanted one if none is."""
    ready = [{p.model_generation for p in _live(seen, stage) if p.ready} for stage in STAGES]
    complete = set.intersection(*ready)
    wanted = seen.plan.generation
    return wanted if wanted in complete or not complete else min(complete)


def _live(seen: Seen, component: Component) -> list[Replica]:
    return live_pods(seen.observed, component)


def live_pods(observed: Observed, component: Component) -> list[Replica]:
    """The pods of a component, those that end left out."""
    return [pod for pod in observed.of(component) if not pod.terminating]


def _ready(seen: Seen, parts: Mapping[ConditionType, Conclusion], serving: str) -> Conclusion:
    """Named after the part that holds up the others: Redis before talker and codec, those before the gateway."""
    causes: tuple[ConditionType, ...] = ("ConnectorReady", "TalkerReady", "CodecReady", "GatewayReady")
    missing = [(kind, parts[kind]) for kind in causes if parts[kind].status != "True"]
    if not missing:
        current = serving == seen.plan.generation
        by = (
            f"as model {seen.pipeline.model_name}"
            if current
            else f"by model generation {serving} until the next is ready"
        )
        return Conclusion("True", "Serving", f"speech is served {by}")
    # Whether a Redis of the user's answers follows from the stages: they are to be blamed first.
    first = min((part for _, part in missing), key=lambda part: part.status == "Unknown")
    return Conclusion("False", first.reason, "; ".join(f"{kind}: {part.message}" for kind, part in missing))


def _stage(seen: Seen, stage: Component, serving: str) -> Conclusion:
    wanted = seen.plan.replicas[stage]
    live = _live(seen, stage)
    ready = [pod for pod in live if pod.ready and pod.model_generation == serving]
    if ready:
        other = "" if serving == seen.plan.generation else f" (model generation {serving}; the next one is on its way)"
        return Conclusion("True", "Serving", f"{len(ready)} of {wanted} replicas are ready{other}")
    if not wanted:
        return Conclusion("False", "ScaledToZero", f"{stage}: an autoscaler wants no replicas")
    return _waiting(seen, stage, live)


def _waiting(seen: Seen, component: Component, live: Sequence[Replica]) -> Conclusion:
    """Why none of a component's replicas serves."""
    if found := _troubles(seen, component):
        return Conclusion("False", found[0].reason, found[0].message)
    if any(pod.ready for pod in live):
        return Conclusion(
            "False", "RollingOut", f"{component}: no replica of model generation {seen.plan.generation} is ready yet"
        )
    if not live:
        return Conclusion("False", "Starting", f"{component}: there is no pod yet")
    waits = " (a gateway becomes ready once a talker and a codec are)" if component is Component.GATEWAY else ""
    return Conclusion("False", "Starting", f"{', '.join(pod.name for pod in live)}: starting{waits}")


def _connector(seen: Seen) -> Conclusion:
    """Of a Redis of the user's, only what the stages say is known: a talker or codec is ready once it reads from it."""
    url = seen.pipeline.spec.connector.url
    if url is None:
        live = _live(seen, Component.REDIS)
        if ready := [pod for pod in live if pod.ready]:
            return Conclusion("True", "Serving", f"{ready[0].name} answers")
        return _waiting(seen, Component.REDIS, live)
    if any(pod.ready for stage in (Component.TALKER, Component.CODEC) for pod in _live(seen, stage)):
        return Conclusion("True", "Reached", f"the stages reach {url}")
    return Conclusion("Unknown", "NotKnown", f"no talker or codec is ready; their logs say if {url} refuses them")


def _metrics(measured: Measured | None) -> Conclusion:
    if measured is None:
        return Conclusion("Unknown", "NotMeasured", "not looked at yet")
    if measured.problem:
        return Conclusion("False", f"Metrics{measured.reason}", measured.problem)
    return Conclusion("True", "MetricsFound", f"read from {_SOURCES.get(measured.source, measured.source)}")


def _tuning(seen: Seen) -> Conclusion:
    """Whether tuning does its work; the reason is its phase."""
    phase, message = seen.tuning.phase, seen.tuning.message
    if phase == "NoData" and not seen.pipeline.spec.slo.ttfa:
        return Conclusion("False", "NoObjective", message)
    return Conclusion("True" if phase in _AT_WORK else "False", phase, message)


def _progressing(seen: Seen) -> Conclusion:
    """What is not as wanted yet; first the plan itself, then roll-outs, counts, starts and settings."""
    missing = [("NotApplied", problem.message) for problem in seen.problems]
    for component in seen.plan.templates:
        missing += incomplete(seen.plan, seen.observed, component)
    if not missing:
        return Conclusion("False", "Complete", "everything is as wanted")
    order = ("NotApplied", "RollingOut", "Scaling", "Starting", "ConfirmingSettings")
    missing.sort(key=lambda part: order.index(part[0]))
    return Conclusion("True", missing[0][0], "; ".join(words for _, words in missing))


def incomplete(plan: Plan, observed: Observed, component: Component) -> list[tuple[str, str]]:
    """What of a component is not as wanted yet, by reason and in words; empty if nothing is."""
    live, wanted = live_pods(observed, component), plan.replicas[component]
    new = [pod for pod in live if pod.template == plan.templates[component]]
    if len(new) < len(live):
        return [("RollingOut", f"{component}: {len(new)} of {wanted} replicas have the new template")]
    if len(live) != wanted:
        return [("Scaling", f"{component}: {len(live)} of {wanted} pods")]
    if waiting := [pod.name for pod in new if not pod.ready]:
        return [("Starting", f"{component}: {', '.join(waiting)} not ready")]
    if component is Component.REDIS:
        return []
    generation = plan.settings[component].generation
    if silent := [pod.name for pod in new if not has_confirmed(pod, generation)]:
        return [("ConfirmingSettings", f"{component}: {', '.join(silent)} without settings {generation}")]
    return []


def has_confirmed(pod: Replica, generation: int) -> bool:
    """Whether a replica has said that settings of this generation, or newer ones, are in force."""
    return pod.reported is not None and pod.reported.generation >= generation


def _degraded(seen: Seen) -> Conclusion:
    wrong = [(problem.reason, problem.message) for problem in seen.problems]
    for component in (Component.REDIS, Component.TALKER, Component.CODEC, Component.GATEWAY):
        wrong += _lasting(seen, component) or _missing(seen, component)
    if seen.pipeline.spec.monitoring.pod_monitor is not None and "PodMonitor" not in seen.observed.served_kinds:
        advice = "install the Prometheus operator, or leave the field out"
        wrong.append(("KindNotServed", f"spec.monitoring.podMonitor: this cluster has no PodMonitor; {advice}"))
    # What is wrong with a pod is said once, however many stages are in it.
    wrong = list(dict.fromkeys(wrong))
    if not wrong:
        return Conclusion("False", "AsExpected", "nothing is wrong that waiting will not mend")
    return Conclusion("True", wrong[0][0], "; ".join(words for _, words in wrong))


def _lasting(seen: Seen, component: Component) -> list[tuple[str, str]]:
    found = [(one.reason, one.message) for one in _troubles(seen, component) if one.lasting]
    if found and any(reason == "RollingOut" for reason, _ in incomplete(seen.plan, seen.observed, component)):
        reason, words = found[-1]
        found[-1] = (reason, f"{words}; the roll-out of {component} goes no further until this is mended or edited")
    return found


def _missing(seen: Seen, component: Component) -> list[tuple[str, str]]:
    """Pods that nobody makes."""
    workload = seen.observed.objects.get(names.workload_key(seen.pipeline.name, component))
    progressing = seen.previous.get("Progressing")
    if workload is None or progressing is None or progressing.status != "True":
        return []
    words = missing(workload, moment(progressing.last_transition_time), seen.now)
    return [("PodsMissing", words)] if words else []


def _troubles(seen: Seen, component: Component) -> list[Trouble]:
    """What is wrong with a component's replicas, the lasting first."""
    if component not in seen.plan.templates:
        return []
    since = _stages_ready_since(seen) if component is Component.GATEWAY else None
    limit = time_to_start(seen.pipeline.spec, component)
    loops = [before.message for before in seen.previous.values() if before.reason == CRASH_LOOP]
    found = [
        trouble(pod, limit, seen.now, looped=any(pod.name in words for words in loops), since=since)
        for pod in _live(seen, component)
    ]
    return sorted((one for one in found if one is not None), key=lambda one: not one.lasting)


def _stages_ready_since(seen: Seen) -> datetime:
    """Since when the gateways have had what they wait for; now, if they have not."""
    waits = [seen.previous.get(kind) for kind in ("TalkerReady", "CodecReady")]
    since = [moment(before.last_transition_time) for before in waits if before and before.status == "True"]
    return max((at or seen.now for at in since), default=seen.now) if len(since) == len(waits) else seen.now
