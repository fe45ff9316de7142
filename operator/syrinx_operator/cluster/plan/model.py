"""The checkpoint of a stage: its directory, its volume, and the container that downloads it."""

from __future__ import annotations

import posixpath

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import claim_spec, manifest, non_defaults, omit_empty, secret_ref
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.spec import HuggingFace, ModelSpec

MODELS_VOLUME = "syrinx-models"


def directory(model: ModelSpec) -> str:
    """Returns the checkpoint in a stage's start configuration: a path, or `bundled`."""
    if model.hugging_face is not None:
        # The layout of `syrinx_stages.fetch`.
        return posixpath.join(
            names.MODELS_DIRECTORY, model.hugging_face.id.replace("/", "--"), model.hugging_face.revision
        )
    if model.path is None:
        return "bundled"
    if model.claim is not None:
        return posixpath.normpath(posixpath.join(names.MODELS_DIRECTORY, model.path.lstrip("/")))
    return model.path


def volume(pipeline: str, model: ModelSpec) -> Manifest | None:
    """Returns the volume at /models; None if the checkpoint is in the image or in one of the user's volumes."""
    if model.claim is not None:
        return _claim(model.claim, read_only=True)
    if model.hugging_face is None:
        return None
    if model.cache is None:
        return {"name": MODELS_VOLUME, "emptyDir": {}}
    return _claim(model.cache.claim or names.models_claim(pipeline), read_only=False)


def mount(*, read_only: bool) -> Manifest:
    """Returns the mount of `volume`."""
    return {"name": MODELS_VOLUME, "mountPath": names.MODELS_DIRECTORY, **omit_empty(readOnly=read_only or None)}


def fetch_command(hub: HuggingFace, stage: Component) -> list[str]:
    """Returns the command that downloads the files a stage needs."""
    module = ["python", "-m", "syrinx_stages.fetch"]
    files = ["--id", hub.id, "--revision", hub.revision, "--parts", stage.value]
    return [*module, *files, "--cache", names.MODELS_DIRECTORY]


def fetch_environment(hub: HuggingFace) -> list[Manifest]:
    """Returns the environment variables with the hub's endpoint and token."""
    environment: list[Manifest] = []
    if hub.endpoint is not None:
        environment.append({"name": "HF_ENDPOINT", "value": hub.endpoint})
    if (token := hub.token_secret) is not None:
        environment.append({"name": "HF_TOKEN", "valueFrom": secret_ref(token)})
    return environment


def claims(owner: Owner, model: ModelSpec) -> list[Manifest]:
    """Returns the PersistentVolumeClaims for downloaded checkpoints."""
    if model.cache is None or model.cache.storage is None:
        return []
    name = names.models_claim(owner.name)
    return [manifest(owner, "v1", "PersistentVolumeClaim", name, "models", spec=claim_spec(model.cache.storage))]


def inputs(model: ModelSpec, stage: Component) -> Manifest:
    """Returns the fields that a stage's pods depend on: not a cache's size, and the model's name only for gateways."""
    fields = non_defaults(model)
    if stage is not Component.GATEWAY:
        fields.pop("name", None)
    if model.cache is not None:
        fields["cache"] = {"claim": model.cache.claim}
    return fields


def _claim(name: str, *, read_only: bool) -> Manifest:
    source = {"claimName": name, **omit_empty(readOnly=read_only or None)}
    return {"name": MODELS_VOLUME, "persistentVolumeClaim": source}
