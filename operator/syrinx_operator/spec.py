"""The TTSPipeline resource: its fields, their bounds, defaults and meaning, and the rules between them.

This file is the one source of the resource's schema. Every field here is honoured; a field that is not here is refused.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from syrinx_stages.contract.settings import (
    CodecSettings,
    Frames,
    GatewaySettings,
    Ramp,
    Rows,
    Seconds,
    StageConfig,
    TalkerSettings,
)

API_VERSION: Final = "syrinx.dev/v1alpha1"
KIND: Final = "TTSPipeline"
BUNDLED_MODEL_NAME = "syrinx-us"
"""What clients call the bundled voice."""

_TALKER = TalkerSettings()
_CODEC = CodecSettings()
_GATEWAY = GatewaySettings()
_MAX_RESIDENT = StageConfig(pipeline="p", generation="g", replica="r", model="bundled").max_resident

Replicas = Annotated[int, Meta(ge=1, le=64)]


class _Object(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What all parts of the resource share: immutable, camelCase in YAML, a typo is an error."""


class Metadata(_Object, frozen=True, kw_only=True):
    """Identifies the pipeline."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            max_length=40,
            description="Name of the pipeline: lower-case letters, digits and '-', up to 40. It is part of every key.",
        ),
    ]


class ModelSpec(_Object, frozen=True, kw_only=True):
    """The Qwen3-TTS checkpoint to serve: the bundled voice, or a directory. Exactly one of them."""

    bundled: Annotated[bool, Meta(description="Serve the small English voice that comes with Syrinx.")] = False
    path: Annotated[
        str | None,
        Meta(
            description="Directory of a checkpoint in the official layout (config.json, model.safetensors, "
            "speech_tokenizer/). A relative path starts at the directory of the file that names it.",
        ),
    ] = None
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(
            description="The name clients send as `model`. Default: syrinx-us for the bundled voice, "
            "else the last part of the path.",
        ),
    ] = None


class GatewaySpec(_Object, frozen=True, kw_only=True):
    """The public HTTP API."""

    port: Annotated[
        int, Meta(ge=0, le=65_535, description="TCP port the API is served on; 0 takes a free one and prints it.")
    ] = 8000
    max_queue: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Requests that may wait for a talker before new ones are answered 503."),
    ] = _GATEWAY.max_queue
    max_queue_seconds: Annotated[
        Seconds, Meta(description="Age in seconds of the oldest waiting request from which new ones are answered 503.")
    ] = _GATEWAY.max_queue_seconds
    reference_hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...],
        Meta(
            max_length=64,
            description="Hosts from which reference audio given as a URL may be fetched. Default: none.",
        ),
    ] = ()


class TalkerSpec(_Object, frozen=True, kw_only=True):
    """The talker: text in, code frames out. Its numbers are starting values; they can change live."""

    replicas: Annotated[Replicas, Meta(description="Talker processes; requests go to whoever has a free row.")] = 1
    max_num_seqs: Annotated[
        Rows, Meta(description="Requests per step (the batch size) at most; no more than maxResident.")
    ] = _TALKER.max_num_seqs
    max_resident: Annotated[
        Rows, Meta(description="Requests that hold state at once; those not in this step wait for their deadline.")
    ] = _MAX_RESIDENT
    lead_limit_seconds: Annotated[
        Seconds,
        Meta(description="A live stream whose codes are this many seconds ahead of playback yields its row."),
    ] = _TALKER.lead_limit_seconds


class CaptureShape(_Object, frozen=True, kw_only=True):
    """One shape of decoder call that is kept ready."""

    rows: Annotated[Rows, Meta(description="Requests in the call.")]
    frames: Annotated[Frames, Meta(description="Frames per request in the call.")]


class CodecSpec(_Object, frozen=True, kw_only=True):
    """The codec: code frames in, audio out. Its numbers are starting values; they can change live."""

    replicas: Annotated[Replicas, Meta(description="Codec processes; requests go to whoever has a free row.")] = 1
    max_num_seqs: Annotated[
        Rows, Meta(description="Requests per decoder call (the batch size) at most; no more than maxResident.")
    ] = _CODEC.max_num_seqs
    max_resident: Annotated[Rows, Meta(description="Requests that hold decoder state at once.")] = _MAX_RESIDENT
    chunk_ramp: Annotated[
        Ramp,
        Meta(
            description="Frames (80 ms each) of a stream's first, second, ... audio chunk; the last value repeats. "
            "Small first values start playback sooner, large later ones cost less."
        ),
    ] = _CODEC.chunk_ramp
    capture_pairs: Annotated[
        tuple[CaptureShape, ...],
        Meta(
            max_length=64,
            description="Decoder shapes kept ready, sorted by rows, then frames. A call is padded to the cheapest that "
            "fits, or runs at its own shape. Default: none.",
        ),
    ] = ()


class ConnectorSpec(_Object, frozen=True, kw_only=True):
    """The Redis between the stages: a managed one, or yours. Exactly one of them."""

    managed: Annotated[bool, Meta(description="Run a Redis for this pipeline alone.")] = False
    url: Annotated[
        str | None,
        Meta(
            description="Your Redis (6.2 or newer), as redis://HOST:PORT/DB or rediss://… for TLS, without a password."
        ),
    ] = None
    password_env: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] | None,
        Meta(description="Environment variable that holds the password of `url`. Default: no password."),
    ] = None


class PipelineSpec(_Object, frozen=True, kw_only=True):
    """What is to run."""

    model: Annotated[ModelSpec, Meta(description="The checkpoint. Default: the bundled voice.")] = ModelSpec(
        bundled=True
    )
    gateway: Annotated[GatewaySpec, Meta(description="The public HTTP API.")] = GatewaySpec()
    talker: Annotated[TalkerSpec, Meta(description="The stage that turns text into code frames.")] = TalkerSpec()
    codec: Annotated[CodecSpec, Meta(description="The stage that turns code frames into audio.")] = CodecSpec()
    connector: Annotated[ConnectorSpec, Meta(description="The Redis between the stages. Default: a managed one.")] = (
        ConnectorSpec(managed=True)
    )


class TTSPipeline(_Object, frozen=True, kw_only=True):
    """A Qwen3-TTS service: a gateway, talkers and codecs, with Redis Streams between them."""

    api_version: Annotated[Literal["syrinx.dev/v1alpha1"], Meta(description="Version of this schema.")]
    kind: Annotated[Literal["TTSPipeline"], Meta(description="Kind of resource.")]
    metadata: Annotated[Metadata, Meta(description="Identifies the pipeline.")]
    spec: Annotated[
        PipelineSpec, Meta(description="What is to run. Default: the bundled voice, one of each stage.")
    ] = PipelineSpec()

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.metadata.name

    @property
    def model_name(self) -> str:
        """The name clients send as `model`."""
        model = self.spec.model
        if model.name:
            return model.name
        return BUNDLED_MODEL_NAME if model.path is None else model.path.rstrip("/").rpartition("/")[2]


class Violation(Struct, frozen=True):
    """A rule between fields that a resource breaks."""

    path: tuple[str | int, ...]
    """The field to blame, from the resource's root."""
    message: str


def default_pipeline(name: str = "demo") -> TTSPipeline:
    """The bundled voice, one of each stage: what an almost empty resource means."""
    return TTSPipeline(api_version=API_VERSION, kind=KIND, metadata=Metadata(name=name))


def violations(pipeline: TTSPipeline) -> list[Violation]:
    """The rules that hold between fields and that this resource breaks; empty if it is valid."""
    spec = pipeline.spec
    return [
        *_model_rules(spec.model),
        *_rows_rules("talker", spec.talker),
        *_rows_rules("codec", spec.codec),
        *_capture_rules(spec.codec),
        *_connector_rules(spec.connector),
    ]


def _model_rules(model: ModelSpec) -> list[Violation]:
    if model.bundled == (model.path is not None):
        return [Violation(("spec", "model"), "give either `bundled: true` or `path`, exactly one of them")]
    if model.path is not None and not model.path.strip("/"):
        return [Violation(("spec", "model", "path"), "names no directory")]
    return []


def _rows_rules(stage: str, spec: TalkerSpec | CodecSpec) -> list[Violation]:
    if spec.max_num_seqs <= spec.max_resident:
        return []
    return [
        Violation(
            ("spec", stage, "maxNumSeqs"),
            f"{spec.max_num_seqs} rows per step need state for as many requests: "
            f"at most maxResident, which is {spec.max_resident}",
        )
    ]


def _capture_rules(codec: CodecSpec) -> list[Violation]:
    found = []
    for index, shape in enumerate(codec.capture_pairs):
        path = ("spec", "codec", "capturePairs", index)
        if shape.rows > codec.max_resident:
            found.append(
                Violation((*path, "rows"), f"{shape.rows} is more than maxResident, {codec.max_resident}: never used")
            )
        if index == 0:
            continue
        before = codec.capture_pairs[index - 1]
        if (shape.rows, shape.frames) == (before.rows, before.frames):
            found.append(Violation(path, f"rows {shape.rows}, frames {shape.frames} stands twice"))
        elif (shape.rows, shape.frames) < (before.rows, before.frames):
            found.append(
                Violation(
                    path,
                    f"rows {shape.rows}, frames {shape.frames} comes after rows {before.rows}, frames {before.frames}: "
                    "sort by rows, then frames",
                )
            )
    return found


def _connector_rules(connector: ConnectorSpec) -> list[Violation]:
    path = ("spec", "connector")
    if connector.managed == (connector.url is not None):
        return [Violation(path, "give either `managed: true` or `url`, exactly one of them")]
    if connector.url is None:
        if connector.password_env is not None:
            return [Violation((*path, "passwordEnv"), "only a Redis given as `url` has a password to be told")]
        return []
    return _url_rules((*path, "url"), connector.url)


def _url_rules(path: tuple[str, ...], url: str) -> list[Violation]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return [Violation(path, f"is not a URL: {error}")]
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == 0:
        return [Violation(path, f"{url!r} is not accepted: redis://HOST:PORT/DB, or rediss://… for TLS")]
    if parts.password is not None:
        return [
            Violation(
                path,
                "holds a password, and a resource is no place for one: name an environment variable in passwordEnv",
            )
        ]
    return []
