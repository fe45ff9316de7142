"""Numbers of replicas that the tuner decides: whether it may, and what the status says. Pure."""

from msgspec.structs import replace

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Observed, Owner
from syrinx_operator.cluster.report.obstacles import StatusInputs
from syrinx_operator.resource.state.status import ConditionStatus
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_operator.tuner.replicas import summary
from syrinx_stages.contract.stages import Stage


def permitted(policy: Policy, owner: Owner, observed: Observed) -> Policy:
    """Returns the policy without the stages whose number of pods a HorizontalPodAutoscaler decides."""
    scales = {stage: scale for stage, scale in policy.scales.items() if not _taken(policy, owner, observed, stage)}
    return replace(policy, scales=scales)


def _taken(policy: Policy, owner: Owner, observed: Observed, stage: Stage) -> str:
    """Returns the name of a stage's workload if another autoscaler decides its number of pods; else an empty one."""
    key = names.workload_key(owner.name, Stage.TALKER if policy.colocated else stage)
    return key.name if key in observed.autoscaled else ""


def autoscaling_ready(inputs: StatusInputs) -> tuple[ConditionStatus, str, str] | None:
    """Returns status, reason and message of the condition; None if Syrinx scales nothing."""
    policy, memory = policy_of(inputs.pipeline), inputs.tuning.replicas
    if not policy.scales:
        return None
    if taken := {_taken(policy, inputs.owner, inputs.observed, stage) for stage in policy.scales} - {""}:
        message = f"a HorizontalPodAutoscaler sets the replicas of {', '.join(sorted(taken))}: remove one of both"
        return "False", "OtherAutoscaler", message
    if memory is None or memory.capacity is None:
        return "Unknown", "NoData", "what a replica can serve is not known yet: it takes requests and some minutes"
    if not all(memory.capacity.curves[stage].slope for stage in policy.scales):
        return "False", "NoCapacity", "no number of replicas serves slo.ttfa well: see the recommendations of tuning"
    if limited := [
        f"{stage}: {memory.stages[stage].wanted} replicas are needed, and maxReplicas is {scale.maximum}"
        for stage, scale in policy.scales.items()
        if memory.stages[stage].wanted > scale.maximum
    ]:
        return "False", "MaxReplicas", "; ".join(limited)
    return "True", "Scaling", summary(memory)
