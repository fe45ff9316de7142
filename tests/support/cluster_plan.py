"""Pipelines to plan, and a cluster in which a plan has been applied."""

import json
import os
from pathlib import Path

import msgspec
import yaml

from syrinx_operator.cluster.objects.kinds import OPTIONAL
from syrinx_operator.cluster.objects.state import ObjectKey, Observed, OperatorConfig, Owner, Replica, component_of
from syrinx_operator.cluster.plan import plan
from syrinx_operator.resource.checks.rules import cluster_violations, violations
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_stages.contract.stages import Stage

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
DOCUMENTS = sorted(path.name.removesuffix(".pipeline.yaml") for path in GOLDEN.glob("*.pipeline.yaml"))
CONFIG = OperatorConfig(
    stages_image="syrinx/stages:1.0.0", redis_image="redis:7.2-alpine", operator_namespace="syrinx-system"
)
EMPTY = Observed(
    objects={},
    password_uid="password-uid",
    token_uid="token-uid",
    served_kinds=frozenset(kind.kind for kind in OPTIONAL),
)
"""A cluster with nothing of the pipeline but the password that the shell has made."""


def document(name):
    """A resource as its user wrote it, each part an object of its own."""
    return json.loads(json.dumps(yaml.safe_load((GOLDEN / f"{name}.pipeline.yaml").read_text())))


def parsed(resource):
    """A resource, which must be a valid one."""
    pipeline = msgspec.convert(resource, TTSPipeline)
    assert [*violations(pipeline), *cluster_violations(pipeline)] == []
    return pipeline


def pipeline(spec=None, name="demo"):
    """A pipeline with this spec."""
    metadata = {"name": name}
    return parsed({"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": metadata, "spec": spec or {}})


def check_golden(file, manifests):
    """Asserts that the manifests are those of a golden file, or writes it with GOLDEN=write."""
    text = yaml.safe_dump_all(manifests, sort_keys=False, width=120)
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / file).write_text(text)
    assert text == (GOLDEN / file).read_text()


def owner_of(pipeline):
    return Owner(name=pipeline.name, namespace="speech", uid=f"uid-of-{pipeline.name}", generation=1)


def planned(pipeline, observed=EMPTY, config=CONFIG):
    return plan(resolve(pipeline), owner_of(pipeline), observed, config)


def key(manifest):
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def objects(plan):
    """What a plan wants, by key."""
    return {key(manifest): manifest for manifest in plan.manifests}


def after(plan, observed=EMPTY, **changes):
    """The cluster once a plan has been applied."""
    return msgspec.structs.replace(observed, **{"objects": {**observed.objects, **objects(plan)}, **changes})


def canary_status(plan, phase="Running", **fields):
    """The status of a plan's canary."""
    known = {"target": plan.canary.candidate.target, "image": "i", "message": "", "startTime": "2026-11-24T12:00:00Z"}
    return msgspec.convert({**known, "phase": phase, **fields}, CanaryStatus)


def pod_template(plan, pipeline, component):
    """The pod template of a component's workload."""
    kind = "Deployment" if component is Stage.GATEWAY else "StatefulSet"
    return objects(plan)[ObjectKey(kind, f"{pipeline.name}-{component}")]["spec"]["template"]


def templates(plan, pipeline):
    """All of them, by component."""
    return {component: pod_template(plan, pipeline, component) for component in plan.release.all_templates}


def replica(component, number, template, **fields):
    return Replica(name=f"demo-{component}-{number}", component=component_of(component), template=template, **fields)


def pods_of(plan):
    """All pods of the stages' workloads, once a plan is rolled out."""
    return tuple(
        replica(stage, number, template.hash)
        for stage, template in plan.release.templates.items()
        for number in range(plan.replicas[stage])
    )
