"""How long the pods of a promoted canary serve: until the version that they carry is complete. Pure."""

from datetime import datetime, timedelta

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, Observed, Owner, Replica
from syrinx_operator.cluster.plan import Plan
from syrinx_operator.cluster.report import diagnosis
from syrinx_operator.cluster.report.progress import incomplete
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import WORKERS, Stage


def serves_on(
    pipeline: ResolvedPipeline,
    owner: Owner,
    plan: Plan,
    observed: Observed,
    promoted: datetime | None,
    now: datetime,
) -> bool:
    """Returns whether the pods of a canary that was promoted at a time still serve.

    They end once the new version is complete, and earlier if its pods find no room, which they may occupy.
    """
    if not plan.is_promoting or not any(incomplete(plan, observed, stage) for stage in STAGES):
        return False
    return not any(_lacks_room(pipeline, owner, observed, stage, promoted, now) for stage in pipeline.workloads)


def share_by_replicas(gateway: Replica, observed: Observed) -> float:
    """Returns the share of the requests that a gateway forwards to a promoted canary: that of the ready replicas.

    It is that of the stage of which the gateway's own model generation has the smallest part. Without a replica of each
    stage, the canary has no share.
    """
    shares = []
    for stage in WORKERS:
        there = sum(pod.ready and not pod.terminating for pod in observed.canary if pod.component is stage)
        own = sum(pod.ready and pod.model_generation == gateway.model_generation for pod in observed.live(stage))
        shares.append(there / (there + own) if there else 0.0)
    return round(max(shares), 2) if all(shares) else 0.0


def _lacks_room(
    pipeline: ResolvedPipeline, owner: Owner, observed: Observed, stage: Stage, promoted: datetime | None, now: datetime
) -> bool:
    """Returns whether pods of a stage fit on no node, or into no quota."""
    live, limit = observed.live(stage), timedelta(seconds=pipeline.progress_deadline)
    problems = (diagnosis.diagnose(pod, limit, now) for pod in live)
    if any(found is not None and found[0].reason == "Unschedulable" for found in problems):
        return True
    workload = observed.objects.get(names.workload_key(owner.name, stage))
    # A pod may be missing since the promotion, or since the last step of the roll-out.
    steps = [time for time in (promoted, *(diagnosis.parse_time(pod.changed) for pod in live)) if time is not None]
    return bool(workload is not None and steps and diagnosis.missing_pods(workload, max(steps), now))
