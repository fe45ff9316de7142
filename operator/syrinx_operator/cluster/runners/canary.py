"""The course of a canary: (status, observed, now) -> (new status, events). Pure.

Requests are counted in periods. In each one the ratios of good requests of both versions, which serve side by side,
give one difference for the tuner's test by betting (`tuner.betting`), which may be evaluated after every period.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from syrinx_operator.observed.evidence import Evidence
from syrinx_operator.resource.fields.rollout import CanarySpec
from syrinx_operator.resource.state.canary_status import CanaryStatus, Counts
from syrinx_operator.tuner.betting import is_certain, updated
from syrinx_operator.tuner.builder import Event

COMMANDS: Final[Mapping[str, str]] = {
    "promote": "replace the running version now",
    "abort": "roll the canary back",
    "pause": "stay at the current step; a harmful canary is still rolled back",
    "resume": "continue after a pause",
    "retry": "test a version again that was rolled back",
}
"""The values of the annotation `syrinx.dev/rollout`."""

PERIOD_SECONDS: Final = 10.0
"""Minimum length of a period."""
PERIOD_REQUESTS: Final = 5
"""Requests of each version that a period needs."""
PROBLEM_SECONDS: Final = 20.0
"""How long a problem of the pods must last: a registry or a node may recover."""
ROUTE_SECONDS: Final = 120.0
"""How long the gateways may take to forward the canary's share."""
MAX_RESTARTS: Final = 2
"""Restarts of the pods that are tolerated."""
IDLE_SECONDS: Final = 60.0
"""Length of a period without enough requests after which the status says so."""
MIN_ERRORS: Final = 3
"""Failed requests that roll a canary back before the test has a verdict, if they are at least half of its requests."""


class Comparison(Struct, frozen=True, kw_only=True):
    """The requests of both versions in a period."""

    stable: Counts = Counts()
    canary: Counts = Counts()
    until: datetime
    """End of the period that the counters cover."""


class CanaryInputs(Struct, frozen=True, kw_only=True):
    """What is observed of a canary."""

    spec: CanarySpec
    target: str
    image: str
    unready: str = ""
    """What its pods wait for; empty if all are ready."""
    can_serve: bool = True
    """Whether a pod of each of its stages is ready."""
    problem: str = ""
    """A problem of its pods that waiting does not help; empty without one."""
    restarts: int = 0
    """Restarts of its pods."""
    last_exit: str = ""
    """How a container of them ended before it restarted; empty if unknown."""
    is_routed: bool = True
    """Whether all ready gateways of the running version forward its share."""
    is_serving: bool = True
    """Whether the running version has a ready replica of each stage."""
    is_promoting: bool = False
    """Whether the pods of the canary before, which was promoted, serve until the running version is complete."""
    waits_for: str = ""
    """Another change in progress; empty without one."""
    blocked: str = ""
    """Why the roll-out of the running version cannot end; empty if it can."""
    deadline: timedelta
    """How long its pods may take to become ready."""
    comparison: Comparison
    command: str = ""
    """One of COMMANDS; empty without one."""


def decide(before: CanaryStatus | None, inputs: CanaryInputs, now: datetime) -> tuple[CanaryStatus, list[Event]]:
    """Returns the next status of the canary of a target, and the events that led there."""
    status, events = _decide(before, inputs, now)
    if status.phase == "Promoted" and status.promotion_time is None:
        status = replace(status, promotion_time=now)
    return status, events


def _decide(before: CanaryStatus | None, inputs: CanaryInputs, now: datetime) -> tuple[CanaryStatus, list[Event]]:
    if before is not None and before.target != inputs.target and inputs.is_promoting:
        return _after_promotion(before, inputs, now)
    events = []
    is_retried = before is not None and before.phase == "RolledBack" and inputs.command == "retry"
    if before is None or before.target != inputs.target or is_retried:
        status = _started(inputs, now)
        if not inputs.is_serving:
            return _promoted(status, "promoted without a test: the running version serves nothing to compare it with")
        events = [Event(reason="CanaryStarted", message=status.message)]
    else:
        status = before
    status = replace(status, paused={"pause": True, "resume": False}.get(inputs.command, status.paused))
    if status.phase in ("Starting", "Running"):
        if inputs.command == "promote":
            status, found = _promoted(status, f"promoted by the user; {_figures(status)}")
        elif inputs.command == "abort":
            status, found = _rolled_back(status, "Aborted", f"aborted by the user; {_figures(status)}")
        else:
            status, found = _advance(status, inputs, now)
        events += found
    elif status.phase == "RolledBack" and inputs.command == "promote":
        status, found = _promoted(status, f"promoted by the user; before, {status.message}")
        events += found
    return status, events


def _after_promotion(before: CanaryStatus, inputs: CanaryInputs, now: datetime) -> tuple[CanaryStatus, list[Event]]:
    """Returns the next status while the pods of a promoted canary serve on: another version waits for their end.

    If that cannot come, the version is promoted, with the share of these pods.
    """
    if inputs.command == "promote":
        why = "promoted by the user"
    elif inputs.blocked:
        why = f"promoted without a test: the running version cannot roll out: {inputs.blocked}"
    else:
        return before, []
    return _promoted(replace(_started(inputs, now), weight=before.weight), why)


def compare(stable: Evidence, canary: Evidence) -> Comparison:
    """Returns the requests of both versions. One that could not be forwarded, or was lost so, is the canary's error."""
    counts = _counts(canary)
    lost = stable.lost_forwards
    until = max(stable.since, min(stable.until, canary.until))
    return Comparison(stable=_counts(stable), canary=counts + Counts(requests=lost, errors=lost), until=until)


def _counts(evidence: Evidence) -> Counts:
    """Returns the requests that ended, and those of them that were good. Refused ones are errors too.

    A request is good if it was served, met the TTFA objective of its task type and did not underrun.
    """
    # Of an unknown task type are those that were invalid in themselves.
    lost = sum(count for name, count in evidence.failed.items() if name != "unknown")
    late = sum(stats.requests - stats.within_objective for stats in evidence.streams.values())
    underruns = sum(stats.underruns for stats in evidence.streams.values())
    good = max(0, evidence.completed - late - underruns)
    return Counts(requests=evidence.completed + lost, good=good, underruns=underruns, errors=lost)


def _started(inputs: CanaryInputs, now: datetime) -> CanaryStatus:
    message = f"{inputs.image} is tested on a share of the requests"
    return CanaryStatus(
        target=inputs.target,
        image=inputs.image,
        phase="Starting",
        message=message[:512],
        start_time=now,
        unready_time=now,
    )


def _advance(status: CanaryStatus, inputs: CanaryInputs, now: datetime) -> tuple[CanaryStatus, list[Event]]:
    status = _with_times(status, inputs, now)
    if failure := _pod_failure(status, inputs, now):
        return _rolled_back(status, "Failed", failure)
    if status.period_time is not None and _fails_requests(inputs.comparison):
        status = _with_counts(status, inputs.comparison)
        return _rolled_back(status, "Failed", f"it fails requests; {_figures(status)}")
    if status.step >= len(inputs.spec.steps):
        # The list of steps has become shorter.
        return _promoted(status, f"promoted after its last step; {_figures(status)}")
    if not inputs.can_serve and status.weight:
        status = replace(_with_counts(status, inputs.comparison), weight=0, period_time=None)
    if inputs.blocked and not status.weight:
        # The new version may be what mends it.
        return _promoted(status, f"promoted without a test: the running version cannot roll out: {inputs.blocked}")
    if obstacle := inputs.unready or inputs.waits_for:
        return replace(status, message=_step(status, inputs, f"waits for {obstacle}")), []
    weight = inputs.spec.steps[status.step].weight
    if status.weight != weight:
        status = replace(status, phase="Running", weight=weight, period_time=None, unrouted_time=now)
        status = replace(status, message=_step(status, inputs, f"serves {weight} % of the requests"))
        return status, [Event(reason="CanaryStep", message=f"{inputs.image}: {status.message}")]
    if not inputs.is_routed:
        return replace(status, message=_step(status, inputs, "waits for the gateways to forward its share")), []
    if status.period_time is None:
        return replace(status, period_time=now), []
    return _count(status, status.period_time, inputs, now)


def _with_times(status: CanaryStatus, inputs: CanaryInputs, now: datetime) -> CanaryStatus:
    has_route = inputs.is_routed or not status.weight
    return replace(
        status,
        unready_time=(status.unready_time or now) if inputs.unready else None,
        unrouted_time=None if has_route else status.unrouted_time or now,
        problem_time=(status.problem_time or now) if inputs.problem else None,
    )


def _pod_failure(status: CanaryStatus, inputs: CanaryInputs, now: datetime) -> str:
    """Returns why the pods of a canary, or the gateways, cannot go on; empty if they can."""
    if inputs.restarts > MAX_RESTARTS:
        reason = f": {inputs.last_exit}" if inputs.last_exit else ""
        return inputs.problem or f"its pods have restarted {inputs.restarts} times{reason}"
    if status.problem_time is not None and now - status.problem_time >= timedelta(seconds=PROBLEM_SECONDS):
        return inputs.problem
    if status.unready_time is not None and now - status.unready_time > inputs.deadline:
        return f"it is not ready after {inputs.deadline.total_seconds() / 60:g} minutes: {inputs.unready}"
    if status.unrouted_time is not None and now - status.unrouted_time > timedelta(seconds=ROUTE_SECONDS):
        return "the gateways do not forward its share: the image of the running version is too old for a canary"
    return ""


def _fails_requests(seen: Comparison) -> bool:
    """Returns whether a canary fails requests that the running version does not fail."""
    stable, canary = seen.stable, seen.canary
    is_failing = canary.errors >= MIN_ERRORS and 2 * canary.errors >= canary.requests
    return is_failing and 10 * stable.errors <= stable.requests


def _count(
    status: CanaryStatus, since: datetime, inputs: CanaryInputs, now: datetime
) -> tuple[CanaryStatus, list[Event]]:
    """Ends the period that began at `since` if it has enough requests, and evaluates the test."""
    seen = inputs.comparison
    seconds = (seen.until - since).total_seconds()
    if seconds < PERIOD_SECONDS or min(seen.stable.requests, seen.canary.requests) < PERIOD_REQUESTS:
        is_idle = now - since > timedelta(seconds=IDLE_SECONDS)
        return replace(status, message=_step(status, inputs, "waits for requests")) if is_idle else status, []
    difference = seen.canary.good_ratio - seen.stable.good_ratio
    status = replace(
        _with_counts(status, seen),
        period_time=seen.until,
        step_seconds=status.step_seconds + seconds,
        step_requests=status.step_requests + seen.canary.requests,
        worse=updated(status.worse, -difference, -1.0),
    )
    if is_certain(status.worse):
        effect = f"{100 * status.worse.mean:.1f} points fewer good requests in {status.worse.count} periods"
        return _rolled_back(status, "Failed", f"it has {effect}; {_figures(status)}")
    return _next_step(replace(status, message=_step(status, inputs, _figures(status))), inputs)


def _with_counts(status: CanaryStatus, seen: Comparison) -> CanaryStatus:
    return replace(status, stable=status.stable + seen.stable, canary=status.canary + seen.canary)


def _next_step(status: CanaryStatus, inputs: CanaryInputs) -> tuple[CanaryStatus, list[Event]]:
    spec = inputs.spec
    has_passed = status.step_seconds >= spec.steps[status.step].pause_seconds
    if status.paused or not has_passed or status.step_requests < spec.min_requests:
        return status, []
    if status.step + 1 >= len(spec.steps):
        return _promoted(status, f"no harm found; {_figures(status)}")
    return replace(status, step=status.step + 1, step_seconds=0.0, step_requests=0), []


def _promoted(status: CanaryStatus, message: str) -> tuple[CanaryStatus, list[Event]]:
    status = replace(status, phase="Promoted", message=message[:512], period_time=None, paused=False)
    return status, [Event(reason="CanaryPromoted", message=f"{status.image}: {message}")]


def _rolled_back(
    status: CanaryStatus, reason: Literal["Failed", "Aborted"], message: str
) -> tuple[CanaryStatus, list[Event]]:
    status = replace(
        status,
        phase="RolledBack",
        reason=reason,
        message=message[:512],
        weight=0,
        period_time=None,
        paused=False,
    )
    event = Event(
        kind="Warning" if reason == "Failed" else "Normal",
        reason=f"Canary{reason}",
        message=f"{status.image}: {message}",
    )
    return status, [event]


def _step(status: CanaryStatus, inputs: CanaryInputs, details: str) -> str:
    """Returns a message about the current step."""
    paused = ", paused by the user" if status.paused else ""
    return f"step {status.step + 1} of {len(inputs.spec.steps)} at {status.weight} %{paused}: {details}"[:512]


def _figures(status: CanaryStatus) -> str:
    """Returns the counts of both versions."""
    found = []
    for name, counts in (("canary", status.canary), ("running version", status.stable)):
        ratio = f"{100 * counts.good_ratio:.1f} % good" if counts.requests else "none counted"
        errors = f", {counts.errors} failed" if counts.errors else ""
        underruns = f", {counts.underruns} underran" if counts.underruns else ""
        found.append(f"{name}: {counts.requests} requests, {ratio}{errors}{underruns}")
    return "; ".join(found)
