"""Talker and codec: StatefulSets, whose pods keep their names and are rolled one at a time."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.plan.release import FrozenTemplate
from syrinx_operator.cluster.plan.replicas import Replicas
from syrinx_operator.cluster.rollout import partition
from syrinx_operator.cluster.state import Component, Manifest, Observed, Owner


def stage_workload(
    owner: Owner,
    stage: Component,
    template: FrozenTemplate,
    replicas: Replicas,
    first_new: int,
) -> Manifest:
    """The StatefulSet of a talker or codec; pods of ordinals below `first_new` keep their template."""
    name = names.workload(owner.name, stage)
    spec = {
        **replicas.fields,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(owner.name, stage)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": first_new}},
        "template": template.template,
    }
    return replicas.onto(manifest(owner, "apps/v1", "StatefulSet", name, stage, spec=spec))


def stage_partition(
    stage: Component,
    template: FrozenTemplate,
    replicas: Replicas,
    observed: Observed,
    *,
    generation: str,
    settings_generations: Mapping[Component, int],
) -> int:
    """Where the roll-out of a stage stands: pods from this ordinal on get the new template.

    `settings_generations` are those of the stages in its pods: what one of these has not confirmed, its pod has not.
    While there is a gateway of another generation, even one that only finishes, its listeners need an old replica.
    """
    unconfirmed = {
        replica.name
        for member, wanted in settings_generations.items()
        for replica in observed.of(member)
        if replica.reported is None or replica.reported.generation < wanted
    }
    pods = [
        msgspec.structs.replace(pod, reported=None) if pod.name in unconfirmed else pod for pod in observed.of(stage)
    ]
    gateways = observed.of(Component.GATEWAY)
    old = any(replica.model_generation != generation for replica in pods)
    served = any(gateway.ready and gateway.model_generation == generation for gateway in gateways)
    needed = any(gateway.model_generation != generation for gateway in gateways)
    return partition(
        replicas.count,
        template.hash,
        pods,
        settings_generation=settings_generations[stage],
        keep_last_old=old and (needed or not served),
    )
