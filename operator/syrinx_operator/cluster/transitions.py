"""What of a new status is news: the events that are told once, when it happens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from syrinx_operator.cluster.state import STAGES
from syrinx_operator.resource.status import Condition, PipelineStatus, StageStatus, read

MAX_MESSAGE = 1000
"""Characters of an event's message; Kubernetes takes 1,024."""

_NO_TROUBLE = frozenset({"Starting", "RollingOut", "ScaledToZero", "NotKnown", "Invalid"})
"""Reasons of a part that is not ready which are no news by themselves: only that it was ready before is."""

_NO_METRICS_YET = "MetricsMissing"
"""Why there are no metrics before there is a gateway: news only if there were some."""


class Transition(Struct, frozen=True):
    """One event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def transitions(previous: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[Transition]:
    """The events between two statuses. A message, a count or a time that changes is none."""
    before, after = read(previous), read(new)
    known = {condition.type: condition for condition in before.conditions}
    found = list(_edits(before, after))
    for condition in after.conditions:
        old = known.get(condition.type)
        if old is None or (old.status, old.reason) != (condition.status, condition.reason):
            found += _turn(old, condition)
    found += _confirmations(before, after)
    # A replica's trouble is that of its stage and of the whole: it is told once.
    return list({(event.type, event.reason): event for event in reversed(found)}.values())[::-1]


def _edits(before: PipelineStatus, after: PipelineStatus) -> Iterator[Transition]:
    if before.image and after.image and before.image != after.image:
        yield Transition("Normal", "ImageChanged", f"from {before.image} to {after.image}"[:MAX_MESSAGE])
    if before.model_generation and after.model_generation and before.model_generation != after.model_generation:
        words = f"{before.model_generation} to {after.model_generation}, which serves {after.model}"
        yield Transition("Normal", "ModelChanged", f"model generation from {words}"[:MAX_MESSAGE])


def _turn(old: Condition | None, new: Condition) -> Iterator[Transition]:
    turned = old is None or old.status != new.status
    match new.type:
        case "Ready":
            if turned and new.status == "True":
                yield _event("Normal", "Ready", new)
            elif old is not None and old.status == "True":
                yield _event("Warning", "NotReady", new)
        case "Progressing":
            yield from _progress(old, new)
        case "Degraded":
            if new.status == "True":
                yield _event("Warning", new.reason, new)
            elif old is not None and turned:
                yield _event("Normal", "Recovered", new)
        case "MetricsAvailable":
            if new.status == "True":
                yield _event("Normal", new.reason, new)
            elif new.status == "False" and (
                new.reason != _NO_METRICS_YET or (old is not None and old.status == "True")
            ):
                yield _event("Warning", new.reason, new)
        case "TuningReady":
            # What tuning decides is told by its own events, and that there is nothing to judge by above.
            pass
        case _:
            yield from _part(old, new)


def _part(old: Condition | None, new: Condition) -> Iterator[Transition]:
    was_ready = old is not None and old.status == "True"
    if new.status == "True":
        if not was_ready:
            yield _event("Normal", new.type, new)
    elif new.reason not in _NO_TROUBLE:
        yield _event("Warning", new.reason, new)
    elif was_ready:
        yield _event("Warning", f"{new.type.removesuffix('Ready')}NotReady", new)


def _progress(old: Condition | None, new: Condition) -> Iterator[Transition]:
    if new.status == "False":
        if old is not None and old.status == "True":
            yield _event("Normal", "Complete", new)
    elif new.reason == "RollingOut" and (old is None or old.reason != "NotApplied"):
        yield _event("Normal", "RollOutStarted", new)
    elif new.reason == "Scaling" and old is not None and old.status == "False":
        yield _event("Normal", "Scaling", new)


def _confirmations(before: PipelineStatus, after: PipelineStatus) -> Iterator[Transition]:
    for stage in STAGES:
        old: StageStatus | None = getattr(before, stage)
        new: StageStatus | None = getattr(after, stage)
        generation = new.confirmed_generation if new else None
        if new and generation and generation > ((old.confirmed_generation if old else None) or 0):
            words = f"{stage}: settings {generation} are in force on every replica ({new.replicas})"
            yield Transition("Normal", f"{stage.capitalize()}SettingsConfirmed", words)


def _event(kind: Literal["Normal", "Warning"], reason: str, condition: Condition) -> Transition:
    return Transition(kind, reason, condition.message[:MAX_MESSAGE])
