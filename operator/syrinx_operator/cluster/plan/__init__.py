"""The plan: every Kubernetes object of a pipeline, in the order in which it is applied. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct, structs

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import network, pods, redis
from syrinx_operator.cluster.plan.objects import record, with_applied_hash
from syrinx_operator.cluster.plan.release import Release, freeze, render_context, resolve_release
from syrinx_operator.cluster.plan.settings import (
    Settings,
    settings,
    settings_config_map,
    stage_spec,
    tuning_config_maps,
)
from syrinx_operator.cluster.plan.volumes import model_claims
from syrinx_operator.cluster.plan.workloads import (
    ReplicaCount,
    disruption_budget,
    gateway_workload,
    replica_count,
    stage_partition,
    stage_workload,
)
from syrinx_operator.cluster.state import (
    STAGES,
    Component,
    Manifest,
    Observed,
    OperatorConfig,
    Owner,
    stages_in_pod,
    workload_of,
    workload_stages,
)
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.tuning_status import State


class Plan(Struct, frozen=True, kw_only=True):
    """The desired state. Applying its manifests in order may stop anywhere and start over."""

    manifests: tuple[Manifest, ...]
    """Every object except the managed Redis's Secret, which is created once and never read."""
    release: Release
    """Images, model generation and pod templates; also the first manifest."""
    settings: Mapping[Component, Settings]
    """Live settings of each stage."""
    replicas: Mapping[Component, int]
    """Desired number of pods of each component."""

    @property
    def generation(self) -> str:
        """Model generation of the stages."""
        return self.release.generation

    @property
    def templates(self) -> Mapping[Component, str]:
        """Desired value of the label `syrinx.dev/template` on each component's pods."""
        hashes = {component: template.hash for component, template in self.release.templates.items()}
        return {**hashes, Component.CODEC: hashes.get(Component.CODEC, hashes[Component.TALKER])}


def plan(
    pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig, tuning: State | None = None
) -> Plan:
    """Returns the plan of a valid pipeline. `tuning` is the tuner's state, of which a backup is kept.

    Raises ValueError if Redis is managed and its password Secret does not exist yet.
    """
    spec = pipeline.spec
    release = _release(pipeline, owner, observed, config)
    live = {stage: settings(spec, stage, owner, observed) for stage in STAGES}
    counts = {
        stage: replica_count(names.workload_key(owner.name, stage), stage_spec(spec, stage).replicas, observed)
        for stage in workload_stages(spec)
    }
    manifests = [
        record(owner, names.release_key(owner.name), "release", names.RELEASE_KEY, release),
        *(tuning_config_maps(owner, tuning) if tuning is not None else ()),
        *(settings_config_map(owner, stage, live[stage]) for stage in STAGES),
        *network.service_accounts(owner, spec),
        *model_claims(owner, spec.model),
        *redis.redis_claims(owner, spec.connector),
        *network.services(owner, spec),
        *network.network_policies(owner, spec, config),
        *(disruption_budget(owner, stage) for stage in workload_stages(spec) if counts[stage].count > 1),
        *network.pod_monitors(owner, spec, observed),
        *_workloads(pipeline, owner, observed, release, live, counts),
    ]
    return Plan(
        manifests=tuple(with_applied_hash(manifest) for manifest in manifests),
        release=release,
        settings=live,
        replicas={
            **{stage: counts[workload_of(spec, stage)].count for stage in STAGES},
            **({Component.REDIS: 1} if Component.REDIS in release.templates else {}),
        },
    )


def _release(pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig) -> Release:
    """Returns the release with its current templates."""
    release = resolve_release(pipeline, owner, observed, config)
    context = render_context(pipeline.spec, release, observed)
    templates = {}
    for stage in workload_stages(pipeline.spec):
        inputs = pods.stage_inputs(pipeline, stage, context)
        templates[stage] = freeze(release, stage, inputs, partial(pods.stage_template, pipeline, stage, context))
    if pipeline.spec.connector.managed:
        inputs = redis.redis_inputs(pipeline, context)
        render = partial(redis.redis_template, pipeline, context)
        templates[Component.REDIS] = freeze(release, Component.REDIS, inputs, render)
    return structs.replace(release, templates=templates)


def _workloads(
    pipeline: TTSPipeline,
    owner: Owner,
    observed: Observed,
    release: Release,
    live: Mapping[Component, Settings],
    counts: Mapping[Component, ReplicaCount],
) -> list[Manifest]:
    """Returns the workloads in dependency order: Redis, talker and codec, gateway."""
    templates = release.templates
    workloads = []
    if Component.REDIS in templates:
        workloads.append(stage_workload(owner, Component.REDIS, templates[Component.REDIS], ReplicaCount(1), None))
    for stage in workload_stages(pipeline.spec)[1:]:
        partition = stage_partition(
            stage,
            templates[stage],
            counts[stage].count,
            observed,
            generation=release.generation,
            settings_generations={each: live[each].generation for each in stages_in_pod(pipeline.spec, stage)},
        )
        workloads.append(stage_workload(owner, stage, templates[stage], counts[stage], partition))
    return [
        *workloads,
        gateway_workload(owner, pipeline.spec, templates[Component.GATEWAY], counts[Component.GATEWAY]),
    ]
