"""The status of a TTSPipeline: its fields and their descriptions, from which the CRD is generated."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from syrinx_operator.resource.fields.pods import list_map
from syrinx_operator.resource.knobs import Setting, StatusStruct
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state.canary_status import CanaryStatus
from syrinx_operator.resource.state.tuning_status import (
    Count,
    Forecast,
    Ratio,
    Recommendation,
    Text,
    Timestamp,
    TrialRecord,
)
from syrinx_operator.resource.versions import read_known
from syrinx_stages.contract.family import TaskName
from syrinx_stages.contract.settings import Frames

StageConditionType = Literal["GatewayReady", "TalkerReady", "CodecReady", "ConnectorReady"]
ConditionType = Literal[
    "Ready",
    StageConditionType,
    "MetricsAvailable",
    "TuningReady",
    "AutoscalingReady",
    "Progressing",
    "Degraded",
    "UnknownFields",
]
"""The types that this operator writes."""
ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 1024
"""Maximum number of characters; longer messages are truncated."""


class Condition(StatusStruct, frozen=True, kw_only=True):
    """A condition, as in Kubernetes objects."""

    # Open: a newer operator may write more types into this schema, and its status is read after a rollback.
    type: Annotated[str, Meta(pattern="^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", max_length=316)]
    """Type of the condition."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Meta(pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128)]
    """Machine-readable reason."""
    message: Annotated[str, Meta(max_length=MAX_MESSAGE)]
    """Human-readable reason and advice."""
    last_transition_time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    """When `status` last changed."""
    observed_generation: Annotated[int, Meta(ge=0)]
    """metadata.generation that the condition is based on."""


PENDING = Condition(
    type="Ready",
    status="Unknown",
    reason="Pending",
    message="no operator has seen this pipeline yet: is one running, and does it watch this namespace?",
    last_transition_time="1970-01-01T00:00:00Z",
    observed_generation=0,
)
"""The condition of a pipeline that no operator has seen. The API server sets it, as the default of the status."""

MAX_OUTCOMES = 5
"""Maximum number of results of trials."""
MAX_CONFIRMED = 64
"""Maximum number of listed replicas of a stage."""


class GatewayValues(StatusStruct, frozen=True, kw_only=True):
    """Live settings of the gateways."""

    max_queue: int
    """Maximum number of waiting requests."""
    max_queue_seconds: float
    """Maximum seconds that a request waits for a talker."""


class TalkerValues(StatusStruct, frozen=True, kw_only=True):
    """Live settings of the talkers."""

    max_num_seqs: int
    """Maximum number of requests per step."""
    lead_limit_seconds: float
    """A live stream releases its row when its codes are this many seconds ahead of playback."""


class CodecValues(StatusStruct, frozen=True, kw_only=True):
    """Live settings of the codecs."""

    max_num_seqs: int
    """Maximum number of requests per decoder call."""
    chunk_ramp: Annotated[tuple[Frames, ...], Meta(max_length=16)]
    """Frames of a stream's first, second, ... chunk."""
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64)]
    """Captured decoder shapes."""


class ReplicaStatus(StatusStruct, frozen=True, kw_only=True):
    """The state of one replica."""

    replica: Annotated[str, Meta(max_length=253)]
    """Name of the pod."""
    generation: Count | None = None
    """Generation of its current settings. Absent if it does not respond."""
    restarts: Count | None = None
    """Number of restarts. Absent if 0."""
    problem: Annotated[str, Meta(max_length=256)] | None = None
    """Why it does not run, as reported by Kubernetes. Absent if it runs."""


class StageStatus(StatusStruct, frozen=True, kw_only=True):
    """The state of a stage."""

    replicas: Count
    """Number of pods, without terminating pods."""
    ready_replicas: Count
    """Number of ready pods."""
    updated_replicas: Count
    """Number of pods with the current template."""
    summary: Annotated[str, Meta(max_length=32)]
    """Ready and desired replicas, for example 1/2."""
    selector: Annotated[str, Meta(max_length=512)]
    """Label selector of the pods, for the scale subresource."""
    settings_generation: Count
    """Generation of the settings. Increases with each change."""
    confirmed_generation: Count | None = None
    """Newest settings generation that all replicas had applied. Absent before the first."""
    confirmed: Annotated[tuple[ReplicaStatus, ...], Meta(max_length=MAX_CONFIRMED), list_map("replica")] = ()
    """State of each replica, the first 64 by name. Absent without replicas."""


class GatewayStatus(StageStatus, frozen=True, kw_only=True):
    """The gateways."""

    settings: GatewayValues
    """Desired live settings of all replicas."""


class TalkerStatus(StageStatus, frozen=True, kw_only=True):
    """The talkers."""

    settings: TalkerValues
    """Desired live settings of all replicas."""


class CodecStatus(StageStatus, frozen=True, kw_only=True):
    """The codecs."""

    settings: CodecValues
    """Desired live settings of all replicas."""


class RedisStatus(StatusStruct, frozen=True, kw_only=True):
    """The managed Redis."""

    ready: bool
    """Whether it serves: with replicas, whether the majority is ready; with cells, whether one of them serves."""
    summary: Annotated[str, Meta(max_length=32)] | None = None
    """Ready and desired servers, for example 3/3."""
    restarts: Count | None = None
    """Number of restarts. Absent if 0."""


class SloStatus(StatusStruct, frozen=True, kw_only=True):
    """Latency of one task type within the last 5 minutes, or one tuning interval if that is longer."""

    task_type: TaskName
    """Task type."""
    requests: Count | None = None
    """Number of live requests with audible audio. Absent without metrics."""
    within: Ratio | None = None
    """Share of these requests that met the objective. Absent without an objective or requests."""
    ttfa_p95_ms: Count | None = None
    """95th percentile of the time to first audio in milliseconds, interpolated within its histogram bucket. 10000 means
    10000 or more. Absent without requests."""
    met: ConditionStatus
    """Whether the objective was met. Unknown without an objective or requests."""


class TrialStatus(StatusStruct, frozen=True, kw_only=True):
    """The experiment in progress: all replicas run another setting at times."""

    id: Count
    """Number of the trial."""
    before: Text
    """The values that differ, in the baseline."""
    after: Text
    """The same under test."""
    rationale: Text
    """Why it is tried."""
    start_time: Timestamp
    """Start of the trial."""


class TuningStatus(StatusStruct, frozen=True, kw_only=True):
    """What tuning does. Everything else that the tuner remembers is in the ConfigMap."""

    # Text, so that those of a newer operator can be read.
    mode: Annotated[str, Meta(max_length=64)]
    """The requested mode."""
    phase: Annotated[str, Meta(max_length=64)]
    """Off and Paused as requested. NoData: no requests or metrics. Watching: requests are counted. Trial: a setting is
    tried. Soaking: one that has come into force is watched."""
    message: Annotated[str, Meta(max_length=MAX_MESSAGE)]
    """What is known, what was tried last and what that brought, and what comes next."""
    config_map: Annotated[str, Meta(max_length=253)] | None = None
    """Name of the ConfigMap with the tuner's state."""
    requested: Setting | None = None
    """Setting that spec requested at the last evaluation."""
    chosen: Setting | None = None
    """Setting in force outside of trials. Absent while it is the requested one."""
    last_good: Setting | None = None
    """Setting that a regression reverts to."""
    last_change_time: Timestamp | None = None
    """Last change of settings."""
    next_trial_time: Timestamp | None = None
    """The model is not asked for a better setting before this time, unless the load changes."""
    forecast: Forecast | None = None
    """What the model says of the present load. Absent before it was asked."""
    recommendation: Recommendation | None = None
    """The next change to try."""
    replicas: Text | None = None
    """Numbers of replicas and the last change of them. Absent if the tuner does not decide them."""
    trial_count: Count = 0
    """Trials so far."""
    trial: TrialStatus | None = None
    """The trial in progress."""
    history: Annotated[tuple[TrialRecord, ...], Meta(max_length=MAX_OUTCOMES)] = ()
    """The last results, oldest first."""


class PipelineStatus(StatusStruct, frozen=True, kw_only=True):
    """The observed state of the pipeline."""

    observed_generation: Count | None = None
    """metadata.generation of the newest resource that was applied completely. If it lags, the conditions show the
    cause."""
    endpoint: Annotated[str, Meta(max_length=256)] | None = None
    """URL of the API in the cluster."""
    model: Annotated[str, Meta(max_length=256)] | None = None
    """Name that clients send as `model`."""
    model_generation: Annotated[str, Meta(max_length=64)] | None = None
    """Desired model generation. Stages of different generations never exchange data."""
    image: Annotated[str, Meta(max_length=512)] | None = None
    """Desired image of the stages."""
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=16), list_map("type")] = ()
    """Ready: the service is available. Progressing: the actual state does not match the desired state yet. Degraded: a
    problem needs intervention."""
    gateway: GatewayStatus | None = None
    """The gateways."""
    talker: TalkerStatus | None = None
    """The talkers."""
    codec: CodecStatus | None = None
    """The codecs."""
    redis: RedisStatus | None = None
    """The managed Redis. Absent with `connector.url`."""
    # Applied as a whole, so that no fields of other writers remain.
    tuning: Annotated[TuningStatus | None, Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})] = None
    """State of tuning."""
    canary: Annotated[CanaryStatus | None, Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})] = None
    """The canary in progress, or the one that has failed. Absent without one."""
    slo: Annotated[tuple[SloStatus, ...], Meta(max_length=3), list_map("taskType")] = ()
    """Recent latency of each task type."""
    underrun_ratio: Ratio | None = None
    """Share of recent live streams with playback underruns. Absent without live streams."""
    ttfa_p95: Annotated[str, Meta(max_length=16)] | None = None
    """95th percentile of the slowest task type, for example 312ms. Absent without requests."""


def read(status: Mapping[str, Any] | None) -> PipelineStatus:
    """Returns the decoded status, without what this version cannot read, for example of a newer operator."""
    return read_known(dict(status or {}), PipelineStatus)
