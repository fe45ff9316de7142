"""What a pipeline runs for good: images, model generation and pod templates, recorded so that an operator upgrade
restarts no pod.

A template is rendered only when what it is made from has changed; else the recorded one is applied again as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import digest, given, manifest, owned, recorded_text
from syrinx_operator.cluster.state import STAGES, Component, Manifest, Observed, OperatorConfig, Owner
from syrinx_operator.resource.spec import PipelineSpec, TTSPipeline


class FrozenTemplate(Struct, frozen=True):
    """A pod template and the hash of what it was made from."""

    inputs: str
    template: Manifest

    @property
    def hash(self) -> str:
        """What its pods carry as `syrinx.dev/template`."""
        value: str = self.template["metadata"]["labels"][names.TEMPLATE_LABEL]
        return value

    @property
    def intact(self) -> bool:
        """Whether nobody has edited the record by hand."""
        try:
            return labelled(self.template) == self.template
        except (KeyError, TypeError):
            return False


class Release(Struct, frozen=True, kw_only=True):
    """The release record (ConfigMap NAME-release)."""

    image: str
    """Of the stages, if the pipeline names none: the operator's when the pipeline was made."""
    redis_image: str
    """Of the managed Redis, if the pipeline names none."""
    generation: str
    """Model generation: stages of different generations never meet."""
    generation_inputs: dict[str, Any]
    """What `generation` was made from; it is kept while these are equal."""
    templates: dict[Component, FrozenTemplate] = {}


class Running(Struct, frozen=True):
    """What the pods of a pipeline are made with, besides its spec."""

    image: str
    redis_image: str
    generation: str
    password_uid: str | None
    """UID of the managed Redis's Secret; None with a Redis of the user's."""


def recorded(owner: Owner, observed: Observed) -> Release | None:
    """The release record, or None if there is none that can be read: then everything is rendered anew."""
    text = recorded_text(owner, observed, names.release_key(owner.name), names.RELEASE_KEY)
    try:
        return msgspec.json.decode(text, type=Release)
    except msgspec.MsgspecError:
        return None


def resolved(pipeline: TTSPipeline, owner: Owner, observed: Observed, config: OperatorConfig) -> Release:
    """The release without its templates: images as they were first taken, the generation as long as it holds."""
    before = recorded(owner, observed)
    image = before.image if before else _live_image(owner, observed, STAGES) or config.stages_image
    redis = before.redis_image if before else _live_image(owner, observed, (Component.REDIS,)) or config.redis_image
    inputs = _generation_inputs(pipeline.spec, owner, pipeline.spec.image or image)
    kept = before is not None and before.generation_inputs == inputs
    return Release(
        image=image,
        redis_image=redis,
        generation=before.generation if before and kept else digest(inputs),
        generation_inputs=inputs,
        templates=before.templates if before else {},
    )


def running(spec: PipelineSpec, release: Release, observed: Observed) -> Running:
    """What pods are made with now. Raises `ValueError` if the managed Redis has no password yet."""
    if spec.connector.managed and observed.password_uid is None:
        raise ValueError("the managed Redis's password Secret must be there before its pods are planned")
    return Running(
        image=spec.image or release.image,
        redis_image=spec.connector.image or release.redis_image,
        generation=release.generation,
        password_uid=observed.password_uid if spec.connector.managed else None,
    )


def frozen(
    release: Release, component: Component, inputs: dict[str, Any], render: Callable[[], Manifest]
) -> FrozenTemplate:
    """The recorded template if its inputs are still the same, else a new one, labelled with its hash."""
    hashed = digest(inputs)
    before = release.templates.get(component)
    if before is not None and before.inputs == hashed and before.intact:
        return before
    return FrozenTemplate(hashed, labelled(render()))


def labelled(template: Manifest) -> Manifest:
    """A pod template with its hash as a label."""
    metadata = template["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != names.TEMPLATE_LABEL}
    bare = {**template, "metadata": {**metadata, "labels": labels}}
    return {**template, "metadata": {**metadata, "labels": {**labels, names.TEMPLATE_LABEL: digest(bare)}}}


def release_config_map(owner: Owner, release: Release) -> Manifest:
    """The release record as an object."""
    data = {names.RELEASE_KEY: msgspec.json.encode(release, order="sorted").decode()}
    return manifest(owner, "v1", "ConfigMap", names.release_key(owner.name).name, "release", data=data)


def _generation_inputs(spec: PipelineSpec, owner: Owner, image: str) -> dict[str, Any]:
    """What the weights and the code that shares streams follow from.

    The owner is one of them: two pipelines of one name may share a Redis, from two namespaces or clusters.
    """
    model = given(spec.model)
    weights: dict[str, Any] = {field: value for field, value in model.items() if field in ("bundled", "path", "claim")}
    if spec.model.hugging_face is not None:
        hub = given(spec.model.hugging_face)
        weights["huggingFace"] = {field: value for field, value in hub.items() if field != "tokenSecret"}
    if volumes := _volumes_of(spec, spec.model.path):
        weights["volumes"] = volumes
    # Named only where it is not what it always was: an upgrade of the operator makes no new generation.
    topology = {} if spec.topology == "Separate" else {"topology": spec.topology}
    return {"owner": owner.uid, "image": image, "model": weights, **topology}


def _volumes_of(spec: PipelineSpec, path: str | None) -> list[Any]:
    """The user's own volumes that the checkpoint at an absolute path lies in."""
    if path is None or spec.model.claim is not None:
        return []
    return [
        given(volume)
        for stage in (spec.gateway, spec.talker, spec.codec)
        for volume in stage.extra_volumes
        if f"{path}/".startswith(volume.mount_path.rstrip("/") + "/")
    ]


def _live_image(owner: Owner, observed: Observed, components: tuple[Component, ...]) -> str | None:
    """Of a workload that runs already, in case the record was deleted."""
    workloads = (owned(owner, observed, names.workload_key(owner.name, component)) for component in components)
    for workload in filter(None, workloads):
        image: str = workload["spec"]["template"]["spec"]["containers"][0]["image"]
        return image
    return None
