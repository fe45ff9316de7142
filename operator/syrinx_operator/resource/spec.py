"""The TTSPipeline resource: its fields with their bounds, defaults and descriptions.

The CRD is generated from this module and `pods`. Unknown fields are refused. Rules between fields are in `rules`.
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
"""The default of `spec.model.name` for the bundled voice."""

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
            description="Name of the pipeline: up to 40 lower-case letters, digits and '-', starting with a letter. "
            "It is part of all Redis keys and object names.",
        ),
    ]
    namespace: Annotated[
        Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None,
        Meta(description="Namespace on Kubernetes. Default: the client's namespace."),
    ] = None
    labels: Annotated[Labels, Meta(description="Labels of the resource.")] = {}
    annotations: Annotated[dict[str, str], Meta(description="Annotations of the resource.")] = {}


class HuggingFace(Object, frozen=True, kw_only=True):
    """A checkpoint on a Hugging Face hub, downloaded before a stage starts."""

    id: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*$",
            max_length=200,
            description="Repository, for example Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice.",
        ),
    ]
    revision: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            pattern="^[A-Za-z0-9][-A-Za-z0-9._/]*$",
            description="Commit, tag or branch. Only a commit (40 hex digits) pins the weights.",
        ),
    ]
    token_secret: Annotated[
        SecretKey | None, Meta(description="Access token, for gated or private repositories. Default: none.")
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://[^ ]+$", max_length=512)] | None,
        Meta(description="URL of another hub, for example a mirror. Default: the public hub."),
    ] = None


class ModelCache(Object, frozen=True, kw_only=True):
    """Cache of downloaded checkpoints, shared by all pods. Exactly one of `claim` and `storage`."""

    claim: Annotated[
        Name | None,
        Meta(description="Name of an existing PersistentVolumeClaim. It is kept when the pipeline is deleted."),
    ] = None
    storage: Annotated[
        Storage | None, Meta(description="A volume that is created for the pipeline and deleted with it.")
    ] = None


class ModelSpec(Object, frozen=True, kw_only=True):
    """The Qwen3-TTS checkpoint to serve: exactly one of `bundled`, `path` and `huggingFace`."""

    bundled: Annotated[bool, Meta(description="Serve the small voice that is included in Syrinx.")] = False
    path: Annotated[
        Annotated[Line, Meta(max_length=1024)] | None,
        Meta(
            description="Directory of a checkpoint in the official layout (config.json, model.safetensors, "
            "speech_tokenizer/). `syrinx up` resolves a relative path from the directory of the resource's file. "
            "On Kubernetes it is a directory in `claim`, or an absolute path in the container."
        ),
    ] = None
    claim: Annotated[
        Name | None,
        Meta(description="PersistentVolumeClaim that contains `path`. It is mounted read-only.", extra=KUBERNETES),
    ] = None
    hugging_face: Annotated[
        HuggingFace | None,
        Meta(description="A checkpoint on a Hugging Face hub, downloaded before a stage starts.", extra=KUBERNETES),
    ] = None
    cache: Annotated[
        ModelCache | None,
        Meta(
            description="Cache of downloaded checkpoints: exactly one of `claim` and `storage`. Default: none; each "
            "new pod downloads the checkpoint.",
            extra=KUBERNETES,
        ),
    ] = None
    name: Annotated[
        Annotated[Line, Meta(max_length=128)] | None,
        Meta(
            description="Name that clients send as `model`. Default: syrinx-us for the bundled voice, otherwise the "
            "last component of the path or of the repository."
        ),
    ] = None


class ServiceSpec(Object, frozen=True, kw_only=True):
    """The Kubernetes Service of the gateways."""

    type: Annotated[Literal["ClusterIP", "NodePort", "LoadBalancer"], Meta(description="Type of the Service.")] = (
        "ClusterIP"
    )
    node_port: Annotated[
        Port | None,
        Meta(description="Port on each node, with type NodePort or LoadBalancer. Default: allocated by Kubernetes."),
    ] = None
    annotations: Annotated[
        Annotations, Meta(description="Annotations of the Service, for example for load balancers.")
    ] = {}


class GatewaySpec(PodFields, frozen=True, kw_only=True):
    """The public HTTP API."""

    replicas: Annotated[
        Replicas, Meta(description="Number of gateway pods. `syrinx up` runs one.", extra=KUBERNETES)
    ] = 1
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="TCP port of the API. With `syrinx up`, 0 selects a free port.")
    ] = 8000
    service: Annotated[ServiceSpec, Meta(description="The Service of the gateways.", extra=KUBERNETES)] = ServiceSpec()
    max_queue: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Maximum number of requests that wait for a talker. Further requests are answered with 503.",
        ),
    ] = _GATEWAY.max_queue
    max_queue_seconds: Annotated[
        Seconds,
        Meta(
            description="Maximum age in seconds of the oldest waiting request. If it is exceeded, new requests are "
            "answered with 503. Also the time that requests wait if no talker or codec is ready."
        ),
    ] = _GATEWAY.max_queue_seconds
    reference_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s/@]+$", max_length=253)], ...],
        Meta(max_length=64, description="Hosts from which reference audio may be downloaded by URL. Default: none."),
    ] = ()
    drain_seconds: Annotated[
        DrainSeconds,
        Meta(
            description="Seconds in which a stopping gateway finishes its streams. Use the duration of your longest "
            "utterance."
        ),
    ] = 120
    resources: Annotated[Resources, Meta(description="CPU and memory of the container.", extra=KUBERNETES)] = Resources(
        requests={"cpu": "50m", "memory": "128Mi"}
    )


class StageSpec(PodFields, frozen=True, kw_only=True):
    """Fields of both talker and codec."""

    device: Annotated[
        Device | None,
        Meta(
            description="Device that the stage computes on. Default: cpu, or on Kubernetes cuda if `resources` has a "
            "GPU."
        ),
    ] = None
    replicas: Annotated[
        Replicas, Meta(description="Number of processes. Requests go to the replicas with free rows.")
    ] = 1
    drain_seconds: Annotated[
        DrainSeconds,
        Meta(
            description="Seconds in which a stopping replica finishes its requests. Other replicas then take over "
            "the rest, without losing a frame."
        ),
    ] = 60
    startup_seconds: Annotated[
        StartupSeconds,
        Meta(
            description="Seconds in which a replica must load and warm up. After that it is restarted.",
            extra=KUBERNETES,
        ),
    ] = 600
    resources: Annotated[Resources, Meta(description="CPU, memory and GPUs of the container.", extra=KUBERNETES)] = (
        Resources(requests={"cpu": "200m", "memory": "512Mi"})
    )


VllmWord = Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)]
"""The name of an option's value in vLLM."""


class VllmSpec(Object, frozen=True, kw_only=True):
    """Engine options of vLLM, as in `vllm serve --help`."""

    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=16, description="Number of GPUs for tensor parallelism. Each talker pod needs as many GPUs.")
    ] = _VLLM.tensor_parallel_size
    quantization: Annotated[
        VllmWord | None, Meta(description="Quantization of the weights at load time, for example fp8. Default: none.")
    ] = _VLLM.quantization
    kv_cache_dtype: Annotated[
        VllmWord,
        Meta(description="Data type of the KV cache, for example fp8. auto uses the data type of the weights."),
    ] = _VLLM.kv_cache_dtype
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="Fraction of the GPU memory for vLLM, including weights and KV cache.")
    ] = _VLLM.gpu_memory_utilization
    max_num_batched_tokens: Annotated[
        Annotated[int, Meta(ge=16, le=1 << 20)] | None,
        Meta(description="Maximum number of tokens per step, including prompts. Default: vLLM's default."),
    ] = _VLLM.max_num_batched_tokens


class TalkerSpec(StageSpec, frozen=True, kw_only=True):
    """The talker, which generates code frames from text. Edits of maxNumSeqs and leadLimitSeconds need no restart."""

    engine: Annotated[
        Literal["torch", "vllm"],
        Meta(
            description="Inference engine: torch is Syrinx's own engine for CPUs and NVIDIA GPUs; vllm is vLLM, which "
            "needs an image built with VARIANT=vllm."
        ),
    ] = "torch"
    vllm: Annotated[
        VllmSpec | None, Meta(description="Options of engine vllm. Default: the defaults of its fields.")
    ] = None
    max_num_seqs: Annotated[
        Rows, Meta(description="Maximum number of requests per step (batch size). At most maxResident.")
    ] = _TALKER.max_num_seqs
    max_resident: Annotated[
        Rows,
        Meta(
            description="Maximum number of requests with resident state. Requests that are not in the current step "
            "wait for their deadline."
        ),
    ] = _MAX_RESIDENT
    lead_limit_seconds: Annotated[
        Seconds,
        Meta(description="A live stream releases its row when its codes are this many seconds ahead of playback."),
    ] = _TALKER.lead_limit_seconds


class CaptureShape(Object, frozen=True, kw_only=True):
    """A shape of decoder calls that is captured in advance."""

    rows: Annotated[Rows, Meta(description="Number of requests in the call.")]
    frames: Annotated[Frames, Meta(description="Number of frames per request.")]


class CodecSpec(StageSpec, frozen=True, kw_only=True):
    """The codec, which generates audio from code frames. Edits of its batch size, ramp and shapes need no restart."""

    engine: Annotated[
        Literal["torch"], Meta(description="Inference engine: torch is Syrinx's own engine for CPUs and NVIDIA GPUs.")
    ] = "torch"
    max_num_seqs: Annotated[
        Rows, Meta(description="Maximum number of requests per decoder call (batch size). At most maxResident.")
    ] = _CODEC.max_num_seqs
    max_resident: Annotated[Rows, Meta(description="Maximum number of requests with decoder state.")] = _MAX_RESIDENT
    chunk_ramp: Annotated[
        Ramp,
        Meta(
            description="Frames (80 ms each) of a stream's first, second, ... audio chunk. The last value repeats. "
            "Small first chunks reduce time to first audio, large later chunks are more efficient."
        ),
    ] = _CODEC.chunk_ramp
    capture_pairs: Annotated[
        tuple[CaptureShape, ...],
        Meta(
            max_length=64,
            description="Decoder shapes to capture, sorted by rows, then frames. A call is padded to the cheapest "
            "captured shape that fits; without one it runs eagerly. Default: none.",
        ),
    ] = ()


class ConnectorSpec(Object, frozen=True, kw_only=True):
    """The Redis between the stages. Exactly one of `managed` and `url`."""

    managed: Annotated[bool, Meta(description="Run a dedicated Redis for this pipeline.")] = False
    image: Annotated[
        Image | None,
        Meta(
            description="Image of the managed Redis (6.2 or newer). Default: configured in the operator.",
            extra=KUBERNETES,
        ),
    ] = None
    resources: Annotated[
        Resources,
        Meta(
            description="CPU and memory of the managed Redis. Its maxmemory is three quarters of the memory limit.",
            extra=KUBERNETES,
        ),
    ] = Resources(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "512Mi"})
    storage: Annotated[
        Storage | None,
        Meta(
            description="A volume for the managed Redis, so that streams survive a restart of its pod. Default: none; "
            "active streams end with an error if Redis restarts.",
            extra=KUBERNETES,
        ),
    ] = None
    url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        Meta(
            description="URL of an existing Redis (6.2 or newer): redis://HOST:PORT/DB, or rediss://… for TLS, "
            "without a password."
        ),
    ] = None
    password_secret: Annotated[
        SecretKey | None, Meta(description="Secret with the password of `url`. Default: no password.", extra=KUBERNETES)
    ] = None
    ca_secret: Annotated[
        SecretKey | None,
        Meta(
            description="Secret with the CA certificates (PEM) that verify a rediss:// server. Default: those of the "
            "image.",
            extra=KUBERNETES,
        ),
    ] = None
    password_env: Annotated[
        EnvName | None,
        Meta(description="Environment variable of `syrinx up` with the password of `url`. Default: no password."),
    ] = None


TtfaMs = Literal[25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000]
"""The bucket bounds of the TTFA histogram, so that counts need no interpolation."""
Ratio = Annotated[float, Meta(ge=0, le=1)]


class TtfaObjective(Object, frozen=True, kw_only=True):
    """The latency objective of one task type."""

    task_type: Annotated[TaskName, Meta(description="Task type of the requests.")]
    ttfa_p95_ms: Annotated[
        TtfaMs,
        Meta(description="Time to the first audible sample in milliseconds. A bucket bound of the exported histogram."),
    ]
    target: Annotated[Ratio, Meta(description="Share of requests that must meet it.")] = 0.95


class SloSpec(Object, frozen=True, kw_only=True):
    """Service-level objectives."""

    ttfa: Annotated[
        tuple[TtfaObjective, ...],
        Meta(
            max_length=3,
            description="Latency objectives by task type. Default: none.",
            extra_json_schema=list_map("taskType"),
        ),
    ] = ()
    underrun_ratio: Annotated[Ratio, Meta(description="Maximum share of live streams with playback underruns.")] = 0.01


class RowBounds(Object, frozen=True, kw_only=True):
    """Smallest and largest value that tuning may choose."""

    min: Annotated[Rows, Meta(description="Smallest value.")] = 1
    max: Annotated[Rows, Meta(description="Largest value.")] = 1024


class CaptureBounds(Object, frozen=True, kw_only=True):
    """Limits on the captured decoder shapes of one codec."""

    max: Annotated[
        Annotated[int, Meta(ge=0, le=64)], Meta(description="Maximum number of shapes. 0 disables their tuning.")
    ] = 16
    seconds: Annotated[
        Annotated[int, Meta(ge=1, le=3600)], Meta(description="Maximum time in seconds to capture all shapes.")
    ] = 60
    memory_mi_b: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)], Meta(description="Maximum device memory of all shapes in MiB.")
    ] = 2048


class TuningBounds(Object, frozen=True, kw_only=True):
    """The values that tuning may choose."""

    talker_max_num_seqs: Annotated[RowBounds, Meta(description="Bounds of talker.maxNumSeqs.")] = RowBounds()
    codec_max_num_seqs: Annotated[RowBounds, Meta(description="Bounds of codec.maxNumSeqs.")] = RowBounds()
    chunk_ramps: Annotated[
        Annotated[tuple[Ramp, ...], Meta(max_length=16)] | None,
        Meta(
            description="Candidates besides codec.chunkRamp. An empty list disables tuning of the ramp. Default: five "
            "ramps from [1, 2, 4, 8, 12] to [16, 16, 25]."
        ),
    ] = None
    capture_pairs: Annotated[CaptureBounds, Meta(description="Limits on codec.capturePairs.")] = CaptureBounds()


class PrometheusSpec(Object, frozen=True, kw_only=True):
    """The Prometheus that scrapes this pipeline. Its token and CA are configured in the operator."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/@?#\\][^\s@?#\\]*$",
            max_length=512,
            description="URL, for example http://prometheus.monitoring:9090, optionally with a path before /api/v1.",
        ),
    ]


class TuningSpec(Object, frozen=True, kw_only=True):
    """Automatic tuning of the settings."""

    mode: Annotated[
        Literal["Off", "Recommend", "Auto"],
        Meta(description="Off: neither measure nor tune. Recommend: recommend better settings. Auto: apply them."),
    ] = "Recommend"
    paused: Annotated[bool, Meta(description="Suspend tuning and keep the current settings.")] = False
    interval_seconds: Annotated[
        Annotated[int, Meta(ge=5, le=3600)], Meta(description="Seconds between evaluations of the metrics.")
    ] = 30
    bounds: Annotated[TuningBounds, Meta(description="The values that tuning may choose.")] = TuningBounds()
    prometheus: Annotated[
        PrometheusSpec | None, Meta(description="Source of metrics. Default: the stages.", extra=KUBERNETES)
    ] = None


class PodMonitorSpec(Object, frozen=True, kw_only=True):
    """A PodMonitor of the Prometheus operator."""

    interval_seconds: Annotated[Annotated[int, Meta(ge=1, le=3600)], Meta(description="Seconds between scrapes.")] = 15
    labels: Annotated[Labels, Meta(description="Labels that your Prometheus selects PodMonitors by.")] = {}


class MonitoringSpec(Object, frozen=True, kw_only=True):
    """Discovery of and access to the stages for Prometheus."""

    scrape_annotations: Annotated[
        bool, Meta(description="Add the annotations prometheus.io/scrape, port and path to the pods.")
    ] = True
    pod_monitor: Annotated[
        PodMonitorSpec | None, Meta(description="Create a PodMonitor. Needs the Prometheus operator. Default: none.")
    ] = None
    allow_from: Annotated[
        tuple[Peer, ...],
        Meta(
            max_length=16,
            description="Clients besides the operator that may read metrics. Default: pods with the label "
            "app.kubernetes.io/name: prometheus, in all namespaces.",
        ),
    ] = (Peer(pod_labels={"app.kubernetes.io/name": "prometheus"}),)


class PipelineSpec(Object, frozen=True, kw_only=True):
    """The desired state of the pipeline."""

    image: Annotated[
        Image | None,
        Meta(
            description="Image of the stages. Default: the operator's default when the pipeline was created, so that "
            "an upgrade of the operator does not restart pods.",
            extra=KUBERNETES,
        ),
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Meta(description="When images are pulled. Default: Kubernetes decides by the image's tag.", extra=KUBERNETES),
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
            description="Separate: talkers and codecs are separate processes with their own replicas. Colocated: each "
            "talker process also runs a codec, which serves the talker's requests. The fields of the process are then "
            "set in `talker`."
        ),
    ] = "Separate"
    talker: Annotated[TalkerSpec, Meta(description="The stage that generates code frames from text.")] = TalkerSpec()
    codec: Annotated[CodecSpec, Meta(description="The stage that generates audio from code frames.")] = CodecSpec()
    connector: Annotated[
        ConnectorSpec,
        Meta(description="The Redis between the stages: exactly one of `managed` and `url`. Default: a managed Redis."),
    ] = ConnectorSpec(managed=True)
    slo: Annotated[SloSpec, Meta(description="Service-level objectives.")] = SloSpec()
    tuning: Annotated[TuningSpec, Meta(description="Automatic tuning of the settings.")] = TuningSpec()
    monitoring: Annotated[
        MonitoringSpec, Meta(description="Discovery of and access to the stages for Prometheus.", extra=KUBERNETES)
    ] = MonitoringSpec()


class TTSPipeline(Object, frozen=True, kw_only=True):
    """A Qwen3-TTS service: gateways, talkers and codecs, connected by Redis Streams."""

    api_version: Annotated[Literal["syrinx.dev/v1alpha1"], Meta(description="Version of this schema.")]
    kind: Annotated[Literal["TTSPipeline"], Meta(description="Kind of resource.")]
    metadata: Annotated[Metadata, Meta(description="Identifies the pipeline.")]
    spec: Annotated[
        PipelineSpec, Meta(description="The desired state. Default: the bundled voice with one replica of each stage.")
    ] = PipelineSpec()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def model_name(self) -> str:
        """The name that clients send as `model`."""
        model = self.spec.model
        if model.name:
            return model.name
        if model.hugging_face is not None:
            return model.hugging_face.id.rpartition("/")[2]
        return BUNDLED_MODEL_NAME if model.path is None else model.path.rstrip("/").rpartition("/")[2]


def default_pipeline(name: str = "demo") -> TTSPipeline:
    """Returns a pipeline of the bundled voice with one replica of each stage, all fields at their defaults."""
    return TTSPipeline(api_version=API_VERSION, kind=KIND, metadata=Metadata(name=name))
