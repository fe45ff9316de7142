"""The rules between a resource's fields: what its schema alone cannot say. The CRD says the same in CEL (`crd`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, structs

from syrinx_operator.resource.pods import EnvVar, ExtraVolume, Peer, PodFields, SecretName, Toleration
from syrinx_operator.resource.spec import (
    CodecSpec,
    ConnectorSpec,
    ModelSpec,
    PipelineSpec,
    RowBounds,
    StageSpec,
    TalkerSpec,
    TTSPipeline,
    TuningBounds,
)

NAME_LENGTH: Final = 40
"""Of a pipeline's name at most: the rest of an object's name follows it."""
RESERVED_ENV = frozenset(
    {"REDIS_URL", "REDIS_PASSWORD", "REDIS_CA_FILE", "POD_NAME", "HOME", "HF_TOKEN", "HF_ENDPOINT"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED"}
)
"""What Syrinx sets in its pods itself."""
RESERVED_PATHS = ("/etc/syrinx", "/models", "/tmp")
"""Where Syrinx mounts its own volumes."""
RESERVED_VOLUME_PREFIX = "syrinx-"
RESERVED_LABEL_PREFIXES = ("syrinx.dev/", "app.kubernetes.io/")
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
REDIS_URL: Final = (
    r"^rediss?://([^\s/@:?#\[\]]+@)?([A-Za-z0-9][-A-Za-z0-9._]*|\[[0-9A-Fa-f.:]+\])" + rf"(:{_PORT})?(/[0-9]*)?$"
)
"""SCHEME://[USER@]HOST[:PORT][/DB]; the host is a name, an IPv4 address, or an IPv6 address in brackets."""
PASSWORD_IN_URL: Final = "^[^/]*//[^/?#]*:[^/?#]*@"

PROCESS_FIELDS: Final = tuple((field.name, field.encode_name) for field in structs.fields(StageSpec))
"""What shapes a stage's process, in Python and in a resource: of a colocated codec, the talker's count."""

ADMIN_PORT: Final = 9090
"""Port of metrics and settings in every stage pod."""
GPU: Final = "nvidia.com/gpu"
"""What a container is given whole GPUs by."""

Path = tuple[str | int, ...]


class Violation(Struct, frozen=True):
    """A rule between fields that a resource breaks."""

    path: Path
    """The field to blame, from the resource's root."""
    message: str


def violations(pipeline: TTSPipeline) -> list[Violation]:
    """The rules that hold everywhere and that this resource breaks; empty if it is valid."""
    return list(_violations(pipeline))


def cluster_violations(pipeline: TTSPipeline) -> list[Violation]:
    """The rules that hold on Kubernetes only and that this resource breaks."""
    return list(_cluster_violations(pipeline))


def _violations(pipeline: TTSPipeline) -> Iterator[Violation]:
    spec = pipeline.spec
    yield from _pull_secret_rules(spec.image_pull_secrets)
    yield from _model_rules(spec.model)
    for stage, pods in (("gateway", spec.gateway), ("talker", spec.talker), ("codec", spec.codec)):
        yield from _pod_rules(("spec", stage), pods)
    yield from _rows_rules("talker", spec.talker)
    yield from _rows_rules("codec", spec.codec)
    yield from _capture_rules(spec.codec)
    if spec.topology == "Colocated":
        yield from _colocation_rules(spec)
    yield from _vllm_rules(spec.talker)
    yield from _connector_rules(spec.connector)
    yield from _objective_rules(pipeline)
    yield from _bounds_rules("talkerMaxNumSeqs", spec.tuning.bounds.talker_max_num_seqs, spec.talker)
    yield from _bounds_rules("codecMaxNumSeqs", spec.tuning.bounds.codec_max_num_seqs, spec.codec)
    yield from _choice_rules(spec.tuning.bounds, spec.codec)
    for index, peer in enumerate(spec.monitoring.allow_from):
        yield from _peer_rules(("spec", "monitoring", "allowFrom", index), peer)
    if spec.gateway.service.node_port is not None and spec.gateway.service.type == "ClusterIP":
        yield Violation(("spec", "gateway", "service", "nodePort"), "needs type NodePort or LoadBalancer")


def _cluster_violations(pipeline: TTSPipeline) -> Iterator[Violation]:
    spec = pipeline.spec
    if spec.model.path is not None and spec.model.claim is None and not spec.model.path.startswith("/"):
        yield Violation(("spec", "model", "path"), "a relative path needs `claim`, the volume it lies in")
    yield from _gpu_rules(spec.talker)
    if spec.connector.password_env is not None and spec.connector.password_secret is None:
        yield Violation(("spec", "connector", "passwordEnv"), "is for `syrinx up`: name a Secret in passwordSecret")
    if spec.gateway.port < 1024:
        yield Violation(("spec", "gateway", "port"), "from 1024: the gateway does not run as root")
    if spec.gateway.port == ADMIN_PORT:
        yield Violation(("spec", "gateway", "port"), f"{ADMIN_PORT} is the port of metrics and settings")


def _pull_secret_rules(secrets: Sequence[SecretName]) -> Iterator[Violation]:
    names: set[str] = set()
    for index, secret in enumerate(secrets):
        if secret.name in names:
            yield Violation(("spec", "imagePullSecrets", index, "name"), f"{secret.name} stands twice")
        names.add(secret.name)


def _model_rules(model: ModelSpec) -> Iterator[Violation]:
    path = ("spec", "model")
    if model.bundled + (model.path is not None) + (model.hugging_face is not None) != 1:
        yield Violation(path, "give either `bundled: true`, `path` or `huggingFace`, exactly one of them")
        return
    if model.path is not None and not model.path.strip("/"):
        yield Violation((*path, "path"), "names no directory")
    if model.path is not None and ".." in model.path.split("/") and model.claim is not None:
        yield Violation((*path, "path"), "leads out of `claim`: no `..` in it")
    if model.claim is not None and model.path is None:
        yield Violation((*path, "claim"), "needs `path`, the checkpoint's directory in it")
    if model.cache is not None:
        if model.hugging_face is None:
            yield Violation((*path, "cache"), "is for what is fetched: it needs `huggingFace`")
        if (model.cache.claim is None) == (model.cache.storage is None):
            yield Violation((*path, "cache"), "give either `claim` or `storage`, exactly one of them")


def _pod_rules(path: Path, pods: PodFields) -> Iterator[Violation]:
    yield from _env_rules((*path, "env"), pods.env)
    yield from _volume_rules((*path, "extraVolumes"), pods.extra_volumes)
    for index, toleration in enumerate(pods.tolerations):
        yield from _toleration_rules((*path, "tolerations", index), toleration)
    for field, keys in (("podLabels", pods.pod_labels), ("podAnnotations", pods.pod_annotations)):
        for key in keys:
            if key.startswith(RESERVED_LABEL_PREFIXES):
                yield Violation(
                    (*path, field), f"{key}: keys that start with {' or '.join(RESERVED_LABEL_PREFIXES)} are Syrinx's"
                )


def _env_rules(path: Path, variables: Sequence[EnvVar]) -> Iterator[Violation]:
    names: set[str] = set()
    for index, variable in enumerate(variables):
        if variable.name in RESERVED_ENV:
            yield Violation((*path, index, "name"), f"{variable.name} is set by Syrinx")
        if variable.name in names:
            yield Violation((*path, index, "name"), f"{variable.name} stands twice")
        names.add(variable.name)
        if sum(source is not None for source in (variable.value, variable.secret, variable.config_map)) != 1:
            yield Violation((*path, index), "give either `value`, `secret` or `configMap`, exactly one of them")


def _volume_rules(path: Path, volumes: Sequence[ExtraVolume]) -> Iterator[Violation]:
    names: set[str] = set()
    paths: set[str] = set()
    for index, volume in enumerate(volumes):
        if volume.name.startswith(RESERVED_VOLUME_PREFIX):
            yield Violation((*path, index, "name"), f"names that start with {RESERVED_VOLUME_PREFIX} are Syrinx's")
        if volume.name in names:
            yield Violation((*path, index, "name"), f"{volume.name} stands twice")
        names.add(volume.name)
        if volume.mount_path in paths:
            yield Violation((*path, index, "mountPath"), f"{volume.mount_path} stands twice")
        paths.add(volume.mount_path)
        if re.search("/[.]{1,2}(/|$)", volume.mount_path):
            yield Violation((*path, index, "mountPath"), "no `.` or `..` in it")
        if volume.sub_path is not None and re.search("^/|(^|/)[.][.](/|$)", volume.sub_path):
            yield Violation((*path, index, "subPath"), "is a directory in the volume: no / in front and no `..` in it")
        if any(volume.mount_path == own or volume.mount_path.startswith(own + "/") for own in RESERVED_PATHS):
            yield Violation((*path, index, "mountPath"), f"{', '.join(RESERVED_PATHS)} are Syrinx's own")
        sources = (volume.claim, volume.secret, volume.config_map, volume.empty_dir)
        if sum(source is not None for source in sources) != 1:
            yield Violation(
                (*path, index), "give either `claim`, `secret`, `configMap` or `emptyDir`, exactly one of them"
            )


def _toleration_rules(path: Path, toleration: Toleration) -> Iterator[Violation]:
    if toleration.key is None and toleration.operator != "Exists":
        yield Violation((*path, "key"), "missing: only with operator Exists there may be none")
    if toleration.value is not None and toleration.operator != "Equal":
        yield Violation((*path, "value"), "operator Exists compares no value")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield Violation((*path, "tolerationSeconds"), "is for effect NoExecute")


def _rows_rules(stage: str, spec: TalkerSpec | CodecSpec) -> Iterator[Violation]:
    if spec.max_num_seqs > spec.max_resident:
        yield Violation(
            ("spec", stage, "maxNumSeqs"),
            f"{spec.max_num_seqs} rows per step need state for as many requests: "
            f"at most maxResident, which is {spec.max_resident}",
        )


def _capture_rules(codec: CodecSpec) -> Iterator[Violation]:
    for index, shape in enumerate(codec.capture_pairs):
        path = ("spec", "codec", "capturePairs", index)
        if shape.rows > codec.max_resident:
            yield Violation((*path, "rows"), f"{shape.rows} is more than maxResident, {codec.max_resident}: never used")
        if index == 0:
            continue
        before = codec.capture_pairs[index - 1]
        if (shape.rows, shape.frames) == (before.rows, before.frames):
            yield Violation(path, f"rows {shape.rows}, frames {shape.frames} stands twice")
        elif (shape.rows, shape.frames) < (before.rows, before.frames):
            yield Violation(
                path,
                f"rows {shape.rows}, frames {shape.frames} comes after rows {before.rows}, frames {before.frames}: "
                "sort by rows, then frames",
            )


def _colocation_rules(spec: PipelineSpec) -> Iterator[Violation]:
    """The process is the talker's: what shapes it is said once."""
    usual = CodecSpec()
    for name, field in PROCESS_FIELDS:
        if getattr(spec.codec, name) != getattr(usual, name):
            yield Violation(
                ("spec", "codec", field),
                f"with topology Colocated the codec is in the talker's process: give talker.{field} alone",
            )
    if spec.codec.max_resident < spec.talker.max_resident:
        yield Violation(
            ("spec", "codec", "maxResident"),
            f"{spec.codec.max_resident} is less than talker.maxResident, {spec.talker.max_resident}: with topology "
            "Colocated the codec serves all that the talker serves",
        )
    if spec.talker.engine == "vllm":
        yield Violation(("spec", "talker", "engine"), "vLLM needs a process of its own: torch, or topology Separate")


def _vllm_rules(talker: TalkerSpec) -> Iterator[Violation]:
    if talker.vllm is None:
        return
    path, gpus = ("spec", "talker", "vllm"), talker.vllm.tensor_parallel_size
    if talker.engine != "vllm":
        yield Violation(path, "is for vLLM: it needs `engine: vllm`")
    if gpus > 1 and talker.device == "cpu":
        yield Violation((*path, "tensorParallelSize"), f"takes {gpus} GPUs: give device cuda, not cpu")


def _gpu_rules(talker: TalkerSpec) -> Iterator[Violation]:
    gpus = 1 if talker.vllm is None else talker.vllm.tensor_parallel_size
    if gpus > 1 and _count(talker.resources.limits.get(GPU, 0)) < gpus:
        yield Violation(
            ("spec", "talker", "vllm", "tensorParallelSize"),
            f"takes {gpus} GPUs: give talker.resources.limits {GPU}: {gpus}",
        )


def _count(amount: int | str) -> int:
    """What an amount is as a whole number; 0 if it is written otherwise."""
    text = str(amount)
    return int(text) if text.isdecimal() else 0


def _connector_rules(connector: ConnectorSpec) -> Iterator[Violation]:
    path = ("spec", "connector")
    if connector.managed == (connector.url is not None):
        yield Violation(path, "give either `managed: true` or `url`, exactly one of them")
        return
    if connector.url is None:
        for field, value in (
            ("passwordSecret", connector.password_secret),
            ("passwordEnv", connector.password_env),
            ("caSecret", connector.ca_secret),
        ):
            if value is not None:
                yield Violation((*path, field), "is for a Redis of yours, given as `url`")
        return
    for field, given in (("image", connector.image is not None), ("storage", connector.storage is not None)):
        if given:
            yield Violation((*path, field), "is for a managed Redis, not for one given as `url`")
    if connector.ca_secret is not None and not connector.url.startswith("rediss://"):
        yield Violation((*path, "caSecret"), "needs a rediss:// address")
    yield from _url_rules((*path, "url"), connector.url)


def _url_rules(path: Path, url: str) -> Iterator[Violation]:
    if re.search(PASSWORD_IN_URL, url):
        yield Violation(
            path,
            "holds a password, and a resource is no place for one: name a Secret in passwordSecret "
            "(with `syrinx up`, an environment variable in passwordEnv)",
        )
    elif not re.search(REDIS_URL, url):
        yield Violation(path, f"{url!r} is not accepted: redis://HOST:PORT/DB, or rediss://… for TLS")


def _objective_rules(pipeline: TTSPipeline) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, objective in enumerate(pipeline.spec.slo.ttfa):
        if objective.task_type in seen:
            yield Violation(("spec", "slo", "ttfa", index, "taskType"), f"{objective.task_type} stands twice")
        seen.add(objective.task_type)


def _bounds_rules(field: str, bounds: RowBounds, stage: TalkerSpec | CodecSpec) -> Iterator[Violation]:
    path = ("spec", "tuning", "bounds", field)
    if bounds.min > bounds.max:
        yield Violation(path, f"min, {bounds.min}, is more than max, {bounds.max}")
    elif not bounds.min <= stage.max_num_seqs <= bounds.max:
        yield Violation(path, f"maxNumSeqs starts at {stage.max_num_seqs}, outside {bounds.min} to {bounds.max}")


def _choice_rules(bounds: TuningBounds, codec: CodecSpec) -> Iterator[Violation]:
    path = ("spec", "tuning", "bounds")
    ramps = bounds.chunk_ramps or ()
    for index, ramp in enumerate(ramps):
        if ramp in ramps[:index]:
            yield Violation((*path, "chunkRamps", index), f"{list(ramp)} stands twice")
    most, given = bounds.capture_pairs.max, len(codec.capture_pairs)
    if 0 < most < given:
        yield Violation((*path, "capturePairs", "max"), f"{most} is less than the {given} that codec.capturePairs has")


def _peer_rules(path: Path, peer: Peer) -> Iterator[Violation]:
    if peer.cidr is not None and (peer.namespace is not None or peer.pod_labels):
        yield Violation((*path, "cidr"), "stands alone: without `namespace` and `podLabels`")
