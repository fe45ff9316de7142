"""The TTSPipeline resource: its fields with their bounds, defaults and descriptions.

The CRD is generated from this module and `pods`. Unknown fields are refused. Rules between fields are in `rules`.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from syrinx_operator.resource import pods
from syrinx_operator.resource.pods import KUBERNETES, Object, list_map
from syrinx_stages.contract import settings
from syrinx_stages.contract.family import TaskName
from syrinx_stages.contract.settings import Frames, ModelAlias, Ramp, Rows, Seconds, VoiceAlias, VoiceName

API_VERSION: Final = "syrinx.dev/v1alpha1"
KIND: Final = "TTSPipeline"
BUNDLED_MODEL_NAME = "syrinx-us"
"""The default of `spec.model.name` for the bundled voice."""

_TALKER = settings.TalkerSettings()
_CODEC = settings.CodecSettings()
_GATEWAY = settings.GatewaySettings()
_API = settings.ApiConfig()
_VLLM = settings.VllmOptions()
_MAX_RESIDENT = settings.StageConfig(pipeline="p", generation="g", replica="r", model="bundled").max_resident

Replicas = Annotated[int, Meta(ge=1, le=64)]
DrainSeconds = Annotated[int, Meta(ge=0, le=3600)]
LocalFile = Annotated[pods.Line, Meta(max_length=1024)]
"""A file on the machine of `syrinx up`, which resolves a relative path from the directory of the resource's file."""
Image = Annotated[str, Meta(min_length=1, max_length=512, pattern="^[^ \\t\\n]+$")]


class Metadata(Object, frozen=True, kw_only=True):
    """Identifies the pipeline."""

    name: Annotated[str, Meta(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
    """Name of the pipeline: up to 40 lower-case letters, digits and '-', starting with a letter. It is part of all
    Redis keys and object names."""
    namespace: Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    """Namespace on Kubernetes. Default: the client's namespace."""
    labels: pods.Labels = {}
    """Labels of the resource."""
    annotations: dict[str, str] = {}
    """Annotations of the resource."""


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


class ModelCache(Object, frozen=True, kw_only=True):
    """Cache of downloaded checkpoints, shared by all pods. Exactly one of `claim` and `storage`."""

    claim: pods.Name | None = None
    """Name of an existing PersistentVolumeClaim. It is kept when the pipeline is deleted."""
    storage: pods.Storage | None = None
    """A volume that is created for the pipeline and deleted with it."""


class ModelSpec(Object, frozen=True, kw_only=True):
    """The Qwen3-TTS checkpoint to serve: exactly one of `bundled`, `path` and `huggingFace`."""

    bundled: bool = False
    """Serve the small voice that is included in Syrinx."""
    path: Annotated[pods.Line, Meta(max_length=1024)] | None = None
    """Directory of a checkpoint in the official layout (config.json, model.safetensors, speech_tokenizer/). `syrinx up`
    resolves a relative path from the directory of the resource's file. On Kubernetes it is a directory in `claim`, or
    an absolute path in the container."""
    claim: Annotated[pods.Name | None, KUBERNETES] = None
    """PersistentVolumeClaim that contains `path`. It is mounted read-only."""
    hugging_face: Annotated[HuggingFace | None, KUBERNETES] = None
    """A checkpoint on a Hugging Face hub, downloaded before a stage starts."""
    cache: Annotated[ModelCache | None, KUBERNETES] = None
    """Cache of downloaded checkpoints: exactly one of `claim` and `storage`. Default: none; each new pod downloads the
    checkpoint."""
    name: Annotated[pods.Line, Meta(max_length=128)] | None = None
    """Name that clients send as `model`. Default: syrinx-us for the bundled voice, otherwise the last component of the
    path or of the repository."""


class ServiceSpec(Object, frozen=True, kw_only=True):
    """The Kubernetes Service of the gateways."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    node_port: pods.Port | None = None
    """Port on each node, with type NodePort or LoadBalancer. Default: allocated by Kubernetes."""
    annotations: pods.Annotations = {}
    """Annotations of the Service, for example for load balancers."""


class ApiSpec(Object, frozen=True, kw_only=True):
    """Names that the public API accepts besides those of the checkpoint, and what it does with instructions."""

    openai_names: bool = _API.openai_names
    """Accept OpenAI's voice and model names (alloy, tts-1, ...) as aliases, so that clients work on their defaults."""
    voice_aliases: Annotated[dict[VoiceAlias, VoiceName], Meta(max_length=32)] = _API.voice_aliases
    """Other names of voices, in lower case, each with its voice. `default` is the voice of requests that name none. A
    gateway does not start if the checkpoint does not have a voice. Default: none."""
    model_aliases: Annotated[tuple[ModelAlias, ...], Meta(max_length=16)] = _API.model_aliases
    """Other names that clients may send as `model`. Default: none."""
    unsupported_instructions: Literal["Ignore", "Refuse"] = _API.unsupported_instructions
    """What happens to requests with instructions that the checkpoint cannot follow. Ignore: they are served, with a
    Warning header. Refuse: they are answered with 422."""


class ApiKeysSpec(Object, frozen=True, kw_only=True):
    """The API keys of the clients: `secret` on Kubernetes, `file` with `syrinx up`."""

    secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the file of API keys. Its changes take effect without a restart."""
    file: LocalFile | None = None
    """File of API keys for `syrinx up`. Its changes take effect without a restart."""


class TlsSpec(Object, frozen=True, kw_only=True):
    """The certificate of the API: `secret` on Kubernetes, `certificateFile` and `keyFile` with `syrinx up`."""

    secret: Annotated[pods.Name | None, KUBERNETES] = None
    """Secret of type kubernetes.io/tls. Its changes take effect without a restart."""
    certificate_file: LocalFile | None = None
    """File with the certificate and those of intermediate authorities (PEM) for `syrinx up`."""
    key_file: LocalFile | None = None
    """File with the private key (PEM, without a password) for `syrinx up`."""


Origin = Annotated[str, Meta(pattern=r"^([*]|[a-z][-+.a-z0-9]*://[^\s/?#@,*]+)$", max_length=253)]
"""The origin of a web page as browsers send it."""


class CorsSpec(Object, frozen=True, kw_only=True):
    """Access from web pages of other origins (CORS)."""

    allow_origins: Annotated[tuple[Origin, ...], Meta(max_length=64)] = ()
    """Origins whose pages may call the API, for example https://app.example.org; * allows all. Default: none."""


class GatewaySpec(pods.PodFields, frozen=True, kw_only=True):
    """The public HTTP API."""

    replicas: Annotated[Replicas, KUBERNETES] = 1
    """Number of gateway pods. `syrinx up` runs one."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    """TCP port of the API. With `syrinx up`, 0 selects a free port."""
    service: Annotated[ServiceSpec, KUBERNETES] = ServiceSpec()
    """The Service of the gateways."""
    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = _GATEWAY.max_queue
    """Maximum number of requests that wait for a talker. Further requests are answered with 503."""
    max_queue_seconds: Seconds = _GATEWAY.max_queue_seconds
    """Maximum seconds that a request waits for a talker. A request that would wait longer, or has waited longer, is
    answered with 503. Also applies if no talker or codec is ready."""
    reference_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s/@]+$", max_length=253)], ...], Meta(max_length=64)
    ] = ()
    """Hosts from which reference audio may be downloaded by URL. Default: none."""
    api: ApiSpec = ApiSpec()
    """Names that the API accepts besides those of the checkpoint, and what it does with instructions."""
    api_keys: ApiKeysSpec | None = None
    """API keys, of which every request needs one. Default: none; everybody who reaches the gateway may use it."""
    tls: TlsSpec | None = None
    """Certificate for HTTPS. Default: none; the API is served over HTTP."""
    cors: CorsSpec = CorsSpec()
    """Access from web pages of other origins (CORS)."""
    trusted_proxies: Annotated[tuple[pods.Cidr, ...], Meta(max_length=64)] = ()
    """Address ranges of proxies, for example 10.0.0.0/8, whose X-Forwarded-For names the client. Default: none."""
    drain_seconds: DrainSeconds = 120
    """Seconds in which a stopping gateway finishes its streams. Use the duration of your longest utterance."""
    resources: Annotated[pods.Resources, KUBERNETES] = pods.Resources(requests={"cpu": "50m", "memory": "128Mi"})
    """CPU and memory of the container."""


class StageSpec(pods.PodFields, frozen=True, kw_only=True):
    """Fields of both talker and codec."""

    device: Literal["cpu", "cuda"] | None = None
    """Device that the stage computes on. Default: cpu, or on Kubernetes cuda if `resources` has a GPU."""
    replicas: Replicas = 1
    """Number of processes. Requests go to the replicas with free rows."""
    drain_seconds: DrainSeconds = 60
    """Seconds in which a stopping replica finishes its requests. Other replicas then take over the rest, without losing
    a frame."""
    startup_seconds: Annotated[int, Meta(ge=10, le=86_400), KUBERNETES] = 600
    """Seconds in which a replica must load and warm up. After that it is restarted."""
    resources: Annotated[pods.Resources, KUBERNETES] = pods.Resources(requests={"cpu": "200m", "memory": "512Mi"})
    """CPU, memory and GPUs of the container."""


VllmWord = Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)]
"""The name of an option's value in vLLM."""


class VllmSpec(Object, frozen=True, kw_only=True):
    """Engine options of vLLM, as in `vllm serve --help`."""

    tensor_parallel_size: Annotated[int, Meta(ge=1, le=16)] = _VLLM.tensor_parallel_size
    """Number of GPUs for tensor parallelism. Each talker pod needs as many GPUs."""
    quantization: VllmWord | None = _VLLM.quantization
    """Quantization of the weights at load time, for example fp8. Default: none."""
    kv_cache_dtype: VllmWord = _VLLM.kv_cache_dtype
    """Data type of the KV cache, for example fp8. auto uses the data type of the weights."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = _VLLM.gpu_memory_utilization
    """Fraction of the GPU memory for vLLM, including weights and KV cache."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1 << 20)] | None = _VLLM.max_num_batched_tokens
    """Maximum number of tokens per step, including prompts. Default: vLLM's default."""


class TalkerSpec(StageSpec, frozen=True, kw_only=True):
    """The talker, which generates code frames from text. Edits of maxNumSeqs and leadLimitSeconds need no restart."""

    engine: Literal["torch", "vllm"] = "torch"
    """Inference engine: torch is Syrinx's own engine for CPUs and NVIDIA GPUs; vllm is vLLM, which needs an image built
    with VARIANT=vllm."""
    vllm: VllmSpec | None = None
    """Options of engine vllm. Default: the defaults of its fields."""
    max_num_seqs: Rows = _TALKER.max_num_seqs
    """Maximum number of requests per step (batch size). At most maxResident."""
    max_resident: Rows = _MAX_RESIDENT
    """Maximum number of requests with resident state. Requests that are not in the current step wait for their
    deadline."""
    lead_limit_seconds: Seconds = _TALKER.lead_limit_seconds
    """A live stream releases its row when its codes are this many seconds ahead of playback."""


class CaptureShape(Object, frozen=True, kw_only=True):
    """A shape of decoder calls that is captured in advance."""

    rows: Rows
    """Number of requests in the call."""
    frames: Frames
    """Number of frames per request."""


class CodecSpec(StageSpec, frozen=True, kw_only=True):
    """The codec, which generates audio from code frames. Edits of its batch size, ramp and shapes need no restart."""

    engine: Literal["torch"] = "torch"
    """Inference engine: torch is Syrinx's own engine for CPUs and NVIDIA GPUs."""
    max_num_seqs: Rows = _CODEC.max_num_seqs
    """Maximum number of requests per decoder call (batch size). At most maxResident."""
    max_resident: Rows = _MAX_RESIDENT
    """Maximum number of requests with decoder state."""
    chunk_ramp: Ramp = _CODEC.chunk_ramp
    """Frames (80 ms each) of a stream's first, second, ... audio chunk. The last value repeats. Small first chunks
    reduce time to first audio, large later chunks are more efficient."""
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64)] = ()
    """Decoder shapes to capture, sorted by rows, then frames. A call is padded to the cheapest captured shape that
    fits; without one it runs eagerly. Default: none."""


class ConnectorSpec(Object, frozen=True, kw_only=True):
    """The Redis between the stages. Exactly one of `managed` and `url`."""

    managed: bool = False
    """Run a dedicated Redis for this pipeline."""
    image: Annotated[Image | None, KUBERNETES] = None
    """Image of the managed Redis (6.2 or newer). Default: configured in the operator."""
    resources: Annotated[pods.Resources, KUBERNETES] = pods.Resources(
        requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "512Mi"}
    )
    """CPU and memory of the managed Redis. Its maxmemory is three quarters of the memory limit."""
    storage: Annotated[pods.Storage | None, KUBERNETES] = None
    """A volume for the managed Redis, so that streams survive a restart of its pod. Default: none; active streams end
    with an error if Redis restarts."""
    url: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """URL of an existing Redis (6.2 or newer): redis://HOST:PORT/DB, or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB
    with the hosts of sentinels. With TLS rediss://… or rediss+sentinel://…. Without a password."""
    password_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the password of `url`. Default: no password."""
    ca_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the CA certificates (PEM) that verify a server with TLS. Default: those of the image."""
    password_env: pods.EnvName | None = None
    """Environment variable of `syrinx up` with the password of `url`. Default: no password."""


TtfaMs = Literal[25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000]
"""The bucket bounds of the TTFA histogram, so that counts need no interpolation."""
Ratio = Annotated[float, Meta(ge=0, le=1)]


class TtfaObjective(Object, frozen=True, kw_only=True):
    """The latency objective of one task type."""

    task_type: TaskName
    """Task type of the requests."""
    ttfa_p95_ms: TtfaMs
    """Time to the first audible sample in milliseconds. A bucket bound of the exported histogram."""
    target: Ratio = 0.95
    """Share of requests that must meet it."""


class SloSpec(Object, frozen=True, kw_only=True):
    """Service-level objectives."""

    ttfa: Annotated[tuple[TtfaObjective, ...], Meta(max_length=3), list_map("taskType")] = ()
    """Latency objectives by task type. Default: none."""
    underrun_ratio: Ratio = 0.01
    """Maximum share of live streams with playback underruns."""


class RowBounds(Object, frozen=True, kw_only=True):
    """Smallest and largest value that tuning may choose."""

    min: Rows = 1
    """Smallest value."""
    max: Rows = 1024
    """Largest value."""


class CaptureBounds(Object, frozen=True, kw_only=True):
    """Limits on the captured decoder shapes of one codec."""

    max: Annotated[int, Meta(ge=0, le=64)] = 16
    """Maximum number of shapes. 0 disables their tuning."""
    seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """Maximum time in seconds to capture all shapes."""
    memory_mi_b: Annotated[int, Meta(ge=1, le=1_048_576)] = 2048
    """Maximum device memory of all shapes in MiB."""


class TuningBounds(Object, frozen=True, kw_only=True):
    """The values that tuning may choose."""

    talker_max_num_seqs: RowBounds = RowBounds()
    """Bounds of talker.maxNumSeqs."""
    codec_max_num_seqs: RowBounds = RowBounds()
    """Bounds of codec.maxNumSeqs."""
    chunk_ramps: Annotated[tuple[Ramp, ...], Meta(max_length=16)] | None = None
    """Candidates besides codec.chunkRamp. An empty list disables tuning of the ramp. Default: five ramps from [1, 2, 4,
    8, 12] to [16, 16, 25]."""
    capture_pairs: CaptureBounds = CaptureBounds()
    """Limits on codec.capturePairs."""


class PrometheusSpec(Object, frozen=True, kw_only=True):
    """The Prometheus that scrapes this pipeline. Its token and CA are configured in the operator."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s/@?#\\][^\s@?#\\]*$", max_length=512)]
    """URL, for example http://prometheus.monitoring:9090, optionally with a path before /api/v1."""


class TuningSpec(Object, frozen=True, kw_only=True):
    """Automatic tuning of the settings."""

    mode: Literal["Off", "Recommend", "Auto"] = "Recommend"
    """Off: neither measure nor tune. Recommend: recommend better settings. Auto: apply them."""
    paused: bool = False
    """Suspend tuning and keep the current settings."""
    interval_seconds: Annotated[int, Meta(ge=5, le=3600)] = 30
    """Seconds between evaluations of the metrics."""
    bounds: TuningBounds = TuningBounds()
    """The values that tuning may choose."""
    prometheus: Annotated[PrometheusSpec | None, KUBERNETES] = None
    """Source of metrics. Default: the stages."""


class PodMonitorSpec(Object, frozen=True, kw_only=True):
    """A PodMonitor of the Prometheus operator."""

    interval_seconds: Annotated[int, Meta(ge=1, le=3600)] = 15
    """Seconds between scrapes."""
    labels: pods.Labels = {}
    """Labels that your Prometheus selects PodMonitors by."""


class TracingSpec(Object, frozen=True, kw_only=True):
    """Traces of speech requests, exported with OpenTelemetry's protocol."""

    endpoint: Annotated[str, Meta(pattern=r"^https?://[^\s/@?#\\][^\s@?#\\]*$", max_length=512)]
    """URL of a collector of OTLP over HTTP, for example http://otel-collector.monitoring:4318. Spans are sent to
    /v1/traces below it. Headers with credentials are set by the variable OTEL_EXPORTER_OTLP_HEADERS in `env`."""
    sample_ratio: Ratio = 0.1
    """Share of the requests that are traced. A request with a `traceparent` header is traced if that says so."""


class MonitoringSpec(Object, frozen=True, kw_only=True):
    """Metrics for Prometheus, and traces."""

    scrape_annotations: Annotated[bool, KUBERNETES] = True
    """Add the annotations prometheus.io/scrape, port and path to the pods."""
    pod_monitor: Annotated[PodMonitorSpec | None, KUBERNETES] = None
    """Create a PodMonitor. Needs the Prometheus operator. Default: none."""
    tracing: TracingSpec | None = None
    """Traces of speech requests. Default: none."""
    allow_from: Annotated[tuple[pods.Peer, ...], Meta(max_length=16), KUBERNETES] = (
        pods.Peer(pod_labels={"app.kubernetes.io/name": "prometheus"}),
    )
    """Clients besides the operator that may read metrics. Default: pods with the label app.kubernetes.io/name:
    prometheus, in all namespaces."""


class PipelineSpec(Object, frozen=True, kw_only=True):
    """The desired state of the pipeline."""

    image: Annotated[Image | None, KUBERNETES] = None
    """Image of the stages. Default: the operator's default when the pipeline was created, so that an upgrade of the
    operator does not restart pods."""
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"] | None, KUBERNETES] = None
    """When images are pulled. Default: Kubernetes decides by the image's tag."""
    image_pull_secrets: Annotated[tuple[pods.SecretName, ...], Meta(max_length=8), KUBERNETES, list_map("name")] = ()
    """Secrets with registry credentials. Default: none."""
    update_strategy: Annotated[Literal["Surge", "Replace"], KUBERNETES] = "Surge"
    """How the only talker or codec that serves is replaced. Surge: another pod becomes ready first, which needs room
    for one more pod (and GPU). Replace: it ends first, and requests get 503 until its successor has loaded the model.
    Always Replace for a stage whose replicas an autoscaler sets."""
    progress_deadline_seconds: Annotated[Annotated[int, Meta(ge=60, le=172_800)] | None, KUBERNETES] = None
    """Seconds without progress after which a roll-out or scaling is reported as failed. It then still continues as soon
    as it can. Default: 600 for a download of the checkpoint, plus the largest startupSeconds."""
    model: ModelSpec = ModelSpec(bundled=True)
    """The checkpoint to serve: exactly one of `bundled`, `path` and `huggingFace`. Default: the bundled voice."""
    gateway: GatewaySpec = GatewaySpec()
    """The public HTTP API."""
    topology: Literal["Separate", "Colocated"] = "Separate"
    """Separate: talkers and codecs are separate processes with their own replicas. Colocated: each talker process also
    runs a codec, which serves the talker's requests. The fields of the process are then set in `talker`."""
    talker: TalkerSpec = TalkerSpec()
    """The stage that generates code frames from text."""
    codec: CodecSpec = CodecSpec()
    """The stage that generates audio from code frames."""
    connector: ConnectorSpec = ConnectorSpec(managed=True)
    """The Redis between the stages: exactly one of `managed` and `url`. Default: a managed Redis."""
    slo: SloSpec = SloSpec()
    """Service-level objectives."""
    tuning: TuningSpec = TuningSpec()
    """Automatic tuning of the settings."""
    monitoring: MonitoringSpec = MonitoringSpec()
    """Metrics for Prometheus, and traces."""


class TTSPipeline(Object, frozen=True, kw_only=True):
    """A Qwen3-TTS service: gateways, talkers and codecs, connected by Redis Streams."""

    api_version: Literal["syrinx.dev/v1alpha1"]
    """Version of this schema."""
    kind: Literal["TTSPipeline"]
    """Kind of resource."""
    metadata: Metadata
    """Identifies the pipeline."""
    spec: PipelineSpec = PipelineSpec()
    """The desired state. Default: the bundled voice with one replica of each stage."""

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
