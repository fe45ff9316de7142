"""The managed Redis of each cell: its pod template, claims, disruption budget and StatefulSet. Pure.

All cells share the ServiceAccount, the password Secret and the recorded pod template, in which only what names the
cell differs: so its hash, which the pods have as a label, is the same.
"""

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Component, Manifest, Observed, Owner
from syrinx_operator.cluster.plan.connector import redis, replicated_redis
from syrinx_operator.cluster.plan.objects import omit_empty
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.cluster.plan.workload import pods, workloads
from syrinx_operator.cluster.plan.workload.pod_template import with_patch
from syrinx_operator.cluster.plan.workload.workloads import ReplicaCount
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline


def redis_template(pipeline: ResolvedPipeline, context: RenderContext) -> Manifest:
    """Returns the pod template of the first cell's Redis."""
    form, connector = pipeline.redis, pipeline.spec.connector
    assert form is not None
    is_replicated, workload = form is RedisForm.REPLICATED, names.workload(pipeline.name, form)
    keys = (names.ACL_KEY, names.SENTINEL_ACL_KEY) if is_replicated else (names.ACL_KEY,)
    acl = {"secretName": workload, "items": [{"key": key, "path": key} for key in keys], "defaultMode": 0o440}
    data = {"emptyDir": {}} if connector.storage is None else {"persistentVolumeClaim": {"claimName": workload}}
    mounted = [
        pods.mounted(redis.DATA, data, "/data", read_only=False),
        pods.mounted("syrinx-acl", {"secret": acl}, names.REDIS_DIRECTORY),
        pods.TMP,
    ]
    # The StatefulSet of several servers adds the volume of a claim.
    own = mounted[1:] if is_replicated and connector.storage is not None else mounted
    containers = (replicated_redis if is_replicated else redis).containers
    pod = {
        **pods.pod_base(pipeline, form, redis.USER),
        "terminationGracePeriodSeconds": 30,
        "containers": containers(pipeline, context, [mount for _, mount in mounted]),
        "volumes": [volume for volume, _ in own],
        **omit_empty(topologySpreadConstraints=pods.spread_over_nodes(pipeline.name, form) if is_replicated else []),
    }
    annotations = omit_empty(**{names.PASSWORD_ANNOTATION: context.password_uid})
    metadata = {"labels": names.labels(pipeline.name, form), "annotations": annotations}
    return with_patch({"metadata": metadata, "spec": pod}, connector.pod_template)


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
    own = pods.relabeled(template, pipeline, first, label)
    for volume in own["spec"].get("volumes", ()):
        claim = volume.get("persistentVolumeClaim", {})
        if claim.get("claimName") == names.workload(pipeline, first):
            claim["claimName"] = names.workload(pipeline, label)
    if form is RedisForm.REPLICATED:
        place = replicated_redis.place(pipeline, cell)
        for container in own["spec"]["containers"]:
            for variable in container.get("env", ()):
                variable |= {"value": place[variable["name"]]} if variable["name"] in place else {}
    return own
