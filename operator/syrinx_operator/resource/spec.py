"""The TTSPipeline resource: its fields with their bounds, defaults and descriptions.

The CRD is generated from it. `gateway`, `model`, `connector`, `tuning` and `pods` have the fields of these subjects.
Unknown fields are refused. Rules between fields are in `rules`.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from syrinx_operator.resource.fields import pods
from syrinx_operator.resource.fields.autoscaling import StageAutoscalingSpec
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.fields.gateway import GatewaySpec
from syrinx_operator.resource.fields.model import ModelSpec
from syrinx_operator.resource.fields.pods import KUBERNETES, Object, list_map
from syrinx_operator.resource.fields.rollout import RolloutSpec
from syrinx_operator.resource.fields.tuning import Ratio, SloSpec, TuningSpec
from syrinx_stages.contract import settings
from syrinx_stages.contract.settings import Frames, Ramp, Rows, Seconds

API_VERSION: Final = "syrinx.dev/v1beta1"
"""The version that the operator uses and the API server stores."""
KIND: Final = "TTSPipeline"
BUNDLED_MODEL_NAME = "syrinx-us"
"""The default of `spec.model.name` for the bundled voice."""

NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH: Final = 40
"""Those of a pipeline's name, which is a prefix of the names of its objects."""

_VLLM = settings.VllmOptions()


MemoryFraction = Annotated[float, Meta(gt=0, le=1)]


class Metadata(Object, frozen=True, kw_only=True):
    """Identifies the pipeline."""

    name: Annotated[str, Meta(pattern=NAME, max_length=NAME_LENGTH)]
    """Name of the pipeline: up to 40 lower-case letters, digits and '-', starting with a letter. It is part of all
    Redis keys and object names."""
    namespace: Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    """Namespace on Kubernetes. Default: the client's namespace."""
    labels: pods.Labels = {}
    """Labels of the resource."""
    annotations: dict[str, str] = {}
    """Annotations of the resource."""


class StageSpec(pods.PodFields, frozen=True, kw_only=True):
    """Fields of both talker and codec."""

    device: Literal["cpu", "cuda"] | None = None
    """Device that the stage computes on. Default: cpu, or on Kubernetes cuda if `resources` has a GPU."""
    replicas: pods.Replicas = 1
    """Number of processes. Requests go to the replicas with free rows. Default: 1, or with `syrinx up` and device cuda
    one for each GPU."""
    standby: bool = False
    """Whether each replica has a standby: a process on the same device that is ready, and serves only while its replica
    does not. A replica that crashes then costs its streams and new requests little more than a second instead of a
    restart. Takes a third of memoryFraction. Only with `syrinx up`, which sets it for device cuda without `replicas` if
    the GPUs have 40 GB."""
    autoscaling: Annotated[StageAutoscalingSpec | None, KUBERNETES] = None
    """Autoscaler of the stage. Default: none."""
    drain_seconds: pods.DrainSeconds = 60
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
    max_num_seqs: Rows | None = None
    """Maximum number of requests per step (batch size). At most maxResident. Default: 8 on a CPU, 256 on a GPU."""
    max_resident: Rows | None = None
    """Maximum number of requests with resident state. Requests that are not in the current step wait for their
    deadline. Default: 32 on a CPU, 1024 on a GPU; fewer if memoryFraction has no room for them."""
    memory_fraction: MemoryFraction | None = None
    """Fraction of a GPU's memory that the talker uses at most, including weights. Default: 0.6, so that a codec fits on
    the same GPU. For engine vllm see vllm.gpuMemoryUtilization."""
    lead_limit_seconds: Seconds = settings.TalkerSettings().lead_limit_seconds
    """While other streams need steps, a live stream is generated at most this many seconds ahead of playback; otherwise
    ahead of what its client has received."""


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
    max_num_seqs: Rows | None = None
    """Maximum number of requests per decoder call (batch size). At most maxResident. Default: 8 on a CPU, 32 on a
    GPU."""
    max_resident: Rows | None = None
    """Maximum number of requests with decoder state. Default: 32 on a CPU, 1024 on a GPU; fewer if memoryFraction has
    no room for them."""
    memory_fraction: MemoryFraction | None = None
    """Fraction of a GPU's memory that the codec uses at most, including weights. Default: 0.3, so that a talker fits on
    the same GPU."""
    chunk_ramp: Ramp | None = None
    """Frames (80 ms each) of a stream's first, second, ... audio chunk. The last value repeats. Small first chunks
    reduce time to first audio, large later chunks are more efficient. Default: [2, 2, 3, 4, 5, 7, 9, 12] on a CPU,
    [2, 2, 4, 8, 12] on a GPU."""
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64)] | None = None
    """Decoder shapes to capture, sorted by rows, then frames. A call is padded to the cheapest captured shape that
    fits; without one it runs eagerly. Default: none on a CPU; on a GPU each size of the chunk ramp for 1, 2, 4, ...
    up to maxNumSeqs rows."""


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


class ServiceAccountSpec(Object, frozen=True, kw_only=True):
    """The ServiceAccount of the stages' pods, without permissions in the cluster."""

    annotations: pods.Annotations = {}
    """Annotations, for example of a cloud's identity."""


class VoiceSpec(Object, frozen=True, kw_only=True):
    """A voice that all clients may use: exactly one of `file` and `url`."""

    name: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=64)]
    """Name that clients send as `voice`, ignoring case."""
    file: Annotated[pods.Line, Meta(max_length=1024)] | None = None
    """File with 1 to 30 s of speech, as in the request field ref_audio, up to 16 MB. On Kubernetes an absolute path in
    the gateways' container, for example below the mountPath of one of gateway.extraVolumes; with `syrinx up` also a
    path from the directory of the resource's file."""
    url: Annotated[str, Meta(pattern=r"^https?://[^\s@]+$", max_length=2048)] | None = None
    """URL of such a file, on one of gateway.referenceHosts."""
    consent: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Who agreed to the use of the voice, in your words: for example the id of a recording. Clients see it."""
    transcript: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """What is said in the file. Default: none; the voice is then its speaker embedding alone, which is less like the
    speaker."""


class PipelineSpec(Object, frozen=True, kw_only=True):
    """The desired state of the pipeline."""

    image: Annotated[pods.Image | None, KUBERNETES] = None
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
    rollout: Annotated[RolloutSpec, KUBERNETES] = RolloutSpec()
    """How a new version replaces the running one."""
    paused: Annotated[bool, KUBERNETES] = False
    """Leave the pipeline's objects, settings and tuning as they are. The status is still updated."""
    service_account: Annotated[ServiceAccountSpec, KUBERNETES] = ServiceAccountSpec()
    """The ServiceAccount of the stages' pods."""
    fixed_user: Annotated[bool, KUBERNETES] = True
    """Run the pods as users 65532 and, of Redis, 999. false: the cluster chooses the users, as on OpenShift."""
    model: ModelSpec = ModelSpec(bundled=True)
    """The checkpoint to serve: exactly one of `bundled`, `path`, `huggingFace`, `s3` and `image`. Default: the bundled
    voice."""
    voices: Annotated[tuple[VoiceSpec, ...], Meta(max_length=32), list_map("name")] = ()
    """Voices that all clients may use, cloned by a Base checkpoint. The first is the voice of requests that name none.
    A gateway reads them when it starts, and does not start if one cannot be used: the condition Degraded then names
    each. Default: none."""
    gateway: GatewaySpec = GatewaySpec()
    """The public HTTP API."""
    topology: Literal["Separate", "Colocated"] = "Separate"
    """Separate: talkers and codecs have pods of their own. Colocated: each talker's pod also runs a codec, and both
    share its GPU; the fields of the pod are set in `talker`."""
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

    api_version: Literal["syrinx.dev/v1beta1"]
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
        return model.default_name or BUNDLED_MODEL_NAME


def default_pipeline(name: str = "demo") -> TTSPipeline:
    """Returns a pipeline of the bundled voice with one replica of each stage, all fields at their defaults."""
    return TTSPipeline(api_version=API_VERSION, kind=KIND, metadata=Metadata(name=name))
