"""What a pipeline needs on Kubernetes, as values: every object, in the order in which it is applied. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import model, pods, redis
from syrinx_operator.cluster.plan import replicas as scale
from syrinx_operator.cluster.plan.disruption import disruption_budget
from syrinx_operator.cluster.plan.gateway import gateway_workload
from syrinx_operator.cluster.plan.monitoring import pod_monitors
from syrinx_operator.cluster.plan.network import network_policies
from syrinx_operator.cluster.plan.objects import stamped
from syrinx_operator.cluster.plan.redis import password_secret
from syrinx_operator.cluster.plan.release import (
    FrozenTemplate,
    Release,
    Running,
    frozen,
    release_config_map,
    resolved,
    running,
)
from syrinx_operator.cluster.plan.services import service_accounts, services
from syrinx_operator.cluster.plan.settings import Settings, settings, settings_config_map, stage_spec
from syrinx_operator.cluster.plan.stages import stage_partition, stage_workload
from syrinx_operator.cluster.plan.tuning import Copy, tuning_config_map
from syrinx_operator.cluster.state import STAGES, Component, Manifest, Observed, OperatorConfig, Owner
from syrinx_operator.cluster.topology import GUEST, HOST, members, workload_of, workloads
from syrinx_operator.resource.spec import TTSPipeline

__all__ = ["Plan", "Release", "Settings", "password_secret", "plan"]


class Plan(Struct, frozen=True, kw_only=True):
    """What shall be there. Applied in this order, it can be broken off anywhere and begun anew."""

    manifests: tuple[Manifest, ...]
    """Every object but the managed Redis's Secret, which is made once and never read."""
    release: Release
    """What runs for good; it is the first manifest."""
    settings: Mapping[Component, Settings]
    """Live settings of each stage."""
    replicas: Mapping[Component, int]
    """How many pods each component shall have."""

    @property
    def generation(self) -> str:
        """Model generation of the stages."""
        return self.release.generation

    @property
    def templates(self) -> Mapping[Component, str]:
        """What each component's pods shall carry as `syrinx.dev/template`."""
        hashes = {component: template.hash for component, template in self.release.templates.items()}
        return hashes if GUEST in hashes else {**hashes, GUEST: hashes[HOST]}


def plan(
    pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig, tuning: Copy | None = None
) -> Plan:
    """Plans a pipeline without rule violations: as tuned, if it is. `tuning` is what is to be kept of that.

    Raises `ValueError` if its Redis is a managed one and its password Secret is not there yet.
    """
    spec = pipeline.spec
    release = _release(pipeline, owner, observed, config)
    live = {stage: settings(spec, stage, owner, observed) for stage in STAGES}
    counts = {
        stage: scale.replicas(names.workload_key(owner.name, stage), stage_spec(spec, stage).replicas, observed)
        for stage in workloads(spec)
    }
    manifests = [
        release_config_map(owner, release),
        *([tuning_config_map(owner, tuning)] if tuning is not None else []),
        *(settings_config_map(owner, stage, live[stage]) for stage in STAGES),
        *service_accounts(owner, spec),
        *model.claims(owner, spec.model),
        *redis.redis_claims(owner, spec.connector),
        *services(owner, spec),
        *network_policies(owner, spec, config),
        *(disruption_budget(owner, stage) for stage in workloads(spec) if counts[stage].count > 1),
        *pod_monitors(owner, spec, observed),
        *_workloads(pipeline, owner, observed, release, live, counts),
    ]
    return Plan(
        manifests=tuple(stamped(manifest) for manifest in manifests),
        release=release,
        settings=live,
        replicas={
            **{stage: counts[workload_of(spec, stage)].count for stage in STAGES},
            **({Component.REDIS: 1} if Component.REDIS in release.templates else {}),
        },
    )


def _release(pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig) -> Release:
    """The release with the templates of today: recorded ones, where nothing changed."""
    before = resolved(pipeline, owner, observed, config)
    now = running(pipeline.spec, before, observed)
    templates = {stage: _stage_template(pipeline, stage, before, now) for stage in workloads(pipeline.spec)}
    if pipeline.spec.connector.managed:
        inputs = redis.redis_inputs(pipeline, now)
        templates[Component.REDIS] = frozen(
            before, Component.REDIS, inputs, lambda: redis.redis_template(pipeline, now)
        )
    return structs.replace(before, templates=templates)


def _stage_template(pipeline: TTSPipeline, stage: Component, before: Release, now: Running) -> FrozenTemplate:
    inputs = pods.stage_inputs(pipeline, stage, now)
    return frozen(before, stage, inputs, lambda: pods.stage_template(pipeline, stage, now))


def _workloads(
    pipeline: TTSPipeline,
    owner: Owner,
    observed: Observed,
    release: Release,
    live: Mapping[Component, Settings],
    counts: Mapping[Component, scale.Replicas],
) -> list[Manifest]:
    """In the order in which they need one another."""
    templates = release.templates
    made = []
    if Component.REDIS in templates:
        made.append(redis.redis_workload(owner, templates[Component.REDIS]))
    for stage in workloads(pipeline.spec)[1:]:
        first_new = stage_partition(
            stage,
            templates[stage],
            counts[stage],
            observed,
            generation=release.generation,
            settings_generations={each: live[each].generation for each in members(pipeline.spec, stage)},
        )
        made.append(stage_workload(owner, stage, templates[stage], counts[stage], first_new))
    return [*made, gateway_workload(owner, pipeline.spec, templates[Component.GATEWAY], counts[Component.GATEWAY])]
