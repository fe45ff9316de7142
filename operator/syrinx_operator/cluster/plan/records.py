"""Records of a pipeline in ConfigMaps: its release and live settings; and the stages' start configuration.

The release record keeps images, model generation and pod templates, so that an operator upgrade restarts no pod: a
template is rendered again only if its inputs have changed; otherwise the recorded one is applied unchanged.
"""

import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import (
    REDIS,
    STAGES,
    Component,
    Manifest,
    Observed,
    OperatorConfig,
    Owner,
    Settings,
)
from syrinx_operator.cluster.plan.objects import non_defaults, read_record, short_hash
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.model import ModelSpec
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec
from syrinx_operator.resource.stage_config import stage_fields
from syrinx_stages.contract.checkpoints import hub_directory, s3_directory
from syrinx_stages.contract.settings import (
    CodecSettings,
    GatewaySettings,
    StageConfig,
    TalkerSettings,
    TlsFiles,
)
from syrinx_stages.contract.stages import Stage

AnyStage = GatewaySpec | TalkerSpec | CodecSpec

LIVE_FIELDS: Mapping[Stage, frozenset[str]] = {
    Stage.GATEWAY: frozenset({*GatewaySettings.__struct_fields__, "replicas", "autoscaling", "service", "route"}),
    Stage.TALKER: frozenset({*TalkerSettings.__struct_fields__, "replicas", "autoscaling"}),
    Stage.CODEC: frozenset({*CodecSettings.__struct_fields__, "replicas", "autoscaling"}),
}
"""Python names of the stage spec fields that the pod template does not depend on."""


class FrozenTemplate(Struct, frozen=True):
    """A pod template and the hash of its inputs."""

    inputs: str
    template: Manifest

    @property
    def hash(self) -> str:
        """The value of the label `syrinx.dev/template` on its pods."""
        value: str = self.template["metadata"]["labels"][names.TEMPLATE_LABEL]
        return value

    @property
    def intact(self) -> bool:
        """Whether the recorded template matches its hash, as it does unless edited by hand."""
        try:
            return with_template_label(self.template) == self.template
        except (KeyError, TypeError):
            return False


class Candidate(Struct, frozen=True, kw_only=True):
    """A version that a canary tests, recorded so that an upgrade of the operator does not change it."""

    target: str
    """Hash of `templates`."""
    templates: dict[Stage, FrozenTemplate]
    """The pod templates once it is promoted."""
    pods: dict[Stage, FrozenTemplate]
    """The pod templates of the canary."""


class Release(Struct, frozen=True, kw_only=True):
    """The release record (ConfigMap NAME-release)."""

    image: str
    """Stage image if the spec names none: the operator's default when the pipeline was created."""
    redis_image: str
    generation: str
    """Model generation; stages of different generations exchange no data."""
    generation_inputs: dict[str, Any]
    """The inputs of `generation`, which is kept while these are equal."""
    templates: dict[Stage, FrozenTemplate] = {}
    redis: dict[RedisForm, FrozenTemplate] = {}
    """The pod template of the managed Redis."""
    shared: str = ""
    """Hash of what a canary would share with the running version; empty until it is planned."""
    candidate: Candidate | None = None
    """The version that a canary tests, or whose canary has failed."""

    @property
    def all_templates(self) -> Mapping[Component, FrozenTemplate]:
        """The pod templates of the stages, and of the managed Redis."""
        return dict([*self.templates.items(), *self.redis.items()])

    def recorded(self, component: Component, inputs: str) -> FrozenTemplate | None:
        """Returns the recorded template with these inputs, of the release or of its candidate."""
        known = [self.all_templates.get(component)]
        if self.candidate is not None and isinstance(component, Stage):
            known.append(self.candidate.templates.get(component))
        return next((each for each in known if each is not None and each.inputs == inputs), None)


class RenderContext(Struct, frozen=True):
    """What pod templates depend on besides the spec."""

    image: str
    redis_image: str
    generation: str
    password_uid: str | None
    """UID of the managed Redis's Secret; None with an external Redis."""
    token_uid: str
    """UID of the Secret with the token of the settings ports."""


def resolve_release(
    pipeline: ResolvedPipeline, owner: Owner, before: Release | None, observed: Observed, config: OperatorConfig
) -> Release:
    """Returns the release with recorded images and templates, and a new generation only if its inputs changed.

    `before` is the recorded release. Without a readable one all templates are rendered.
    """
    image = before.image if before else _live_image(owner, observed, STAGES) or config.stages_image
    redis = before.redis_image if before else _live_image(owner, observed, REDIS) or config.redis_image
    inputs = _generation_inputs(pipeline.spec, owner, pipeline.spec.image or image)
    return Release(
        image=image,
        redis_image=redis,
        generation=before.generation if before and before.generation_inputs == inputs else short_hash(inputs),
        generation_inputs=inputs,
        templates=before.templates if before else {},
        redis=before.redis if before else {},
        candidate=before.candidate if before else None,
    )


def recorded_release(owner: Owner, observed: Observed) -> Release | None:
    """Returns the release in the record; None if there is no readable one."""
    return read_record(owner, observed, "release", Release)


def render_context(spec: PipelineSpec, release: Release, observed: Observed) -> RenderContext:
    """Returns the context of all templates. Raises ValueError if a Secret does not exist yet."""
    if observed.token_uid is None:
        raise ValueError("the Secret of the settings ports must exist before the stages' pods are planned")
    if spec.connector.managed and observed.password_uid is None:
        raise ValueError("the managed Redis's password Secret must exist before its pods are planned")
    return RenderContext(
        image=spec.image or release.image,
        redis_image=spec.connector.image or release.redis_image,
        generation=release.generation,
        password_uid=observed.password_uid if spec.connector.managed else None,
        token_uid=observed.token_uid,
    )


def freeze(
    release: Release, component: Component, inputs: dict[str, Any], token_uid: str, render: Callable[[], Manifest]
) -> FrozenTemplate:
    """Returns the recorded template if its inputs and the token in it are unchanged, otherwise a newly rendered one."""
    inputs_hash = short_hash(inputs)
    before = release.recorded(component, inputs_hash)
    # Templates of Redis have no token.
    if (
        before is not None
        and before.intact
        and before.template["metadata"].get("annotations", {}).get(names.TOKEN_ANNOTATION, token_uid) == token_uid
    ):
        return before
    return FrozenTemplate(inputs_hash, with_template_label(render()))


def with_template_label(template: Manifest) -> Manifest:
    """Returns a pod template with its hash as a label."""
    metadata = template["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != names.TEMPLATE_LABEL}
    bare = {**template, "metadata": {**metadata, "labels": labels}}
    return {**template, "metadata": {**metadata, "labels": {**labels, names.TEMPLATE_LABEL: short_hash(bare)}}}


def _generation_inputs(spec: PipelineSpec, owner: Owner, image: str) -> dict[str, Any]:
    """Returns what determines the weights and the code of stages that exchange data, and the Redis between them."""
    model = non_defaults(spec.model)
    sources = ("bundled", "path", "claim", "volume", "image")
    weights: dict[str, Any] = {field: value for field, value in model.items() if field in sources}
    if spec.model.s3 is not None:
        bucket = non_defaults(spec.model.s3)
        weights["s3"] = {field: value for field, value in bucket.items() if field != "credentialsSecret"}
    if spec.model.hugging_face is not None:
        hub = non_defaults(spec.model.hugging_face)
        weights["huggingFace"] = {field: value for field, value in hub.items() if field != "tokenSecret"}
    if spec.model.path is not None and spec.model.claim is None:
        # The user's volumes that contain the checkpoint.
        volumes = [
            non_defaults(volume)
            for stage in (spec.gateway, spec.talker, spec.codec)
            for volume in stage.extra_volumes
            if f"{spec.model.path}/".startswith(volume.mount_path.rstrip("/") + "/")
        ]
        weights |= {"volumes": volumes} if volumes else {}
    # Streams of before stay in the Redis of before.
    redis: dict[str, int] = {} if spec.connector.replicas == 1 else {"redisReplicas": spec.connector.replicas}
    redis |= {} if spec.connector.cells == 1 else {"cells": spec.connector.cells}
    # The owner's UID, because pipelines of the same name, in two namespaces or clusters, may share a Redis.
    return {"owner": owner.uid, "image": image, "model": weights, **redis}


def _live_image(owner: Owner, observed: Observed, components: tuple[Component, ...]) -> str | None:
    """Returns the image of an existing workload, in case the record was deleted."""
    workloads = (observed.objects.get(names.workload_key(owner.name, component)) for component in components)
    pods = (each["spec"]["template"]["spec"] for each in workloads if each is not None)
    return next((pod["containers"][0]["image"] for pod in pods), None)


def start_config(pipeline: ResolvedPipeline, stage: Stage, generation: str) -> str:
    """Returns a stage's start configuration as JSON, without defaults, live settings and the replica's name."""
    place = names.OWN if stage in pipeline.workloads else names.COLOCATED
    own = stage_fields(pipeline, stage)
    if stage is Stage.GATEWAY:
        gateway = pipeline.gateway.spec
        own["playground"] = gateway.playground is True
        if gateway.api_keys is not None:
            own["api_keys_file"] = names.API_KEYS_FILE
        if gateway.tls is not None:
            own["tls"] = TlsFiles(certificate=f"{names.TLS_DIRECTORY}/tls.crt", key=f"{names.TLS_DIRECTORY}/tls.key")
    config = StageConfig(
        pipeline=pipeline.name,
        generation=generation,
        model=model_directory(pipeline.spec.model),
        host="",
        admin_port=place.admin_port,
        settings_port=place.settings_port,
        settings_file=place.settings_file,
        **own,
    )
    return json.dumps(non_defaults(config), sort_keys=True)


def model_directory(model: ModelSpec) -> str:
    """Returns the checkpoint in a stage's start configuration: a path, or `bundled`."""
    if (hub := model.hugging_face) is not None:
        return posixpath.join(names.MODELS_DIRECTORY, hub_directory(hub.id, hub.revision))
    if (s3 := model.s3) is not None:
        return posixpath.join(names.MODELS_DIRECTORY, s3_directory(s3.uri, s3.endpoint or ""))
    path = model.image.path or "" if model.image is not None else model.path
    if path is not None and (model.claim, model.volume, model.image) != (None, None, None):
        return posixpath.normpath(posixpath.join(names.MODELS_DIRECTORY, path.lstrip("/")))
    return "bundled" if model.path is None else model.path


def settings(pipeline: ResolvedPipeline, stage: Stage, owner: Owner, observed: Observed) -> Settings:
    """Returns a stage's live settings. Their generation increases on a change and exceeds all known generations."""
    desired = msgspec.json.decode(msgspec.json.encode(pipeline.stage(stage).settings))
    recorded = recorded_settings(owner, stage, observed)
    reported = [each.reported.generation for each in observed.replicas_of(stage) if each.reported is not None]
    # A generation above the ConfigMap's was set by someone else or comes from a lost ConfigMap.
    highest = max(observed.status_generations.get(stage, 0), *reported, 0)
    if recorded is not None and recorded.settings == desired and recorded.generation >= max(highest, 1):
        return recorded
    return Settings(max(highest, recorded.generation if recorded else 0) + 1, desired)


def recorded_settings(owner: Owner, stage: Stage, observed: Observed) -> Settings | None:
    """Returns the live settings in a stage's ConfigMap; None if there is no readable one."""
    return read_record(owner, observed, stage, Settings, names.SETTINGS_KEY)
