"""Which Events a change of a pipeline's status causes."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from syrinx_operator.cluster.objects.state import STAGES
from syrinx_operator.cluster.report.progress import STALLED
from syrinx_operator.resource.state.status import Condition, PipelineStatus, StageStatus, read
from syrinx_operator.tuner.builder import Event

_EXPECTED = frozenset({"Starting", "RollingOut", "ScaledToZero", "NotVerified", "Invalid"})
"""Reasons of an unready component that cause no Event, unless the component was ready before."""


def status_events(previous: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[Event]:
    """Returns the Events for a status change. A changed message, count or time alone causes none. Pure."""
    before, after = read(previous), read(new)
    known = {condition.type: condition for condition in before.conditions}
    found = list(_edits(before, after))
    for condition in after.conditions:
        old = known.get(condition.type)
        if old is None or (old.status, old.reason) != (condition.status, condition.reason):
            reasons = _condition_events(old, condition)
            found += (Event(kind=kind, reason=reason, message=condition.message) for kind, reason in reasons)
    found += _confirmations(before, after)
    # A replica's problem appears in several conditions; keep the first Event of each reason.
    return list({(event.kind, event.reason): event for event in reversed(found)}.values())[::-1]


def _edits(before: PipelineStatus, after: PipelineStatus) -> Iterator[Event]:
    if before.image and after.image and before.image != after.image:
        yield Event(reason="ImageChanged", message=f"image changed from {before.image} to {after.image}")
    if before.model_generation and after.model_generation and before.model_generation != after.model_generation:
        change = f"from {before.model_generation} to {after.model_generation} ({after.model})"
        yield Event(reason="ModelChanged", message=f"model generation changed {change}")


def _condition_events(old: Condition | None, new: Condition) -> Iterator[tuple[Literal["Normal", "Warning"], str]]:
    is_new_status = old is None or old.status != new.status
    was_true = old is not None and old.status == "True"
    match new.type:
        case "Ready":
            if is_new_status and new.status == "True":
                yield "Normal", "Ready"
            elif was_true:
                yield "Warning", "NotReady"
        case "Progressing":
            if new.reason == STALLED:
                yield "Warning", STALLED
            elif new.reason == "Complete":
                if old is not None:
                    yield "Normal", "Complete"
            elif new.reason == "RollingOut" and (old is None or old.reason != "NotApplied"):
                yield "Normal", "RolloutStarted"
            elif new.reason == "Scaling" and old is not None and old.status == "False":
                yield "Normal", "Scaling"
        case "Degraded":
            if new.status == "True":
                yield "Warning", new.reason
            elif old is not None and is_new_status:
                yield "Normal", "Recovered"
        case "MetricsAvailable":
            if new.status == "True":
                yield "Normal", new.reason
            elif new.reason != "MetricsMissing" or was_true:  # They are missing until there is a gateway.
                yield "Warning", new.reason
        case "UnknownFields":
            if is_new_status:
                yield "Warning", "UnknownFields"
        case "AutoscalingReady":
            if new.status == "False" and new.reason != "Paused":
                yield "Warning", new.reason
        case "TuningReady":
            # The tuner has Events of its own, and missing metrics are reported above.
            pass
        case _:
            if new.status == "True":
                if not was_true:
                    yield "Normal", new.type
            elif new.reason not in _EXPECTED:
                yield "Warning", new.reason
            elif was_true:
                yield "Warning", f"{new.type.removesuffix('Ready')}NotReady"


def _confirmations(before: PipelineStatus, after: PipelineStatus) -> Iterator[Event]:
    for stage in STAGES:
        old: StageStatus | None = getattr(before, stage)
        new: StageStatus | None = getattr(after, stage)
        generation = new.confirmed_generation if new else None
        if new and generation and generation > ((old.confirmed_generation if old else None) or 0):
            message = f"{stage}: settings generation {generation} is in force on all {new.replicas} replicas"
            yield Event(reason=f"{stage.capitalize()}SettingsConfirmed", message=message)
