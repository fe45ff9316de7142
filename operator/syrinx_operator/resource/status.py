"""The status of a TTSPipeline: its fields and their meaning. This file is the one source of the status's schema."""

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
"""Characters of a message; a longer one is cut."""


class StatusPart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all parts of the status share: camelCase, and what is not known is left out."""


class Condition(StatusPart, frozen=True, kw_only=True):
    """One conclusion, in the form that Kubernetes' own objects use."""

    type: Annotated[ConditionType, Meta(description="What it is about.")]
    status: Annotated[ConditionStatus, Meta(description="True, False, or Unknown where it cannot be told.")]
    reason: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            max_length=128,
            description="Why, in one word for programs.",
        ),
    ]
    message: Annotated[str, Meta(max_length=MAX_MESSAGE, description="Why, and what helps, in words for people.")]
    last_transition_time: Annotated[
        str, Meta(description="When `status` changed last.", extra_json_schema={"format": "date-time"})
    ]
    observed_generation: Annotated[
        int, Meta(ge=0, description="metadata.generation of the resource that it was concluded for.")
    ]


MAX_CONFIRMED = 64
"""Replicas of a stage that are listed at most."""

Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]


class GatewayValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the gateways."""

    max_queue: Annotated[int, Meta(description="Requests that may wait before new ones are answered 503.")]
    max_queue_seconds: Annotated[
        float, Meta(description="Age in seconds of the oldest waiting request from which new ones are answered 503.")
    ]


class TalkerValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the talkers."""

    max_num_seqs: Annotated[int, Meta(description="Requests per step at most.")]
    lead_limit_seconds: Annotated[
        float, Meta(description="A live stream this many seconds ahead of playback yields its row.")
    ]


class CodecValues(StatusPart, frozen=True, kw_only=True):
    """Live settings of the codecs."""

    max_num_seqs: Annotated[int, Meta(description="Requests per decoder call at most.")]
    chunk_ramp: Annotated[
        tuple[Frames, ...], Meta(max_length=16, description="Frames of a stream's first, second, ... chunk.")
    ]
    capture_pairs: Annotated[tuple[CaptureShape, ...], Meta(max_length=64, description="Decoder shapes kept ready.")]


class ReplicaStatus(StatusPart, frozen=True, kw_only=True):
    """What one replica says of itself."""

    replica: Annotated[str, Meta(max_length=253, description="Name of the pod.")]
    generation: Annotated[
        Count | None, Meta(description="Settings generation it has in force. Absent while it does not answer.")
    ] = None
    restarts: Annotated[Count | None, Meta(description="How often it was started anew. Absent if never.")] = None
    problem: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Why it does not run, in the cluster's words. Absent if it does."),
    ] = None


class StageStatus(StatusPart, frozen=True, kw_only=True):
    """What is said of every stage."""

    replicas: Annotated[Count, Meta(description="Pods that there are, those that end left out.")]
    ready_replicas: Annotated[Count, Meta(description="Of these, those that are ready.")]
    updated_replicas: Annotated[Count, Meta(description="Of these, those made from the template that is wanted now.")]
    summary: Annotated[str, Meta(max_length=32, description="Ready and wanted replicas, as 1/2.")]
    selector: Annotated[
        str, Meta(max_length=512, description="Label selector of the pods, as text, for whoever scales the stage.")
    ]
    settings_generation: Annotated[Count, Meta(description="Generation of the settings; it goes up when they change.")]
    confirmed_generation: Annotated[
        Count | None,
        Meta(
            description="Newest settings generation that was seen in force on every replica at once. Absent before the "
            "first."
        ),
    ] = None
    confirmed: Annotated[
        tuple[ReplicaStatus, ...],
        Meta(
            max_length=MAX_CONFIRMED,
            description="What each replica has in force; the first 64 by name. Absent without any.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["replica"]},
        ),
    ] = ()


class GatewayStatus(StageStatus, frozen=True, kw_only=True):
    """The gateways."""

    settings: Annotated[GatewayValues, Meta(description="Live settings that every replica is to have in force.")]


class TalkerStatus(StageStatus, frozen=True, kw_only=True):
    """The talkers."""

    settings: Annotated[TalkerValues, Meta(description="Live settings that every replica is to have in force.")]


class CodecStatus(StageStatus, frozen=True, kw_only=True):
    """The codecs."""

    settings: Annotated[CodecValues, Meta(description="Live settings that every replica is to have in force.")]


class RedisStatus(StatusPart, frozen=True, kw_only=True):
    """The managed Redis."""

    ready: Annotated[bool, Meta(description="Whether it answers.")]
    restarts: Annotated[Count | None, Meta(description="How often it was started anew. Absent if never.")] = None


class SloStatus(StatusPart, frozen=True, kw_only=True):
    """How one task type did within the last minutes (5, or one interval if that is longer)."""

    task_type: Annotated[TaskName, Meta(description="Task type.")]
    requests: Annotated[
        Count | None, Meta(description="Live requests that were heard. Absent while there are no metrics.")
    ] = None
    within: Annotated[
        Ratio | None,
        Meta(description="Share of them heard within the objective. Absent without an objective or requests."),
    ] = None
    ttfa_p95_ms: Annotated[
        Count | None,
        Meta(
            description="95th percentile of time to first audio in milliseconds, interpolated in its histogram bucket; "
            "10000 means 10000 or more. Absent without requests."
        ),
    ] = None
    met: Annotated[
        ConditionStatus,
        Meta(description="Whether the objective's target was met; Unknown without an objective or requests."),
    ]


class PipelineStatus(StatusPart, frozen=True, kw_only=True):
    """What there is, as last seen."""

    observed_generation: Annotated[
        Count | None,
        Meta(
            description="metadata.generation of the newest resource whose plan was applied whole. While it lags, the "
            "conditions, which name the generation they are about, say why."
        ),
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Where the API is served in the cluster."),
    ] = None
    model: Annotated[Annotated[str, Meta(max_length=256)] | None, Meta(description="Name clients send as `model`.")] = (
        None
    )
    model_generation: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Model generation that is wanted now; stages of two generations never meet."),
    ] = None
    image: Annotated[
        Annotated[str, Meta(max_length=512)] | None, Meta(description="Image of the stages that is wanted now.")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            max_length=16,
            description="What is concluded of it. Ready: the service answers. Progressing: not everything is as wanted "
            "yet. Degraded: something is wrong that waiting will not mend.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    gateway: Annotated[GatewayStatus | None, Meta(description="The gateways.")] = None
    talker: Annotated[TalkerStatus | None, Meta(description="The talkers.")] = None
    codec: Annotated[CodecStatus | None, Meta(description="The codecs.")] = None
    redis: Annotated[RedisStatus | None, Meta(description="The managed Redis. Absent for one of yours.")] = None
    tuning: Annotated[
        State | None,
        Meta(
            description="What tuning does, and all that it remembers.",
            # Applied as a whole: nothing of what somebody else wrote into it stays behind.
            extra_json_schema={"x-kubernetes-map-type": "atomic"},
        ),
    ] = None
    slo: Annotated[
        tuple[SloStatus, ...],
        Meta(
            max_length=3,
            description="How each task type did lately.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["taskType"]},
        ),
    ] = ()
    underrun_ratio: Annotated[
        Ratio | None,
        Meta(description="Share of the last minutes' live streams whose playback had to wait. Absent without any."),
    ] = None
    ttfa_p95: Annotated[
        Annotated[str, Meta(max_length=16)] | None,
        Meta(description="The slowest task type's 95th percentile as text, as 312ms. Absent without requests."),
    ] = None


def read(status: Mapping[str, Any] | None) -> PipelineStatus:
    """A status as it was written. What cannot be read, as another version's, counts as none: `tuning` first."""
    written = dict(status or {})
    for candidate in (written, {name: part for name, part in written.items() if name != "tuning"}):
        try:
            return msgspec.convert(candidate, PipelineStatus)
        except msgspec.ValidationError:
            continue
    return PipelineStatus()
