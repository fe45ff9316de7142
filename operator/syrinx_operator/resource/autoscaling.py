"""Fields of autoscaling."""

from typing import Annotated, Literal

from msgspec import Meta

from syrinx_operator.resource.pods import Object, Replicas


class AutoscalingSpec(Object, frozen=True, kw_only=True):
    """An autoscaler that the operator creates. `replicas` is then the count to start with."""

    by: Literal["Keda", "Hpa"]
    """Keda: a ScaledObject with queries to tuning.prometheus. Hpa: a HorizontalPodAutoscaler with external metrics, for
    example of prometheus-adapter."""
    min_replicas: Replicas = 1
    """Minimum number of replicas."""
    max_replicas: Replicas
    """Maximum number of replicas."""
    streams_per_replica: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Live streams of the pipeline for each replica. Default: maxNumSeqs of the stage, and 100 for gateways."""


class StageAutoscalingSpec(AutoscalingSpec, frozen=True, kw_only=True):
    """An autoscaler of talkers or codecs. The larger of the counts for streams and for the wait applies."""

    max_wait_seconds: Annotated[float, Meta(ge=0.05, le=600)] = 0.1
    """Replicas are added in proportion while a request is expected to wait longer than this for a talker and a codec.
    In an overload requests are refused once the wait exceeds a ninth of gateway.maxQueueSeconds, so choose less."""
