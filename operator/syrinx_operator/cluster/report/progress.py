"""How far a component is from the plan, and whether it has stopped getting closer. Pure."""

from datetime import datetime, timedelta

from syrinx_operator.cluster.objects.state import STAGES, Component, Observed, Problem
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.plan.rollout import ordinal
from syrinx_operator.cluster.report.diagnosis import parse_time
from syrinx_stages.contract.stages import Stage

STALLED = "ProgressDeadlineExceeded"


def incomplete(plan: Plan, observed: Observed, component: Component) -> Problem | None:
    """Returns how a component differs from the plan; None if it does not."""
    live, desired = observed.live(component), plan.replicas[component]
    updated = [pod for pod in live if pod.template == plan.templates[component]]
    if len(updated) < len(live):
        pods = max(desired, len(live))
        return Problem("RollingOut", f"{component}: {len(updated)} of {pods} replicas are updated")
    if len(live) != desired:
        return Problem("Scaling", f"{component}: {len(live)} of {desired} pods")
    if component in (Stage.TALKER, Stage.CODEC) and (name := _serves_meanwhile(plan, observed, component)):
        return Problem("RollingOut", f"{component}: {name} serves while another pod is replaced")
    if unready := [pod.name for pod in updated if not pod.ready]:
        return Problem("Starting", f"{component}: {', '.join(unready)} not ready")
    if not isinstance(component, Stage):
        return None
    generation = plan.settings[component].generation
    if unconfirmed := [pod.name for pod in updated if not pod.has_confirmed(generation)]:
        message = f"{component}: {', '.join(unconfirmed)} has not confirmed settings generation {generation}"
        return Problem("ConfirmingSettings", message)
    return None


def _serves_meanwhile(plan: Plan, observed: Observed, component: Component) -> str:
    """Returns the name of a pod beyond the desired ones that no stuck pod needs; empty without one."""
    pods = observed.replicas_of(component)
    count = plan.replicas[component] + sum(pod.stuck for pod in pods)
    return next((pod.name for pod in observed.live(component) if ordinal(pod) >= count), "")


def is_stalled(
    observed: Observed, component: Component, since: datetime | None, deadline: timedelta, now: datetime
) -> bool:
    """Returns whether a component has made no progress for `deadline`.

    Progress is a pod that is created, becomes ready or is asked to end. Gateways wait for talkers and codecs, so the
    progress of these is theirs. `since` is the time from which progress is expected; None if it was missing already.
    """
    awaited = STAGES if component is Stage.GATEWAY else (component,)
    steps = [since, *(parse_time(pod.changed) for each in awaited for pod in observed.replicas_of(each))]
    return all(now - step > deadline for step in steps if step is not None)
