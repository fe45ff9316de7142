"""Where a stage finds the checkpoint: its directory, the volume it lies in, and what fetches it."""

from __future__ import annotations

import posixpath

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.environment import secret_value
from syrinx_operator.cluster.plan.objects import claim_spec, given, manifest, present
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.spec import HuggingFace, ModelSpec

MODELS_VOLUME = "syrinx-models"


def directory(model: ModelSpec) -> str:
    """What a stage's configuration names as its checkpoint."""
    if model.hugging_face is not None:
        return posixpath.join(names.MODELS_DIRECTORY, *hub_directory(model.hugging_face))
    if model.path is None:
        return "bundled"
    if model.claim is not None:
        return posixpath.normpath(posixpath.join(names.MODELS_DIRECTORY, model.path.lstrip("/")))
    return model.path


def hub_directory(hub: HuggingFace) -> tuple[str, str]:
    """Where `syrinx_stages.fetch` puts a checkpoint, below the cache."""
    return hub.id.replace("/", "--"), hub.revision


def volume(pipeline: str, model: ModelSpec) -> Manifest | None:
    """The volume at /models; None where the checkpoint is in the image or in a volume of the user's."""
    if model.claim is not None:
        return _claim(model.claim, read_only=True)
    if model.hugging_face is None:
        return None
    if model.cache is None:
        return {"name": MODELS_VOLUME, "emptyDir": {}}
    return _claim(model.cache.claim or names.models_claim(pipeline), read_only=False)


def mount(*, read_only: bool) -> Manifest:
    """The mount of the above."""
    return {"name": MODELS_VOLUME, "mountPath": names.MODELS_DIRECTORY, **present(readOnly=read_only or None)}


def fetch_command(hub: HuggingFace, stage: Component) -> list[str]:
    """What fetches the files that a stage needs."""
    module = ["python", "-m", "syrinx_stages.fetch"]
    which = ["--id", hub.id, "--revision", hub.revision, "--parts", stage.value]
    return [*module, *which, "--cache", names.MODELS_DIRECTORY]


def fetch_environment(hub: HuggingFace) -> list[Manifest]:
    """How to reach the hub."""
    environment: list[Manifest] = []
    if hub.endpoint is not None:
        environment.append({"name": "HF_ENDPOINT", "value": hub.endpoint})
    if (token := hub.token_secret) is not None:
        environment.append({"name": "HF_TOKEN", "valueFrom": secret_value(token)})
    return environment


def claims(owner: Owner, model: ModelSpec) -> list[Manifest]:
    """The PersistentVolumeClaims to make for checkpoints."""
    if model.cache is None or model.cache.storage is None:
        return []
    name = names.models_claim(owner.name)
    spec = claim_spec(model.cache.storage)
    return [manifest(owner, "v1", "PersistentVolumeClaim", name, "models", spec=spec)]


def inputs(model: ModelSpec, stage: Component) -> Manifest:
    """What a stage's pods depend on: a cache's size is not among it, the model's name only in a gateway."""
    fields = given(model)
    if stage is not Component.GATEWAY:
        fields.pop("name", None)
    if model.cache is not None:
        fields["cache"] = {"claim": model.cache.claim}
    return fields


def _claim(name: str, *, read_only: bool) -> Manifest:
    source = {"claimName": name, **present(readOnly=read_only or None)}
    return {"name": MODELS_VOLUME, "persistentVolumeClaim": source}
