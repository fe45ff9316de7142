"""Fields of autoscaling."""

from typing import Annotated, Literal

from msgspec import Meta

from syrinx_operator.resource.fields.pods import Object, Replicas

StreamsPerReplica = Annotated[int, Meta(ge=1, le=10_000)]


class ReplicaBounds(Object, frozen=True, kw_only=True):
    """Minimum and maximum number of replicas. `replicas` is then the count to start with."""

    min_replicas: Replicas = 1
    """Minimum number of replicas."""
    max_replicas: Replicas
    """Maximum number of replicas."""


class AutoscalingSpec(ReplicaBounds, frozen=True, kw_only=True):
    """An autoscaler that the operator creates. `replicas` is then the count to start with."""

    by: Literal["Keda", "Hpa"]
    """Keda: a ScaledObject with queries to tuning.prometheus. Hpa: a HorizontalPodAutoscaler with external metrics, for
    example of prometheus-adapter."""
    streams_per_replica: StreamsPerReplica | None = None
    """Live streams of the pipeline for each replica. Default: 100."""


class StageAutoscalingSpec(ReplicaBounds, frozen=True, kw_only=True):
    """Who decides the number of talkers or codecs. `replicas` is then the count to start with."""

    by: Literal["Syrinx", "Keda", "Hpa"] = "Syrinx"
    """Syrinx: the tuner, by its model, for the objectives in slo.ttfa. Keda: a ScaledObject with queries to
    tuning.prometheus. Hpa: a HorizontalPodAutoscaler with external metrics, for example of prometheus-adapter."""
    mode: Literal["Auto", "Recommend"] | None = None
    """With Syrinx. Auto: set the number. Recommend: only say what it would be; `replicas` applies. Default: Auto."""
    streams_per_replica: StreamsPerReplica | None = None
    """With Keda and Hpa: live streams of the pipeline for each replica. Default: maxNumSeqs of the stage."""
    max_wait_seconds: Annotated[float, Meta(ge=0.05, le=600)] | None = None
    """With Keda and Hpa: replicas are added in proportion while a request is expected to wait longer than this for a
    talker and a codec. The larger of the counts for streams and for the wait applies. In an overload requests are
    refused once the wait exceeds a ninth of gateway.maxQueueSeconds, so choose less. Default: 0.1."""
