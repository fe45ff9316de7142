"""The status of a TTSPipeline: its fields and their descriptions, from which the CRD is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.tuning_status import State
from syrinx_stages.contract.family import TaskName
from syrinx_stages.contract.settings import Frames

ConditionType = Literal[
    "Ready",
    "GatewayReady",
    "TalkerReady",
    "CodecReady",
    "ConnectorReady",
    "MetricsAvailable",
    "TuningReady",
    "Progressing",
    "Degraded",
]
ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 1024
"""Maximum number of characters; longer messages are truncated."""


class StatusPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all objects of the status: camelCase, without unknown values."""


class Condition(StatusPart, frozen=True, kw_only=True):
    """A condition, as in Kubernetes objects."""

    type: Annotated[ConditionType, Meta(description="Type of the condition.")]
    status: Annotated[ConditionStatus, Meta(description="True, False or Unknown.")]
    reason: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128, description="Machine-readable reason."
        ),
    ]
    message: Annotated[str, Meta(max_length=MAX_MESSAGE, description="Human-readable reason and advice.")]
    last_transition_time: Annotated[
        str, Meta(description="When `status` last changed.", extra_json_schema={"format": "date-time"})
    ]
    observed_generation: Annotated[int, Meta(ge=0, description="metadata.generation that the condition is based on.")]


MAX_CONFIRMED = 64
"""Maximum number of listed replicas of a stage."""

Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]


class GatewayValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the gateways."""

    max_queue: Annotated[int, Meta(description="Maximum number of waiting requests.")]
    max_queue_seconds: Annotated[float, Meta(description="Maximum age in seconds of the oldest waiting request.")]


class TalkerValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the talkers."""

    max_num_seqs: Annotated[int, Meta(description="Maximum number of requests per step.")]
    lead_limit_seconds: Annotated[
        float,
        Meta(description="A live stream releases its row when its codes are this many seconds ahead of playback."),
    ]


class CodecValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the codecs."""

    max_num_seqs: Annotated[int, Meta(description="Maximum number of requests per decoder call.")]
    chunk_ramp: Annotated[
        tuple[Frames, ...], Meta(max_length=16, description="Frames of a stream's first, second, ... chunk.")
    ]
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64, description="Captured decoder shapes.")]


class ReplicaStatus(StatusPart, frozen=True, kw_only=True):
    """The state of one replica."""

    replica: Annotated[str, Meta(max_length=253, description="Name of the pod.")]
    generation: Annotated[
        Count | None, Meta(description="Generation of its current settings. Absent if it does not respond.")
    ] = None
    restarts: Annotated[Count | None, Meta(description="Number of restarts. Absent if 0.")] = None
    problem: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Why it does not run, as reported by Kubernetes. Absent if it runs."),
    ] = None


class StageStatus(StatusPart, frozen=True, kw_only=True):
    """The state of a stage."""

    replicas: Annotated[Count, Meta(description="Number of pods, without terminating pods.")]
    ready_replicas: Annotated[Count, Meta(description="Number of ready pods.")]
    updated_replicas: Annotated[Count, Meta(description="Number of pods with the current template.")]
    summary: Annotated[str, Meta(max_length=32, description="Ready and desired replicas, for example 1/2.")]
    selector: Annotated[str, Meta(max_length=512, description="Label selector of the pods, for the scale subresource.")]
    settings_generation: Annotated[Count, Meta(description="Generation of the settings. Increases with each change.")]
    confirmed_generation: Annotated[
        Count | None,
        Meta(description="Newest settings generation that all replicas had applied. Absent before the first."),
    ] = None
    confirmed: Annotated[
        tuple[ReplicaStatus, ...],
        Meta(
            max_length=MAX_CONFIRMED,
            description="State of each replica, the first 64 by name. Absent without replicas.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["replica"]},
        ),
    ] = ()


class GatewayStatus(StageStatus, frozen=True, kw_only=True):
    """The gateways."""

    settings: Annotated[GatewayValues, Meta(description="Desired live settings of all replicas.")]


class TalkerStatus(StageStatus, frozen=True, kw_only=True):
    """The talkers."""

    settings: Annotated[TalkerValues, Meta(description="Desired live settings of all replicas.")]


class CodecStatus(StageStatus, frozen=True, kw_only=True):
    """The codecs."""

    settings: Annotated[CodecValues, Meta(description="Desired live settings of all replicas.")]


class RedisStatus(StatusPart, frozen=True, kw_only=True):
    """The managed Redis."""

    ready: Annotated[bool, Meta(description="Whether it is ready.")]
    restarts: Annotated[Count | None, Meta(description="Number of restarts. Absent if 0.")] = None


class SloStatus(StatusPart, frozen=True, kw_only=True):
    """Latency of one task type within the last 5 minutes, or one tuning interval if that is longer."""

    task_type: Annotated[TaskName, Meta(description="Task type.")]
    requests: Annotated[
        Count | None, Meta(description="Number of live requests with audible audio. Absent without metrics.")
    ] = None
    within: Annotated[
        Ratio | None,
        Meta(description="Share of these requests that met the objective. Absent without an objective or requests."),
    ] = None
    ttfa_p95_ms: Annotated[
        Count | None,
        Meta(
            description="95th percentile of the time to first audio in milliseconds, interpolated within its histogram "
            "bucket. 10000 means 10000 or more. Absent without requests."
        ),
    ] = None
    met: Annotated[
        ConditionStatus, Meta(description="Whether the objective was met. Unknown without an objective or requests.")
    ]


class PipelineStatus(StatusPart, frozen=True, kw_only=True):
    """The observed state of the pipeline."""

    observed_generation: Annotated[
        Count | None,
        Meta(
            description="metadata.generation of the newest resource that was applied completely. If it lags, the "
            "conditions show the cause."
        ),
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="URL of the API in the cluster.")
    ] = None
    model: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="Name that clients send as `model`.")
    ] = None
    model_generation: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Desired model generation. Stages of different generations never exchange data."),
    ] = None
    image: Annotated[Annotated[str, Meta(max_length=512)] | None, Meta(description="Desired image of the stages.")] = (
        None
    )
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            max_length=16,
            description="Ready: the service is available. Progressing: the actual state does not match the desired "
            "state yet. Degraded: a problem needs intervention.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    gateway: Annotated[GatewayStatus | None, Meta(description="The gateways.")] = None
    talker: Annotated[TalkerStatus | None, Meta(description="The talkers.")] = None
    codec: Annotated[CodecStatus | None, Meta(description="The codecs.")] = None
    redis: Annotated[RedisStatus | None, Meta(description="The managed Redis. Absent with `connector.url`.")] = None
    tuning: Annotated[
        State | None,
        Meta(
            description="State of tuning.",
            # Applied as a whole, so that no fields of other writers remain.
            extra_json_schema={"x-kubernetes-map-type": "atomic"},
        ),
    ] = None
    slo: Annotated[
        tuple[SloStatus, ...],
        Meta(
            max_length=3,
            description="Recent latency of each task type.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["taskType"]},
        ),
    ] = ()
    underrun_ratio: Annotated[
        Ratio | None,
        Meta(description="Share of recent live streams with playback underruns. Absent without live streams."),
    ] = None
    ttfa_p95: Annotated[
        Annotated[str, Meta(max_length=16)] | None,
        Meta(description="95th percentile of the slowest task type, for example 312ms. Absent without requests."),
    ] = None


def read(status: Mapping[str, Any] | None) -> PipelineStatus:
    """Returns the decoded status. Drops `tuning`, then everything, if it is invalid, such as from another version."""
    written = dict(status or {})
    for candidate in (written, {name: part for name, part in written.items() if name != "tuning"}):
        try:
            return msgspec.convert(candidate, PipelineStatus)
        except msgspec.ValidationError:
            continue
    return PipelineStatus()
