"""The plan: every Kubernetes object of a pipeline, in the order in which it is applied. Pure."""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct, structs

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import OPTIONAL
from syrinx_operator.cluster.objects.state import (
    STAGES,
    Component,
    Manifest,
    ObjectKey,
    Observed,
    OperatorConfig,
    Owner,
    Replica,
    Settings,
)
from syrinx_operator.cluster.plan import autoscaling, canary, network, records, retained, route
from syrinx_operator.cluster.plan.canary import CanaryPlan
from syrinx_operator.cluster.plan.connector import redis, redis_cells, replicated_redis
from syrinx_operator.cluster.plan.objects import record, with_applied_hash
from syrinx_operator.cluster.plan.records import FrozenTemplate, Release, RenderContext
from syrinx_operator.cluster.plan.rollout import may_gateways_follow, stage_rollout
from syrinx_operator.cluster.plan.tuning_record import tuning_record
from syrinx_operator.cluster.plan.workload import pods, workloads
from syrinx_operator.cluster.plan.workload.download import Download, required_download
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_operator.resource.state.tuning_status import State
from syrinx_stages.contract.stages import Stage

_OPTIONAL = frozenset(kind.kind for kind in OPTIONAL)


class Plan(Struct, frozen=True, kw_only=True):
    """The desired state. Applying its manifests in order may stop anywhere and start over."""

    manifests: tuple[Manifest, ...]
    """Every object except the Secrets, which are created once."""
    delete: tuple[Replica, ...]
    """Pods to delete once the manifests are applied."""
    release: Release
    """Images, model generation and pod templates; also the first manifest."""
    settings: Mapping[Stage, Settings]
    replicas: Mapping[Component, int]
    """Desired number of replicas; during a roll-out a workload may have more pods."""
    canary: CanaryPlan | None
    """The version that does not replace the running one; None if the release is the desired one."""
    is_promoting: bool
    """Whether the release was promoted, and the pods of its canary serve until it is complete."""
    keep: frozenset[ObjectKey]
    """Objects that are not planned, but not deleted yet."""
    image: str
    """Image of the running version."""
    download: Download | None = None
    """The download for which the pods keep their former checkpoint."""

    @property
    def generation(self) -> str:
        """Model generation of the stages."""
        return self.release.generation

    @property
    def templates(self) -> Mapping[Component, str]:
        """Desired value of the label `syrinx.dev/template` on each component's pods."""
        hashes = {component: template.hash for component, template in self.release.all_templates.items()}
        return {**hashes, Stage.CODEC: hashes.get(Stage.CODEC, hashes[Stage.TALKER])}


def plan(
    pipeline: ResolvedPipeline,
    owner: Owner,
    observed: Observed,
    config: OperatorConfig,
    tuning: State | None = None,
    canary_status: CanaryStatus | None = None,
) -> Plan:
    """Returns the plan of a valid pipeline. `tuning` is the tuner's state.

    Raises ValueError if the Secret of the settings ports, or of a managed Redis, does not exist yet.
    """
    spec = pipeline.spec
    before = records.recorded_release(owner, observed)
    release, context, download = _release(pipeline, owner, before, observed, config)
    live = {stage: records.settings(pipeline, stage, owner, observed) for stage in STAGES}
    own_workload = pipeline.workloads
    tuned = tuning.replicas.stages if tuning is not None and tuning.replicas is not None else {}
    decided = {stage: part.count for stage, part in tuned.items()}
    counts = {
        stage: workloads.replica_count(owner, stage, pipeline.stage(stage).spec, observed, decided.get(stage))
        for stage in own_workload
    }
    desired_counts = {stage: count.count for stage, count in counts.items()}
    tested = canary.canary_plan(pipeline, before, release, context, desired_counts, canary_status, observed)
    release = tested.stable if tested else structs.replace(release, candidate=None)
    is_promoting = canary.is_promoting(release, canary_status)
    manifests: list[Manifest] = [
        record(owner, "release", release),
        *([tuning_record(owner, tuning)] if tuning is not None else ()),
        # Mounted into the stages' pods, and the operator's own record.
        *(record(owner, stage, live[stage], names.SETTINGS_KEY) for stage in STAGES),
        *network.service_accounts(owner, pipeline),
        *pods.claims(owner, "models", spec.model.cache.storage if spec.model.cache else None),
        *redis_cells.claims(owner, pipeline),
        *((download.policy, download.job) if download is not None else ()),
        *network.services(owner, pipeline, observed),
        *route.routes(owner, spec.gateway),
        *network.network_policies(owner, pipeline, config),
        *(workloads.disruption_budget(owner, stage) for stage in own_workload if counts[stage].count > 1),
        *redis_cells.disruption_budgets(owner, pipeline),
        *network.pod_monitors(owner, pipeline),
        *autoscaling.autoscalers(owner, pipeline, observed),
    ]
    # The other kinds would fail; the status names them.
    manifests = [each for each in manifests if each["kind"] not in _OPTIONAL - observed.served_kinds]
    # In dependency order: Redis, talker and codec, gateway.
    if (redis_form := pipeline.redis) is not None:
        template = release.redis[redis_form].template
        manifests += redis_cells.redis_workloads(owner, pipeline, template, observed)
    rollouts = {
        stage: stage_rollout(pipeline, stage, release, live, counts[stage], observed) for stage in own_workload[1:]
    }
    for stage, rollout in rollouts.items():
        count = structs.replace(counts[stage], count=rollout.replicas)
        template = release.templates[stage].template
        manifests.append(workloads.stage_workload(owner, stage, template, count, rollout.partition))
    gateway, held = release.templates[Stage.GATEWAY], frozenset[ObjectKey]()
    if may_gateways_follow(release, observed):
        manifests.append(workloads.gateway_workload(owner, pipeline, gateway, counts[Stage.GATEWAY]))
    else:
        held = frozenset({names.workload_key(owner.name, Stage.GATEWAY)})
    manifests += canary.canary_workloads(owner, pipeline, tested, observed) if tested else []
    return Plan(
        manifests=tuple(with_applied_hash(manifest) for manifest in manifests),
        release=release,
        delete=(
            *(pod for rollout in rollouts.values() for pod in rollout.delete),
            *(replicated_redis.with_old_password(observed) if redis_form is RedisForm.REPLICATED else ()),
        ),
        settings=live,
        download=download,
        replicas={
            **{stage: counts.get(stage, counts[Stage.TALKER]).count for stage in STAGES},
            **({redis_form: spec.connector.replicas * spec.connector.cells} if redis_form else {}),
        },
        canary=tested,
        is_promoting=is_promoting,
        keep=canary.kept_workloads(owner, observed, promoting=is_promoting)
        | retained.keys(release, pipeline, observed)
        | held,
        image=release.templates[Stage.GATEWAY].template["spec"]["containers"][0]["image"] if tested else context.image,
    )


def _release(
    pipeline: ResolvedPipeline, owner: Owner, before: Release | None, observed: Observed, config: OperatorConfig
) -> tuple[Release, RenderContext, Download | None]:
    """Returns the release with its current templates, what they were rendered from, and what it waits for.

    `before` is the recorded release. While a download is awaited, it is returned with its templates of the stages.
    """
    release = records.resolve_release(pipeline, owner, before, observed, config)
    context = records.render_context(pipeline.spec, release, observed)
    download = required_download(pipeline, owner, before, release, context, observed)
    templates: dict[Stage, FrozenTemplate] = {}
    servers: dict[RedisForm, FrozenTemplate] = {}
    for stage in pipeline.workloads if download is None else ():
        inputs = pods.stage_inputs(pipeline, stage, context)
        render = partial(pods.stage_template, pipeline, stage, context)
        templates[stage] = records.freeze(release, stage, inputs, context.token_uid, render)
    if (redis_form := pipeline.redis) is not None:
        inputs = redis.redis_inputs(pipeline, context)
        render = partial(redis_cells.redis_template, pipeline, context)
        servers[redis_form] = records.freeze(release, redis_form, inputs, context.token_uid, render)
    if download is not None and before is not None:
        return structs.replace(before, redis=servers), context, download
    shared = canary.shared_inputs(pipeline.spec)
    return structs.replace(release, templates=templates, redis=servers, shared=shared), context, None
