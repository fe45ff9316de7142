"""The checkpoint in the pods: its volume, and the process that downloads it."""

from collections.abc import Sequence

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Component, Manifest
from syrinx_operator.cluster.plan.objects import omit_empty, secret_ref
from syrinx_operator.resource.fields.model import S3, HuggingFace, ModelSpec, ModelVolume
from syrinx_operator.resource.fields.pods import SecretKey
from syrinx_operator.resource.spec import PipelineSpec

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_SESSION_TOKEN = "AWS_SESSION_TOKEN"


def volume_source(pipeline: str, spec: PipelineSpec) -> Manifest | None:
    """Returns the volume at /models; None if the checkpoint is in the stages' image or in one of the user's volumes."""
    model = spec.model
    if model.claim is not None:
        return {"persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}}
    if model.volume is not None:
        return _inline_volume(model.volume)
    if model.image is not None:
        return {"image": {"reference": model.image.reference, **omit_empty(pullPolicy=spec.image_pull_policy)}}
    if not model.is_downloaded:
        return None
    if model.cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": model.cache.claim or f"{pipeline}-models"}}


def source_name(model: ModelSpec) -> str:
    """Returns the place that a checkpoint is downloaded from."""
    if (hub := model.hugging_face) is not None:
        return f"{hub.id} at {hub.revision}"
    assert model.s3 is not None
    return model.s3.uri


def fetch_process(model: ModelSpec, stages: Sequence[Component], environment: Sequence[Manifest]) -> Manifest:
    """Returns command and environment that download the files of stages; `environment` replaces variables by name."""
    arguments = ["--parts", *(stage.value for stage in stages), "--cache", names.MODELS_DIRECTORY]
    source, own = _hub(model.hugging_face) if model.hugging_face is not None else _s3(model.s3)
    given = {variable["name"] for variable in environment}
    return {
        "command": ["python", "-m", "syrinx_stages.fetch", *source, *arguments],
        "env": [*(variable for variable in own if variable["name"] not in given), *environment],
    }


def _hub(hub: HuggingFace) -> tuple[list[str], list[Manifest]]:
    environment: list[Manifest] = [{"name": "HF_ENDPOINT", "value": hub.endpoint}] if hub.endpoint is not None else []
    if hub.token_secret is not None:
        environment.append({"name": "HF_TOKEN", "valueFrom": secret_ref(hub.token_secret)})
    return ["--id", hub.id, "--revision", hub.revision], environment


def _s3(s3: S3 | None) -> tuple[list[str], list[Manifest]]:
    assert s3 is not None
    environment: list[Manifest] = [{"name": "AWS_REGION", "value": s3.region}] if s3.region is not None else []
    if (secret := s3.credentials_secret) is not None:
        for name in _CREDENTIALS:
            environment.append({"name": name, "valueFrom": secret_ref(SecretKey(name=secret, key=name))})
        token = secret_ref(SecretKey(name=secret, key=_SESSION_TOKEN))
        token["secretKeyRef"]["optional"] = True
        environment.append({"name": _SESSION_TOKEN, "valueFrom": token})
    return ["--s3", s3.uri, *(["--endpoint", s3.endpoint] if s3.endpoint is not None else [])], environment


def _inline_volume(volume: ModelVolume) -> Manifest:
    if (nfs := volume.nfs) is not None:
        return {"nfs": {"server": nfs.server, "path": nfs.path, "readOnly": True}}
    assert volume.csi is not None
    secret = volume.csi.node_publish_secret
    optional = omit_empty(
        volumeAttributes=dict(volume.csi.volume_attributes),
        nodePublishSecretRef={"name": secret} if secret is not None else None,
    )
    return {"csi": {"driver": volume.csi.driver, "readOnly": True, **optional}}
