"""The release record: images, model generation and pod templates, kept so that an operator upgrade restarts no pod.

A template is rendered again only if its inputs have changed; otherwise the recorded one is applied unchanged.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import non_defaults, read_record, short_hash
from syrinx_operator.cluster.state import STAGES, Component, Manifest, Observed, OperatorConfig, Owner, is_owned
from syrinx_operator.resource.spec import PipelineSpec, TTSPipeline


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


class Release(Struct, frozen=True, kw_only=True):
    """The release record (ConfigMap NAME-release)."""

    image: str
    """Stage image if the spec names none: the operator's default when the pipeline was created."""
    redis_image: str
    generation: str
    """Model generation; stages of different generations exchange no data."""
    generation_inputs: dict[str, Any]
    """The inputs of `generation`, which is kept while these are equal."""
    templates: dict[Component, FrozenTemplate] = {}


class RenderContext(Struct, frozen=True):
    """What pod templates depend on besides the spec."""

    image: str
    redis_image: str
    generation: str
    password_uid: str | None
    """UID of the managed Redis's Secret; None with an external Redis."""


def recorded_release(owner: Owner, observed: Observed) -> Release | None:
    """Returns the release record; None if there is no readable one, in which case all templates are rendered."""
    return read_record(owner, observed, "release", Release)


def resolve_release(pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig) -> Release:
    """Returns the release with recorded images and templates, and a new generation only if its inputs changed."""
    before = recorded_release(owner, observed)
    image = before.image if before else _live_image(owner, observed, STAGES) or config.stages_image
    redis = before.redis_image if before else _live_image(owner, observed, (Component.REDIS,)) or config.redis_image
    inputs = _generation_inputs(pipeline.spec, owner, pipeline.spec.image or image)
    return Release(
        image=image,
        redis_image=redis,
        generation=before.generation if before and before.generation_inputs == inputs else short_hash(inputs),
        generation_inputs=inputs,
        templates=before.templates if before else {},
    )


def render_context(spec: PipelineSpec, release: Release, observed: Observed) -> RenderContext:
    """Returns the context of all templates. Raises ValueError if the managed Redis has no password Secret yet."""
    if spec.connector.managed and observed.password_uid is None:
        raise ValueError("the managed Redis's password Secret must exist before its pods are planned")
    return RenderContext(
        image=spec.image or release.image,
        redis_image=spec.connector.image or release.redis_image,
        generation=release.generation,
        password_uid=observed.password_uid if spec.connector.managed else None,
    )


def freeze(
    release: Release, component: Component, inputs: dict[str, Any], render: Callable[[], Manifest]
) -> FrozenTemplate:
    """Returns the recorded template if its inputs are unchanged, otherwise a newly rendered one."""
    inputs_hash = short_hash(inputs)
    before = release.templates.get(component)
    if before is not None and before.inputs == inputs_hash and before.intact:
        return before
    return FrozenTemplate(inputs_hash, with_template_label(render()))


def with_template_label(template: Manifest) -> Manifest:
    """Returns a pod template with its hash as a label."""
    metadata = template["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != names.TEMPLATE_LABEL}
    bare = {**template, "metadata": {**metadata, "labels": labels}}
    return {**template, "metadata": {**metadata, "labels": {**labels, names.TEMPLATE_LABEL: short_hash(bare)}}}


def _generation_inputs(spec: PipelineSpec, owner: Owner, image: str) -> dict[str, Any]:
    """Returns what determines the weights and the code of stages that exchange data.

    The owner's UID is included because pipelines of the same name, in two namespaces or clusters, may share a Redis.
    """
    model = non_defaults(spec.model)
    weights: dict[str, Any] = {field: value for field, value in model.items() if field in ("bundled", "path", "claim")}
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
    # Omitted for the default, so that an operator upgrade creates no new generation.
    topology = {} if spec.topology == "Separate" else {"topology": spec.topology}
    return {"owner": owner.uid, "image": image, "model": weights, **topology}


def _live_image(owner: Owner, observed: Observed, components: tuple[Component, ...]) -> str | None:
    """Returns the image of an existing workload, in case the record was deleted."""
    workloads = (observed.objects.get(names.workload_key(owner.name, component)) for component in components)
    owned = (each["spec"]["template"]["spec"] for each in workloads if each is not None and is_owned(each, owner))
    return next((pod["containers"][0]["image"] for pod in owned), None)
