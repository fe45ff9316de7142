"""The managed Redis of each cell: its claims, its disruption budget and its StatefulSet. Pure.

All cells share the ServiceAccount, the password Secret and the recorded pod template, in which only what names the
cell differs: so its hash, which the pods have as a label, is the same.
"""

from copy import deepcopy

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Component, Manifest, Observed, Owner
from syrinx_operator.cluster.plan.connector import replicated_redis
from syrinx_operator.cluster.plan.workload import pods, workloads
from syrinx_operator.cluster.plan.workload.workloads import ReplicaCount
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline


def claims(owner: Owner, pipeline: ResolvedPipeline) -> list[Manifest]:
    """Returns the PersistentVolumeClaims of all cells."""
    # Of one server not a volumeClaimTemplate, which could not be added later.
    render = replicated_redis.claims if pipeline.redis is RedisForm.REPLICATED else pods.claims
    storage = pipeline.spec.connector.storage
    return [claim for cell in names.redis_cells(pipeline) for claim in render(owner, cell, storage)]


def disruption_budgets(owner: Owner, pipeline: ResolvedPipeline) -> list[Manifest]:
    """Returns the PodDisruptionBudget of each cell with replicas."""
    cells = names.redis_cells(pipeline) if pipeline.redis is RedisForm.REPLICATED else []
    return [workloads.disruption_budget(owner, cell) for cell in cells]


def redis_workloads(owner: Owner, pipeline: ResolvedPipeline, template: Manifest, observed: Observed) -> list[Manifest]:
    """Returns the StatefulSet of each cell; `template` is that of the first one."""
    form, connector = pipeline.redis, pipeline.spec.connector
    assert form is not None
    found = []
    is_replicated, count = form is RedisForm.REPLICATED, ReplicaCount(connector.replicas)
    for number, cell in enumerate(names.redis_cells(pipeline)):
        templates = replicated_redis.claim_templates(owner, cell, connector.storage, observed) if is_replicated else ()
        own = _of_cell(template, owner.name, form, number)
        found.append(workloads.stage_workload(owner, cell, own, count, None, templates))
    return found


def _of_cell(template: Manifest, pipeline: str, form: Component, cell: int) -> Manifest:
    """Returns the pod template of a cell by that of the first one."""
    if cell == 0:
        return template
    first, label = form.value, names.redis_cell(form, cell)
    own = deepcopy(template)
    own["metadata"]["labels"] |= names.labels(pipeline, label)
    for volume in own["spec"].get("volumes", ()):
        claim = volume.get("persistentVolumeClaim", {})
        if claim.get("claimName") == names.workload(pipeline, first):
            claim["claimName"] = names.workload(pipeline, label)
    for constraint in own["spec"].get("topologySpreadConstraints", ()):
        if constraint.get("labelSelector", {}).get("matchLabels") == names.selector(pipeline, first):
            constraint["labelSelector"] = {"matchLabels": names.selector(pipeline, label)}
    if form is RedisForm.REPLICATED:
        place = replicated_redis.place(pipeline, cell)
        for container in own["spec"]["containers"]:
            for variable in container.get("env", ()):
                variable |= {"value": place[variable["name"]]} if variable["name"] in place else {}
    return own
