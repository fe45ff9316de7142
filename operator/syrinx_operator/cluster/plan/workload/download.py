"""The Job that fills the cache before pods with another checkpoint replace those that serve. Pure."""

from typing import Any

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, Manifest, Observed, Owner, key_of
from syrinx_operator.cluster.plan.network import policy
from syrinx_operator.cluster.plan.objects import manifest, omit_empty, short_hash
from syrinx_operator.cluster.plan.records import Release, RenderContext
from syrinx_operator.cluster.plan.workload import models, pods
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import Stage

PURPOSE = "models"
"""Value of the component label of the Job's pods."""
RETRY_SECONDS = 600
"""Seconds after which a failed Job is deleted, and created again."""
_ATTEMPTS = 3
_DEADLINE_SECONDS = 6 * 3600


class Download(Struct, frozen=True):
    """A download that must finish before pods use the checkpoint."""

    job: Manifest
    policy: Manifest
    """No connection to the Job's pods is allowed."""
    source: str
    failure: str = ""
    """Why the Job has failed, as Kubernetes says it; empty if it has not."""

    @property
    def name(self) -> str:
        """Name of the Job."""
        name: str = self.job["metadata"]["name"]
        return name


def required_download(
    pipeline: ResolvedPipeline,
    owner: Owner,
    before: Release | None,
    release: Release,
    context: RenderContext,
    live: Observed,
) -> Download | None:
    """Returns the download that pods of `release` would have to wait for; None if it has finished or none is needed.

    Without a shared cache each pod downloads for itself, and the pods of a new pipeline replace none that serve.
    """
    spec = pipeline.spec
    if spec.model.cache is None or before is None or not _is_serving(pipeline, before):
        return None
    if before.generation_inputs.get("model") == release.generation_inputs["model"]:
        return None
    if _is_recorded(pipeline, before, context):  # As a canary, whose pods have waited for the download.
        return None
    job = _job(pipeline, owner, context)
    status = (live.objects.get(key_of(job)) or {}).get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or () if each.get("status") == "True"}
    if "Complete" in conditions:
        return None
    failed = conditions.get("Failed", {})
    failure = f"{failed.get('reason')}: {failed.get('message')}" if failed else ""
    return Download(job, policy(owner, PURPOSE, []), models.source_name(spec.model), failure)


def _is_serving(pipeline: ResolvedPipeline, before: Release) -> bool:
    """Returns whether there are templates of all stages that can be kept."""
    kept = [before.templates.get(stage) for stage in pipeline.workloads]
    return all(template is not None and template.intact for template in kept)


def _is_recorded(pipeline: ResolvedPipeline, before: Release, context: RenderContext) -> bool:
    """Returns whether there are templates of all stages with these inputs, of the release or of its candidate."""
    stages = pipeline.workloads
    inputs = ((stage, short_hash(pods.stage_inputs(pipeline, stage, context))) for stage in stages)
    return all(before.recorded(stage, each) is not None for stage, each in inputs)


def _job(pipeline: ResolvedPipeline, owner: Owner, context: RenderContext) -> Manifest:
    """Returns the Job, whose name has a hash of its template: a template cannot be changed."""
    spec = {
        "backoffLimit": _ATTEMPTS - 1,
        "activeDeadlineSeconds": _DEADLINE_SECONDS,
        "ttlSecondsAfterFinished": RETRY_SECONDS,
        "template": _template(pipeline, context),
    }
    return manifest(owner, "batch/v1", "Job", f"{PURPOSE}-{short_hash(spec)}", spec=spec)


def _template(pipeline: ResolvedPipeline, context: RenderContext) -> Manifest:
    spec = pipeline.spec
    source = models.volume_source(pipeline.name, spec)
    assert source is not None
    mounted = [pods.TMP, pods.mounted(pods.MODELS, source, names.MODELS_DIRECTORY, read_only=False)]
    mounted += pods.extra_mounts(spec.talker.extra_volumes)
    process = models.fetch_process(spec.model, STAGES, pods.fetch_environment(spec.talker.env))
    # A gateway downloads with these resources too, and there is room for them beside the pods that serve.
    container = pods.container(
        spec, "fetch", context.image, spec.gateway.resources, process, mounts=[mount for _, mount in mounted]
    )
    return {
        "metadata": {"labels": names.labels(pipeline.name, PURPOSE)},
        "spec": {
            **pods.pod_base(pipeline, Stage.TALKER, pods.USER),
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [volume for volume, _ in mounted],
            "affinity": _near_stages(pipeline.name),
            **omit_empty(
                nodeSelector=dict(spec.talker.node_selector), tolerations=pods.tolerations(spec.talker.tolerations)
            ),
        },
    }


def _near_stages(pipeline: str) -> dict[str, Any]:
    """Returns a preference for the node of the stages, to which a volume with ReadWriteOnce is attached."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {names.PIPELINE_LABEL: pipeline, names.COMPONENT_LABEL: Stage.TALKER.value}},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
