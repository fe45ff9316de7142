"""What keeps a pipeline from being as specified, and whether it needs intervention. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import HTTP_ROUTE, POD_MONITOR, SCALED_OBJECT, Kind
from syrinx_operator.cluster.objects.state import REDIS, STAGES, Component, Metrics, Observed, Owner, Problem
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.workload.download import RETRY_SECONDS
from syrinx_operator.cluster.report import diagnosis
from syrinx_operator.cluster.report.diagnosis import parse_time
from syrinx_operator.cluster.report.progress import STALLED, incomplete, is_stalled
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_operator.resource.state.status import Condition, PipelineStatus
from syrinx_operator.resource.state.tuning_status import State
from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, TalkerSettings
from syrinx_stages.contract.stages import Stage

_DEFAULTS: Mapping[Stage, Mapping[str, Any]] = {
    stage: msgspec.json.decode(msgspec.json.encode(defaults))
    for stage, defaults in (
        (Stage.GATEWAY, GatewaySettings()),
        (Stage.TALKER, TalkerSettings()),
        (Stage.CODEC, CodecSettings()),
    )
}
"""The live settings that a stage has by default, as JSON."""


class StatusInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a status."""

    pipeline: ResolvedPipeline
    owner: Owner
    before: PipelineStatus
    plan: Plan
    observed: Observed
    problems: Sequence[Problem]
    """What kept the plan from being applied."""
    metrics: Metrics
    tuning: State
    """The state after the tuner's decision."""
    unknown_fields: str = ""
    """Fields of the resource that this operator does not know, as text."""
    canary: CanaryStatus | None = None
    """The canary after the decision about it; None without one."""
    now: datetime

    @property
    def previous(self) -> dict[str, Condition]:
        """Conditions of the previous status, by type."""
        return {condition.type: condition for condition in self.before.conditions}


def stalled(inputs: StatusInputs, component: Component) -> Problem | None:
    """Returns the problem of a component that has made no progress for too long."""
    difference = incomplete(inputs.plan, inputs.observed, component)
    before = inputs.previous.get("Progressing")
    if difference is None or before is None or before.reason == "Complete":
        return None
    deadline = timedelta(seconds=inputs.pipeline.progress_deadline)
    since = _true_since(inputs, "Progressing")
    if component is Stage.GATEWAY:
        since = max(since or datetime.min.replace(tzinfo=UTC), _gateways_since(inputs))
    if not is_stalled(inputs.observed, component, since, deadline, inputs.now):
        return None
    obstacles = [problem.message for problem, _ in diagnoses(inputs, component)]
    message = f"no progress for {deadline.total_seconds() / 60:g} minutes: {difference.message}"
    return Problem(STALLED, "; ".join([message, *obstacles]))


def blocking(inputs: StatusInputs, component: Component) -> list[Problem]:
    """Returns the problems of a component's replicas that need intervention."""
    found = [problem for problem, needs_intervention in diagnoses(inputs, component) if needs_intervention]
    difference = incomplete(inputs.plan, inputs.observed, component) if found else None
    if difference is not None and difference.reason == "RollingOut":
        advice = f"the rollout of {component} is blocked until this is fixed or the spec edited"
        found[-1] = Problem(found[-1].reason, f"{found[-1].message}; {advice}")
    return found


def missing(inputs: StatusInputs, component: Component) -> list[Problem]:
    """Returns the problems of the workloads whose pods the cluster does not create."""
    labels = names.redis_cells(inputs.pipeline) if component in REDIS else [component.value]
    keys = (names.workload_key(inputs.pipeline.name, label) for label in labels)
    workloads = [found for key in keys if (found := inputs.observed.objects.get(key)) is not None]
    before = inputs.previous.get("Progressing")
    has_failed = before is not None and before.reason == STALLED
    since = datetime.min.replace(tzinfo=UTC) if has_failed else _true_since(inputs, "Progressing")
    if since is None:
        return []
    messages = (diagnosis.missing_pods(workload, since, inputs.now) for workload in workloads)
    problems = [Problem("PodsMissing", message) for message in messages if message]
    return [_with_surge_advice(problem) for problem in problems] if _is_surging(inputs, component) else problems


def diagnoses(inputs: StatusInputs, component: Component) -> list[tuple[Problem, bool]]:
    """Returns the problems of a component's replicas and whether they need intervention; those that do come first."""
    if component not in inputs.plan.templates:
        return []
    since = _gateways_since(inputs) if component is Stage.GATEWAY else None
    pipeline = inputs.pipeline
    limit = diagnosis.startup_limit(pipeline, component)
    download = timedelta(seconds=pipeline.progress_deadline)
    loops = [before.message for before in inputs.previous.values() if before.reason == diagnosis.CRASH_LOOP]
    found = [
        diagnosis.diagnose(
            pod,
            download if pod.initializing else limit,
            inputs.now,
            crash_looping=any(pod.name in message for message in loops),
            since=since,
        )
        for pod in inputs.observed.replicas_of(component)
    ]
    problems = [each for each in found if each is not None]
    if _is_surging(inputs, component):
        problems = [(_with_surge_advice(problem), is_blocking) for problem, is_blocking in problems]
    return sorted(problems, key=lambda each: not each[1])


def download_progress(inputs: StatusInputs) -> Problem | None:
    """Returns the download that a roll-out waits for, with what hinders it."""
    if (download := inputs.plan.download) is None:
        return None
    message = f"Job {download.name} downloads {download.source}; until then the pods keep the former checkpoint"
    hindrance = inputs.observed.download_problems.get(download.name)
    return Problem("Downloading", f"{message}; its pod: {hindrance}" if hindrance else message)


def failed_download(inputs: StatusInputs) -> list[Problem]:
    """Returns the problem of a download that has failed or cannot start."""
    download = inputs.plan.download
    if download is None:
        return []
    hindrance = inputs.observed.download_problems.get(download.name, "")
    if not download.failure:
        advice = diagnosis.START_ADVICE.get(hindrance.partition(":")[0])
        return [Problem("DownloadFailed", f"Job {download.name}: {hindrance}; {advice}")] if advice else []
    reason = hindrance or download.failure
    advice = (
        f"the pods keep the former checkpoint; correct spec.model or its Secret; it is tried again after "
        f"{RETRY_SECONDS // 60} minutes, or at once after `kubectl delete job {download.name}`"
    )
    return [Problem("DownloadFailed", f"Job {download.name} cannot download {download.source}: {reason}; {advice}")]


def unserved(spec: PipelineSpec, served: frozenset[str]) -> Iterator[Problem]:
    """Yields a problem for each requested kind that the cluster does not serve."""
    requested: list[tuple[str, Kind, str]] = []
    if spec.monitoring.pod_monitor is not None:
        requested.append(("spec.monitoring.podMonitor", POD_MONITOR, "the Prometheus Operator"))
    for stage in STAGES:
        autoscaling = getattr(spec, stage.value).autoscaling
        if autoscaling is not None and autoscaling.by == "Keda":
            requested.append((f"spec.{stage}.autoscaling", SCALED_OBJECT, "KEDA"))
    if spec.gateway.route is not None and spec.gateway.route.http_route is not None:
        requested.append(("spec.gateway.route.httpRoute", HTTP_ROUTE, "the Gateway API"))
    for field, kind, provider in requested:
        if kind.kind not in served:
            advice = f"install {provider} or remove the field"
            yield Problem("KindNotServed", f"{field}: this cluster has no kind {kind.kind}; {advice}")


def unknown_fields(inputs: StatusInputs) -> list[str]:
    """Returns what has no effect because the operator, or the image of a replica, is of an earlier version."""
    found = []
    if inputs.unknown_fields:
        found.append(f"this operator does not know and ignores {inputs.unknown_fields}: upgrade it to use them")
    for stage, desired in inputs.plan.settings.items():
        changed = [name for name, value in desired.settings.items() if value != _DEFAULTS[stage].get(name)]
        for pod in inputs.observed.live(stage):
            if pod.reported and (unknown := [name for name in changed if name not in pod.reported.base]):
                found.append(f"the image of {pod.name} does not know {', '.join(unknown)}: it keeps its own value")
    return found


def _is_surging(inputs: StatusInputs, component: Component) -> bool:
    """Returns whether another pod is to be ready before the last one that serves is replaced."""
    workload = inputs.observed.objects.get(names.workload_key(inputs.pipeline.name, component))
    desired = inputs.plan.replicas[component]
    return (
        inputs.pipeline.spec.update_strategy == "Surge"
        and component in (Stage.TALKER, Stage.CODEC)
        and workload is not None
        and workload["spec"].get("replicas", 1) > desired
        and not any(pod.stuck for pod in inputs.observed.replicas_of(component))
    )


def _with_surge_advice(problem: Problem) -> Problem:
    """Returns a problem with advice if there may be no room for another pod."""
    if problem.reason not in ("Unschedulable", "NotStarted", "PodsMissing"):
        return problem
    advice = (
        "the running pod is kept until a second one is ready; if there is no room for two, set spec.updateStrategy: "
        "Replace, and requests get 503 until the new pod has loaded the model"
    )
    return Problem(problem.reason, f"{problem.message}; {advice}")


def _gateways_since(inputs: StatusInputs) -> datetime:
    """Returns the time from which gateways can be ready: they wait until talker and codec are both ready."""
    return max(_true_since(inputs, kind) or inputs.now for kind in ("TalkerReady", "CodecReady"))


def _true_since(inputs: StatusInputs, kind: str) -> datetime | None:
    """Returns since when a condition of the previous status is true; None if it is not."""
    before = inputs.previous.get(kind)
    return parse_time(before.last_transition_time) if before is not None and before.status == "True" else None
