"""How many talkers and codecs the load that is coming needs. Pure.

Each evaluation compares what replicas carry with the load that is expected when a replica that starts now is ready:
replicas are added at once, and removed when the last five minutes did not need them.
"""

import math
from datetime import datetime, timedelta

from msgspec.structs import replace

from syrinx_operator.observed.evidence import MIN_REQUESTS, WINDOW_SECONDS, Evidence
from syrinx_operator.resource.state.tuning_status import Peak, Replicas, StageReplicas, Worth
from syrinx_operator.tuner.builder import DecisionBuilder
from syrinx_operator.tuner.model.capacity import judge, measure
from syrinx_operator.tuner.policy import Scale
from syrinx_operator.tuner.trial import end_trial
from syrinx_stages.contract.stages import WORKERS, Stage

SUDDEN_SECONDS = 30.0
"""Window of a sudden rise."""
MOST_START_SECONDS = 600.0
"""Of a replica. One that takes longer does not start at all for a while."""
LOOK_SECONDS = SUDDEN_SECONDS / 3
"""Time between two evaluations while there are requests."""


def advance(builder: DecisionBuilder) -> None:
    """Decides the number of replicas once, if that is asked for."""
    if not builder.policy.scales:
        builder.set(replicas=None)
        return
    now = builder.look(builder.now, builder.now)
    _follow(builder, now)
    if builder.state.replicas is None:
        return
    if not builder.state.measured.is_known:  # Another image, model or device: what replicas can do is forgotten.
        stages = {stage: replace(part, worth=Worth()) for stage, part in builder.replicas.stages.items()}
        builder.set(replicas=replace(builder.replicas, capacity=None, stages=stages))
    recent = builder.look(builder.now - timedelta(seconds=WINDOW_SECONDS), builder.now)
    if recent.problem or recent.seconds < SUDDEN_SECONDS / 2:
        return
    if recent.rates:
        builder.requeue_after = min(builder.requeue_after, LOOK_SECONDS)
    if recent.of_arm().accepted >= MIN_REQUESTS and (builder.state.trial is None or builder.replicas.capacity is None):
        measure(builder, recent)
    if builder.state.trial is None and builder.state.soak is None:
        judge(builder)
    _scale(builder, now, coming_rate(builder, recent))


def _follow(builder: DecisionBuilder, now: Evidence) -> None:
    """Follows which replicas there are, and how long one takes to become ready."""
    memory, scales = builder.state.replicas, builder.policy.scales
    present = {stage: now.replicas_of(stage) for stage in WORKERS}
    if memory is None and (now.disruption or not all(present.values())):
        return
    known = memory or Replicas(ready_time=builder.now, judged_time=builder.now)
    stages = {}
    for stage, replicas in present.items():
        part = known.stages.get(stage, StageReplicas(count=len(replicas)))
        # The count of others is not decided here.
        is_own = stage in scales and scales[stage].mode == "Auto" and stage in known.stages
        count = part.count if is_own or now.disruption else len(replicas)
        stages[stage] = replace(part, count=count, ready=sum(each.ready for each in replicas))
    if any(stages[stage].ready != part.ready for stage, part in known.stages.items()):
        # What was observed of other replicas says nothing about these.
        known = replace(known, ready_time=builder.now)
        builder.set(last_change_time=builder.now)
    if known.added_time is not None and all(part.ready >= part.count for part in stages.values()):
        took = min(builder.seconds_since(known.added_time), MOST_START_SECONDS)
        known = replace(known, added_time=None, start_seconds=round((known.start_seconds + took) / 2))
    builder.set(replicas=replace(known, stages=stages))


# The load that is coming --------------------------------------------------------------------------------------------


def coming_rate(builder: DecisionBuilder, recent: Evidence) -> float:
    """Returns the requests per second to expect until a replica that starts now is ready: the largest of the present
    rate, of a sudden rise, and of the trend."""
    lead, now = builder.replicas.start_seconds + builder.policy.interval, builder.now
    sudden = builder.look(now - timedelta(seconds=SUDDEN_SECONDS), now)
    window = timedelta(seconds=WINDOW_SECONDS)
    before = builder.look(now - 2 * window, now - window)
    found = [_bound(recent, 1.0)]
    if sudden.seconds > SUDDEN_SECONDS / 2:
        found.append(_bound(sudden, -2.0))
    if min(before.seconds, recent.seconds) > WINDOW_SECONDS / 2:
        growth = (_bound(recent, -1.0) - _bound(before, 1.0)) / WINDOW_SECONDS
        found.append(_bound(recent) + growth * (WINDOW_SECONDS / 2 + lead))
    return max(found)


def _bound(window: Evidence, deviations: float = 0.0) -> float:
    """Returns the rate of a window and some of its standard deviations."""
    count = float(window.of_arm().accepted)
    return max(0.0, count + deviations * math.sqrt(window.dispersion * count)) / window.seconds


# Scaling ------------------------------------------------------------------------------------------------------------


def _scale(builder: DecisionBuilder, now: Evidence, rate: float) -> None:
    memory, scales = builder.replicas, builder.policy.scales
    if memory.capacity is None or not all(memory.capacity.curves[stage].slope for stage in scales):
        return
    wanted = {
        stage: max(1, math.ceil(memory.capacity.curves[stage].needed(rate) / part.worth.usual - 1e-6))
        for stage, part in memory.stages.items()
    }
    if builder.policy.colocated:
        wanted = dict.fromkeys(wanted, max(wanted.values()))
    may_remove = not (now.disruption or builder.state.trial or builder.state.soak)
    stages = {
        stage: _scaled(part, wanted[stage], scales[stage], builder.now, may_remove=may_remove)
        if stage in scales
        else replace(part, wanted=wanted[stage])
        for stage, part in memory.stages.items()
    }
    builder.set(replicas=replace(memory, stages=stages))
    _report(builder, memory, rate)


def _scaled(part: StageReplicas, wanted: int, scale: Scale, now: datetime, *, may_remove: bool) -> StageReplicas:
    """Returns a stage with its new count, in mode Recommend with the recommended one."""
    goal = min(max(wanted, scale.minimum), scale.maximum)
    before = part.count if scale.mode == "Auto" or part.recommended is None else part.recommended
    before = min(max(before, scale.minimum), scale.maximum)
    peaks: tuple[Peak, ...] = ()
    if goal < before:
        begin = now - timedelta(seconds=WINDOW_SECONDS)
        lasting = [each for each in part.peaks or (Peak(now, before),) if each.time > begin]
        peaks = (*(each for each in lasting if each.count > goal), Peak(now, goal))
    count = min(before, max(each.count for each in peaks)) if peaks and may_remove else max(before, goal)
    if scale.mode == "Auto":
        return replace(part, wanted=wanted, peaks=peaks, count=count, recommended=None)
    return replace(part, wanted=wanted, peaks=peaks, recommended=count)


def _report(builder: DecisionBuilder, before: Replicas, rate: float) -> None:
    """Writes an event for what has changed, and ends a trial that added replicas would disturb."""
    former = {stage: part.count for stage, part in before.stages.items()}
    found: list[tuple[Stage, int | None, str]] = [
        (stage, part.count, "ScaledUp" if part.count > former[stage] else "ScaledDown")
        for stage, part in builder.replicas.stages.items()
        if part.count != former[stage]
    ]
    if found:
        builder.requeue_after = min(builder.requeue_after, 1.0)
    found += [
        (stage, part.recommended, "ScalingRecommended")
        for stage, part in builder.replicas.stages.items()
        if part.recommended not in (None, part.count, before.stages[stage].recommended)
    ]
    lead = before.start_seconds + builder.policy.interval
    for stage, count, reason in found:
        why = f"{stage}: {former[stage]} -> {count} replicas: {rate:.3g} requests/s are expected within {lead:.0f} s, "
        why += f"and {former[stage]} serve {able(before, stage):.3g}"
        builder.set(replicas=replace(builder.replicas, why=why[:256]))
        builder.emit(reason, why)
    if any(reason == "ScaledUp" for _, _, reason in found):
        if (trial := builder.state.trial) is not None:
            end_trial(builder, trial, "Superseded", "replicas are added")
        builder.set(replicas=replace(builder.replicas, added_time=builder.now))


def able(memory: Replicas, stage: Stage) -> float:
    """Returns the requests per second that a stage's replicas serve well, once their capacity is known."""
    part = memory.stages[stage]
    return memory.capacity.curves[stage].served(part.worth.usual * part.count) if memory.capacity else 0.0


def summary(memory: Replicas) -> str:
    """Returns the numbers and the last change as a line of text."""
    counts = ", ".join(
        f"{stage} {part.count}" + (f" ({part.recommended} recommended)" if part.recommended is not None else "")
        for stage, part in memory.stages.items()
    )
    return f"{counts}; {memory.why}" if memory.why else counts
