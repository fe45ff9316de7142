"""The TTSPipeline resource: its fields, their bounds, defaults and meaning.

This file and `spec_pods` are the one source of the resource's schema. Every field here is honoured; a field that is
not here is refused. The rules between fields are in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from syrinx_operator.resource.pods import (
    KUBERNETES,
    Annotations,
    EnvName,
    Labels,
    Line,
    Name,
    Object,
    Peer,
    PodFields,
    Port,
    Resources,
    SecretKey,
    SecretName,
    Storage,
    list_map,
)
from syrinx_stages.contract.family import TaskName
from syrinx_stages.contract.settings import (
    CodecSettings,
    Frames,
    GatewaySettings,
    Ramp,
    Rows,
    Seconds,
    StageConfig,
    TalkerSettings,
    VllmOptions,
)

API_VERSION: Final = "syrinx.dev/v1alpha1"
KIND: Final = "TTSPipeline"
BUNDLED_MODEL_NAME = "syrinx-us"
"""What clients call the bundled voice."""

_TALKER = TalkerSettings()
_CODEC = CodecSettings()
_GATEWAY = GatewaySettings()
_VLLM = VllmOptions()
_MAX_RESIDENT = StageConfig(pipeline="p", generation="g", replica="r", model="bundled").max_resident

Replicas = Annotated[int, Meta(ge=1, le=64)]
DrainSeconds = Annotated[int, Meta(ge=0, le=3600)]
StartupSeconds = Annotated[int, Meta(ge=10, le=86_400)]
Image = Annotated[str, Meta(min_length=1, max_length=512, pattern="^[^ \\t\\n]+$")]
Device = Literal["cpu", "cuda"]
Topology = Literal["Separate", "Colocated"]


class Metadata(Object, frozen=True, kw_only=True):
    """Identifies the pipeline."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$",
            max_length=40,
            description="Name of the pipeline: lower-case letters, digits and '-', up to 40, a letter first. "
            "It is part of every key and of every object's name.",
        ),
    ]
    namespace: Annotated[
        Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None,
        Meta(description="Namespace on Kubernetes. Default: the client's."),
    ] = None
    labels: Annotated[Labels, Meta(description="Labels of the resource itself.")] = {}
    annotations: Annotated[dict[str, str], Meta(description="Annotations of the resource itself.")] = {}


class HuggingFace(Object, frozen=True, kw_only=True):
    """A checkpoint on a Hugging Face hub, fetched before a stage starts."""

    id: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*$",
            max_length=200,
            description="Repository, as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice.",
        ),
    ]
    revision: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            pattern="^[A-Za-z0-9][-A-Za-z0-9._/]*$",
            description="Commit, tag or branch. Only a commit (40 hex digits) names the same weights for ever.",
        ),
    ]
    token_secret: Annotated[
        SecretKey | None, Meta(description="Access token, for gated or private repositories. Default: none.")
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://[^ ]+$", max_length=512)] | None,
        Meta(description="URL of a hub other than the public one, as that of a mirror."),
    ] = None


class ModelCache(Object, frozen=True, kw_only=True):
    """Where fetched checkpoints are kept, so that a new pod need not fetch again. Exactly one of `claim`, `storage`."""

    claim: Annotated[
        Name | None, Meta(description="A PersistentVolumeClaim of yours; it stays when the pipeline goes.")
    ] = None
    storage: Annotated[Storage | None, Meta(description="A volume that is made for the pipeline and goes with it.")] = (
        None
    )


class ModelSpec(Object, frozen=True, kw_only=True):
    """The Qwen3-TTS checkpoint to serve: exactly one of `bundled`, `path` and `huggingFace`."""

    bundled: Annotated[bool, Meta(description="Serve the small voice that comes with Syrinx.")] = False
    path: Annotated[
        Annotated[Line, Meta(max_length=1024)] | None,
        Meta(
            description="Directory of a checkpoint in the official layout (config.json, model.safetensors, "
            "speech_tokenizer/). `syrinx up` starts a relative path at the directory of the file that names it; "
            "on Kubernetes it is a directory in `claim`, or an absolute one in the container.",
        ),
    ] = None
    claim: Annotated[
        Name | None,
        Meta(description="PersistentVolumeClaim that holds `path`; it is mounted read-only.", extra=KUBERNETES),
    ] = None
    hugging_face: Annotated[
        HuggingFace | None,
        Meta(description="A checkpoint on a Hugging Face hub, fetched before a stage starts.", extra=KUBERNETES),
    ] = None
    cache: Annotated[
        ModelCache | None,
        Meta(
            description="Where fetched checkpoints are kept: exactly one of `claim` and `storage`. Default: in the "
            "pod, and every new pod fetches again.",
            extra=KUBERNETES,
        ),
    ] = None
    name: Annotated[
        Annotated[Line, Meta(max_length=128)] | None,
        Meta(
            description="The name clients send as `model`. Default: syrinx-us for the bundled voice, "
            "else the last part of the path or of the repository's id.",
        ),
    ] = None


class ServiceSpec(Object, frozen=True, kw_only=True):
    """The Kubernetes Service in front of the gateways."""

    type: Annotated[
        Literal["ClusterIP", "NodePort", "LoadBalancer"], Meta(description="How the Service can be reached.")
    ] = "ClusterIP"
    node_port: Annotated[
        Port | None,
        Meta(description="Port on every node, with type NodePort or LoadBalancer. Default: one that is free."),
    ] = None
    annotations: Annotated[
        Annotations, Meta(description="Annotations of the Service, as load balancers want them.")
    ] = {}


class GatewaySpec(PodFields, frozen=True, kw_only=True):
    """The public HTTP API."""

    replicas: Annotated[Replicas, Meta(description="Gateway pods; `syrinx up` runs one.", extra=KUBERNETES)] = 1
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="TCP port the API is served on; with `syrinx up`, 0 takes a free one and prints it.",
        ),
    ] = 8000
    service: Annotated[ServiceSpec, Meta(description="The Service in front of the gateways.", extra=KUBERNETES)] = (
        ServiceSpec()
    )
    max_queue: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Requests that may wait for a talker before new ones are answered 503."),
    ] = _GATEWAY.max_queue
    max_queue_seconds: Annotated[
        Seconds,
        Meta(
            description="Age in seconds of the oldest waiting request from which new ones are answered 503; also how "
            "long requests wait for a talker and a codec when there are none."
        ),
    ] = _GATEWAY.max_queue_seconds
    reference_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s/@]+$", max_length=253)], ...],
        Meta(
            max_length=64,
            description="Hosts from which reference audio given as a URL may be fetched. Default: none.",
        ),
    ] = ()
    drain_seconds: Annotated[
        DrainSeconds,
        Meta(description="Seconds a stopping gateway goes on for those who listen: as long as your longest utterance."),
    ] = 120
    resources: Annotated[Resources, Meta(description="CPU and memory of the container.", extra=KUBERNETES)] = Resources(
        requests={"cpu": "50m", "memory": "128Mi"}
    )


class StageSpec(PodFields, frozen=True, kw_only=True):
    """What talker and codec have in common."""

    device: Annotated[
        Device | None,
        Meta(description="Where it computes. Default: cpu; on Kubernetes cuda if `resources` has a GPU."),
    ] = None
    replicas: Annotated[Replicas, Meta(description="Processes; requests go to whoever has a free row.")] = 1
    drain_seconds: Annotated[
        DrainSeconds,
        Meta(
            description="Seconds a stopping replica goes on with what it owns; the rest is handed to other replicas, "
            "which go on at the next frame."
        ),
    ] = 60
    startup_seconds: Annotated[
        StartupSeconds,
        Meta(description="Seconds a replica may take to load and warm up before it is started anew.", extra=KUBERNETES),
    ] = 600
    resources: Annotated[Resources, Meta(description="CPU, memory and GPUs of the container.", extra=KUBERNETES)] = (
        Resources(requests={"cpu": "200m", "memory": "512Mi"})
    )


VllmWord = Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)]
"""A choice that vLLM has a name for."""


class VllmSpec(Object, frozen=True, kw_only=True):
    """What vLLM is started with, in its own words (`vllm serve --help`)."""

    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=16, description="GPUs that share the layers of one talker; each pod needs as many.")
    ] = _VLLM.tensor_parallel_size
    quantization: Annotated[
        VllmWord | None,
        Meta(description="How the layers' weights are quantised when they are loaded, as fp8. Default: not at all."),
    ] = _VLLM.quantization
    kv_cache_dtype: Annotated[
        VllmWord, Meta(description="Number format of the cache of keys and values, as fp8; auto is the weights' own.")
    ] = _VLLM.kv_cache_dtype
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="Share of a GPU's memory that vLLM takes, weights and cache included.")
    ] = _VLLM.gpu_memory_utilization
    max_num_batched_tokens: Annotated[
        Annotated[int, Meta(ge=16, le=1 << 20)] | None,
        Meta(description="Positions that a step computes at most, those of prompts included. Default: vLLM's."),
    ] = _VLLM.max_num_batched_tokens


class TalkerSpec(StageSpec, frozen=True, kw_only=True):
    """The talker: text in, code frames out. Its numbers are starting values; they can change live."""

    engine: Annotated[
        Literal["torch", "vllm"],
        Meta(
            description="What computes: torch, Syrinx's own engine, on CPUs and NVIDIA GPUs; or vllm, stock vLLM, "
            "which the image must have (VARIANT=vllm)."
        ),
    ] = "torch"
    vllm: Annotated[
        VllmSpec | None,
        Meta(description="What vLLM is started with; for engine vllm alone. Default: as its fields say."),
    ] = None
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


class CaptureShape(Object, frozen=True, kw_only=True):
    """One shape of decoder call that is kept ready."""

    rows: Annotated[Rows, Meta(description="Requests in the call.")]
    frames: Annotated[Frames, Meta(description="Frames per request in the call.")]


class CodecSpec(StageSpec, frozen=True, kw_only=True):
    """The codec: code frames in, audio out. Its numbers are starting values; they can change live."""

    engine: Annotated[
        Literal["torch"], Meta(description="What computes: torch, Syrinx's own engine, on CPUs and NVIDIA GPUs.")
    ] = "torch"
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


class ConnectorSpec(Object, frozen=True, kw_only=True):
    """The Redis between the stages: a managed one, or yours. Exactly one of them."""

    managed: Annotated[bool, Meta(description="Run a Redis for this pipeline alone.")] = False
    image: Annotated[
        Image | None,
        Meta(description="Image of the managed Redis (6.2 or newer). Default: the operator's.", extra=KUBERNETES),
    ] = None
    resources: Annotated[
        Resources,
        Meta(
            description="CPU and memory of the managed Redis; three quarters of its memory limit hold data.",
            extra=KUBERNETES,
        ),
    ] = Resources(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "512Mi"})
    storage: Annotated[
        Storage | None,
        Meta(
            description="A volume for the managed Redis, so that streams outlive its pod. Default: none; what is being "
            "spoken ends with an error if Redis restarts.",
            extra=KUBERNETES,
        ),
    ] = None
    url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        Meta(
            description="Your Redis (6.2 or newer), as redis://HOST:PORT/DB or rediss://… for TLS, without a password."
        ),
    ] = None
    password_secret: Annotated[
        SecretKey | None,
        Meta(description="Secret that holds the password of `url`. Default: no password.", extra=KUBERNETES),
    ] = None
    ca_secret: Annotated[
        SecretKey | None,
        Meta(
            description="Secret that holds the CA certificates (PEM) to check a rediss:// server with. Default: the "
            "image's.",
            extra=KUBERNETES,
        ),
    ] = None
    password_env: Annotated[
        EnvName | None,
        Meta(description="Environment variable of `syrinx up` that holds the password of `url`. Default: no password."),
    ] = None


TtfaMs = Literal[25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000]
"""The edges of the TTFA histogram's buckets, so that counting needs no interpolation."""
Ratio = Annotated[float, Meta(ge=0, le=1)]


class TtfaObjective(Object, frozen=True, kw_only=True):
    """How soon requests of one task type shall be heard."""

    task_type: Annotated[TaskName, Meta(description="Task type that the objective is for.")]
    ttfa_p95_ms: Annotated[
        TtfaMs,
        Meta(description="Milliseconds to the first audible sample; one of the edges of the exported histogram."),
    ]
    target: Annotated[Ratio, Meta(description="Share of requests that shall be heard within it.")] = 0.95


class SloSpec(Object, frozen=True, kw_only=True):
    """What the service promises its listeners."""

    ttfa: Annotated[
        tuple[TtfaObjective, ...],
        Meta(
            max_length=3,
            description="Objectives by task type. Default: none.",
            extra_json_schema=list_map("taskType"),
        ),
    ] = ()
    underrun_ratio: Annotated[Ratio, Meta(description="Share of live streams whose playback may have to wait.")] = 0.01


class RowBounds(Object, frozen=True, kw_only=True):
    """The smallest and the largest value that tuning may choose."""

    min: Annotated[Rows, Meta(description="Smallest value.")] = 1
    max: Annotated[Rows, Meta(description="Largest value.")] = 1024


class CaptureBounds(Object, frozen=True, kw_only=True):
    """What the captured decoder shapes of one codec may cost."""

    max: Annotated[Annotated[int, Meta(ge=0, le=64)], Meta(description="Shapes at most; 0 leaves them alone.")] = 16
    seconds: Annotated[Annotated[int, Meta(ge=1, le=3600)], Meta(description="Seconds to capture them all.")] = 60
    memory_mi_b: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)], Meta(description="Mebibytes of device memory for all of them.")
    ] = 2048


class TuningBounds(Object, frozen=True, kw_only=True):
    """What tuning may choose from."""

    talker_max_num_seqs: Annotated[RowBounds, Meta(description="Of talker.maxNumSeqs.")] = RowBounds()
    codec_max_num_seqs: Annotated[RowBounds, Meta(description="Of codec.maxNumSeqs.")] = RowBounds()
    chunk_ramps: Annotated[
        Annotated[tuple[Ramp, ...], Meta(max_length=16)] | None,
        Meta(
            description="Chunk ramps besides codec.chunkRamp; an empty list leaves it alone. Default: five, from "
            "[1, 2, 4, 8, 12] to [16, 16, 25]."
        ),
    ] = None
    capture_pairs: Annotated[CaptureBounds, Meta(description="Of codec.capturePairs.")] = CaptureBounds()


class PrometheusSpec(Object, frozen=True, kw_only=True):
    """The Prometheus that scrapes this pipeline. A token for it, and its CA, belong to the operator's installation."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/@?#\\][^\s@?#\\]*$",
            max_length=512,
            description="Its address, as http://prometheus.monitoring:9090; a path in front of /api/v1 may follow.",
        ),
    ]


class TuningSpec(Object, frozen=True, kw_only=True):
    """How the knobs are kept at their best."""

    mode: Annotated[
        Literal["Off", "Recommend", "Auto"],
        Meta(description="Off: do not even measure. Recommend: say what would be better. Auto: do it."),
    ] = "Recommend"
    paused: Annotated[bool, Meta(description="Leave everything as it is for now.")] = False
    interval_seconds: Annotated[
        Annotated[int, Meta(ge=5, le=3600)], Meta(description="Seconds between two looks at the metrics.")
    ] = 30
    bounds: Annotated[TuningBounds, Meta(description="What may be chosen.")] = TuningBounds()
    prometheus: Annotated[
        PrometheusSpec | None,
        Meta(description="Where metrics are read. Default: from the stages themselves.", extra=KUBERNETES),
    ] = None


class PodMonitorSpec(Object, frozen=True, kw_only=True):
    """A PodMonitor for the Prometheus operator."""

    interval_seconds: Annotated[Annotated[int, Meta(ge=1, le=3600)], Meta(description="Seconds between scrapes.")] = 15
    labels: Annotated[Labels, Meta(description="Labels by which your Prometheus selects PodMonitors.")] = {}


class MonitoringSpec(Object, frozen=True, kw_only=True):
    """How Prometheus finds and reaches the stages."""

    scrape_annotations: Annotated[
        bool, Meta(description="Whether pods carry the prometheus.io/scrape, port and path annotations.")
    ] = True
    pod_monitor: Annotated[
        PodMonitorSpec | None,
        Meta(description="Make a PodMonitor; the cluster must have its kind. Default: none."),
    ] = None
    allow_from: Annotated[
        tuple[Peer, ...],
        Meta(
            max_length=16,
            description="Who may read metrics besides the operator. Default: pods labelled "
            "app.kubernetes.io/name: prometheus, in every namespace.",
        ),
    ] = (Peer(pod_labels={"app.kubernetes.io/name": "prometheus"}),)


class PipelineSpec(Object, frozen=True, kw_only=True):
    """What is to run."""

    image: Annotated[
        Image | None,
        Meta(
            description="Image of the stages. Default: the operator's at the time the pipeline was made, so that an "
            "upgrade of the operator restarts no pod.",
            extra=KUBERNETES,
        ),
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Meta(
            description="When images are pulled. Default: as Kubernetes decides by the image's tag.", extra=KUBERNETES
        ),
    ] = None
    image_pull_secrets: Annotated[
        tuple[SecretName, ...],
        Meta(
            max_length=8,
            description="Secrets with registry credentials. Default: none.",
            extra=KUBERNETES,
            extra_json_schema=list_map("name"),
        ),
    ] = ()
    model: Annotated[
        ModelSpec,
        Meta(
            description="The checkpoint to serve: exactly one of `bundled`, `path` and `huggingFace`. Default: the "
            "bundled voice."
        ),
    ] = ModelSpec(bundled=True)
    gateway: Annotated[GatewaySpec, Meta(description="The public HTTP API.")] = GatewaySpec()
    topology: Annotated[
        Topology,
        Meta(
            description="Separate: talkers and codecs are processes of their own, as many as each needs. Colocated: "
            "each talker's process has a codec too, which serves what that talker serves; the process is shaped by "
            "`talker`, and `codec` has the codec's own numbers alone."
        ),
    ] = "Separate"
    talker: Annotated[
        TalkerSpec,
        Meta(description="The stage that turns text into code frames."),
    ] = TalkerSpec()
    codec: Annotated[
        CodecSpec,
        Meta(description="The stage that turns code frames into audio."),
    ] = CodecSpec()
    connector: Annotated[
        ConnectorSpec,
        Meta(description="The Redis between the stages: a managed one, or yours. Default: a managed one."),
    ] = ConnectorSpec(managed=True)
    slo: Annotated[SloSpec, Meta(description="What the service promises its listeners.")] = SloSpec()
    tuning: Annotated[TuningSpec, Meta(description="How the knobs are kept at their best.")] = TuningSpec()
    monitoring: Annotated[
        MonitoringSpec, Meta(description="How Prometheus finds and reaches the stages.", extra=KUBERNETES)
    ] = MonitoringSpec()


class TTSPipeline(Object, frozen=True, kw_only=True):
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
        if model.hugging_face is not None:
            return model.hugging_face.id.rpartition("/")[2]
        return BUNDLED_MODEL_NAME if model.path is None else model.path.rstrip("/").rpartition("/")[2]


def default_pipeline(name: str = "demo") -> TTSPipeline:
    """The bundled voice, one of each stage: what an almost empty resource means."""
    return TTSPipeline(api_version=API_VERSION, kind=KIND, metadata=Metadata(name=name))
