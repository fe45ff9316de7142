"""The gateway: a Deployment, whose new pods are there before the old ones go."""

from __future__ import annotations

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.plan.release import FrozenTemplate
from syrinx_operator.cluster.plan.replicas import Replicas
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.stage_config import codec_process

_PROGRESS_SECONDS = 600


def gateway_workload(owner: Owner, spec: PipelineSpec, template: FrozenTemplate, replicas: Replicas) -> Manifest:
    """The Deployment of the gateways."""
    name = names.workload(owner.name, Component.GATEWAY)
    # A new gateway is ready when its talkers and codecs are: until then nothing is wrong with the Deployment.
    wait = max(spec.talker.startup_seconds, codec_process(spec).startup_seconds) + _PROGRESS_SECONDS
    body = {
        **replicas.fields,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": wait,
        "selector": {"matchLabels": names.selector(owner.name, Component.GATEWAY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template.template,
    }
    return replicas.onto(manifest(owner, "apps/v1", "Deployment", name, Component.GATEWAY, spec=body))
