"""Objects that are no longer planned and stay until a roll-out has replaced the pods that use them. Pure."""

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import REDIS, ObjectKey, Observed
from syrinx_operator.cluster.plan.records import Release
from syrinx_operator.resource.resolve import ResolvedPipeline


def keys(release: Release, pipeline: ResolvedPipeline, observed: Observed) -> frozenset[ObjectKey]:
    """Returns the Redis of another form or cell and the cache of checkpoints while a stage's pod from before exists."""
    outdated = [
        pod
        for stage in pipeline.workloads
        for pod in observed.replicas_of(stage)
        if pod.template != release.templates[stage].hash and not pod.stuck
    ]
    planned = names.redis_cells(pipeline)

    def is_former(label: str) -> bool:
        return label == "models" or (names.cell_in(label)[0] in REDIS and label not in planned)

    return frozenset(
        key
        for key, found in observed.objects.items()
        if outdated and is_former(found["metadata"].get("labels", {}).get(names.COMPONENT_LABEL, ""))
    )
