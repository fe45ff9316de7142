"""Fields of objectives and tuning."""

from typing import Annotated, Literal

from msgspec import Meta

from syrinx_operator.resource.fields.pods import KUBERNETES, Name, Object, SecretKey, list_map
from syrinx_stages.contract.family import TaskName
from syrinx_stages.contract.settings import Ramp, Rows

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

    max: Annotated[int, Meta(ge=0, le=64)] = 32
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


class KedaAuthentication(Object, frozen=True, kw_only=True):
    """Credentials and CA in an object of KEDA that you create."""

    name: Name
    """Name of the TriggerAuthentication or ClusterTriggerAuthentication."""
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"
    """Kind of the object."""
    modes: Annotated[tuple[Literal["bearer", "basic", "tls", "custom"], ...], Meta(max_length=4)] = ("bearer",)
    """How KEDA authenticates, its authModes. Empty for the identity of a cloud. A CA in the object applies with any."""


class PrometheusSpec(Object, frozen=True, kw_only=True):
    """The Prometheus that scrapes this pipeline. The operator sends what the Secrets contain to `url` only."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s/@?#\\][^\s@?#\\]*$", max_length=512)]
    """URL, for example http://prometheus.monitoring:9090, optionally with a path before /api/v1."""
    headers_secret: Name | None = None
    """Secret of which each key is the name of a header, for example X-Scope-OrgID for a tenant of Mimir. Default:
    none."""
    basic_auth_secret: Name | None = None
    """Secret of type kubernetes.io/basic-auth, with the keys username and password. Default: none."""
    token_secret: SecretKey | None = None
    """Secret with a bearer token. Default: that of the operator's installation, if it is for this URL."""
    ca_secret: SecretKey | None = None
    """Secret with the CA certificates (PEM) that verify the server. Default: those of the operator's installation."""
    keda_authentication: KedaAuthentication | None = None
    """How KEDA authenticates, for stages with autoscaling by Keda. Default: not at all."""


class TuningSpec(Object, frozen=True, kw_only=True):
    """Automatic tuning of the settings."""

    mode: Literal["Off", "Recommend", "Auto"] = "Recommend"
    """Off: neither measure nor tune. Recommend: recommend better settings. Auto: apply them."""
    paused: bool = False
    """Suspend tuning and keep the current settings."""
    interval_seconds: Annotated[int, Meta(ge=5, le=3600)] = 10
    """Seconds between evaluations of the metrics; three times as long while there are no requests."""
    bounds: TuningBounds = TuningBounds()
    """The values that tuning may choose."""
    prometheus: Annotated[PrometheusSpec | None, KUBERNETES] = None
    """Source of metrics. Default: the stages."""
