"""Fields of the checkpoint: where it is, and the cache of downloads."""

from typing import Annotated

from msgspec import Meta

from syrinx_operator.resource.fields import pods
from syrinx_operator.resource.fields.pods import KUBERNETES, Object


class HuggingFace(Object, frozen=True, kw_only=True):
    """A checkpoint on a Hugging Face hub, downloaded before a stage starts."""

    id: Annotated[str, Meta(pattern="^[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*$", max_length=200)]
    """Repository, for example Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice."""
    revision: Annotated[str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9][-A-Za-z0-9._/]*$")]
    """Commit, tag or branch. Only a commit (40 hex digits) pins the weights."""
    token_secret: pods.SecretKey | None = None
    """Access token, for gated or private repositories. Default: none."""
    endpoint: Annotated[str, Meta(pattern="^https?://[^ ]+$", max_length=512)] | None = None
    """URL of another hub, for example a mirror. Default: the public hub."""


class S3(Object, frozen=True, kw_only=True):
    """A checkpoint in an S3 bucket, downloaded before a stage starts."""

    uri: Annotated[
        str,
        Meta(
            max_length=1024,
            pattern="^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[A-Za-z0-9][-A-Za-z0-9._=+]*)*/?$",
        ),
    ]
    """s3://BUCKET/PREFIX of its config.json, for example s3://models/qwen/1.0. Give each version its own prefix."""
    endpoint: (
        Annotated[
            str,
            Meta(
                max_length=512,
                pattern=r"^https?://([A-Za-z0-9][-A-Za-z0-9.]*|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?/?$",
                description="scheme, host and port, for example https://minio.storage:9000",
            ),
        ]
        | None
    ) = None
    """URL of another S3 server. Default: AWS."""
    region: Annotated[str, Meta(pattern="^[a-z0-9][-a-z0-9]*$", max_length=64)] | None = None
    """Region of the bucket. Default: that of the pods' identity, otherwise us-east-1."""
    credentials_secret: pods.Name | None = None
    """Secret with the keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary credentials, AWS_SESSION_TOKEN.
    Default: the identity of the pods' ServiceAccount; without one, requests are anonymous."""


class ModelImage(Object, frozen=True, kw_only=True):
    """A checkpoint in an OCI image or artifact, mounted as a volume. Needs Kubernetes 1.35, or 1.33 with the feature
    gate ImageVolume."""

    reference: Annotated[str, Meta(min_length=1, max_length=512, pattern=pods.IMAGE)]
    """The image. Only a digest pins the weights. The pipeline's imagePullPolicy and imagePullSecrets apply."""
    path: Annotated[pods.Line, Meta(max_length=1024)] | None = None
    """Directory of the checkpoint in the image. Default: its root."""


class NfsVolume(Object, frozen=True, kw_only=True):
    """A directory of an NFS server."""

    server: Annotated[pods.Line, Meta(max_length=253)]
    """Host name or IP address of the server."""
    path: Annotated[str, Meta(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=1024)]
    """Directory that the server exports."""


class CsiVolume(Object, frozen=True, kw_only=True):
    """A volume of a CSI driver that serves ephemeral volumes."""

    driver: pods.Name
    """Name of the driver."""
    volume_attributes: pods.Annotations = {}
    """Properties of the volume, which the driver defines."""
    node_publish_secret: pods.Name | None = None
    """Secret that the driver gets to mount the volume. Default: none."""


class ModelVolume(Object, frozen=True, kw_only=True):
    """A volume without a PersistentVolumeClaim. Exactly one of `nfs` and `csi`."""

    nfs: NfsVolume | None = None
    """A directory of an NFS server."""
    csi: CsiVolume | None = None
    """A volume of a CSI driver."""


class ModelCache(Object, frozen=True, kw_only=True):
    """Cache of downloaded checkpoints, shared by all pods. Exactly one of `claim` and `storage`."""

    claim: pods.Name | None = None
    """Name of an existing PersistentVolumeClaim. It is kept when the pipeline is deleted."""
    storage: pods.Storage | None = None
    """A volume that is created for the pipeline and deleted with it."""


class ModelSpec(Object, frozen=True, kw_only=True):
    """The Qwen3-TTS checkpoint to serve: exactly one of `bundled`, `path`, `huggingFace`, `s3` and
    `image`."""

    bundled: bool = False
    """Serve the small voice that is included in Syrinx."""
    path: Annotated[pods.Line, Meta(max_length=1024)] | None = None
    """Directory of a checkpoint in the official layout (config.json, model.safetensors, speech_tokenizer/). `syrinx up`
    resolves a relative path from the directory of the resource's file. On Kubernetes it is a directory in `claim` or
    `volume`, or an absolute path in the container."""
    claim: Annotated[pods.Name | None, KUBERNETES] = None
    """PersistentVolumeClaim that contains `path`. It is mounted read-only."""
    volume: Annotated[ModelVolume | None, KUBERNETES] = None
    """Volume that contains `path`, instead of `claim`. It is mounted read-only."""
    hugging_face: Annotated[HuggingFace | None, KUBERNETES] = None
    """A checkpoint on a Hugging Face hub, downloaded before a stage starts."""
    s3: Annotated[S3 | None, KUBERNETES] = None
    """A checkpoint in an S3 bucket, downloaded before a stage starts."""
    image: Annotated[ModelImage | None, KUBERNETES] = None
    """A checkpoint in an OCI image or artifact, mounted as a volume."""
    cache: Annotated[ModelCache | None, KUBERNETES] = None
    """Cache of downloaded checkpoints: exactly one of `claim` and `storage`. Default: none; each new pod downloads the
    checkpoint."""
    name: Annotated[pods.Line, Meta(max_length=128)] | None = None
    """Name that clients send as `model`. Default: syrinx-us for the bundled voice, otherwise the last component of the
    path, URI, image or repository."""

    @property
    def is_downloaded(self) -> bool:
        """Whether the checkpoint is downloaded before a stage starts."""
        return self.hugging_face is not None or self.s3 is not None

    @property
    def default_name(self) -> str:
        """The last component of the source; empty for the bundled voice."""
        if self.image is not None:
            source = (self.image.path or "").strip("./") or self.image.reference.partition("@")[0]
            return source.rpartition("/")[2].partition(":")[0]
        if self.hugging_face is not None:
            return self.hugging_face.id.rpartition("/")[2]
        return (self.path or (self.s3.uri if self.s3 is not None else "")).rstrip("/").rpartition("/")[2]
