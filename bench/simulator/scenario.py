"""The simulated scenario: load, replicas, engine costs and failures. Types only."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Setting
from syrinx_operator.tuner.policy import Objective
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.stages import Stage

TASK_TYPES = FAMILY.task_types

Load = tuple[tuple[float, Mapping[str, float]], ...]
"""(end in seconds, requests per second by task type) segments. After the last one the sequence repeats."""


Curve = tuple[tuple[int, float], ...]
"""Seconds of an engine step by rows: measured points with linear inter- and extrapolation."""


def line(base: float, per_row: float) -> Curve:
    """Returns the curve `base + per_row * rows` seconds."""
    return ((0, base), (1024, base + 1024 * per_row))


class Decoder(NamedTuple):
    """Seconds of a decoder call: `base + per_row * rows + per_frame * rows * frames`."""

    base: float
    per_row: float
    per_frame: float


class Costs(Struct, frozen=True, kw_only=True):
    """Engine times of one kind of machine, in seconds."""

    step: Curve
    """A talker step."""
    eager: Decoder
    """A decoder call at its own shape."""
    captured: Decoder
    """A decoder call at a captured shape."""
    prefill: Mapping[str, float]
    """Prefill by task type. The talker does nothing else meanwhile."""
    prepare: Mapping[str, float] = {}
    """Encoding of a reference before prefill, on a separate thread, one request at a time."""
    reference_frames: Mapping[str, int] = {}
    """Frames of a reference. The codec decodes them first."""
    context_frames: int = 0
    """Frames of left context that a stateless decoder decodes again in each row of each call."""
    hop: float = 0.001
    """Latency between two processes."""
    noise: float = 0.1
    """Standard deviation of the log step time."""
    interference: float = 1.0
    """Slowdown while the other stage computes on the same device. Talker and codec with the same index share one."""
    crowding: float = 0.0
    """Increase of the talker's slowdown per further row of a decoder call."""
    capture: float = 0.3
    """Time to capture a shape."""
    capture_bytes: int = 2 << 20
    """Memory of a captured shape per row and frame."""


class Failure(Struct, frozen=True, kw_only=True):
    """A replica that dies and restarts."""

    stage: Stage
    replica: int
    at: float
    down: float
    """Seconds until it is ready again."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A simulated pipeline with its load and failures. Runs with the same seed have the same requests."""

    name: str
    seed: int = 0
    seconds: float
    """Length of the scenario."""
    load: Load = ()
    """Open-loop load: arrivals do not depend on the service."""
    listeners: Mapping[str, int] = {}
    """Closed-loop load instead of `load`: number of concurrent clients by task type."""
    burst: float = 1.0
    """Mean requests per arrival: 1 is a Poisson process, more are bursts of geometric size."""
    audio_seconds: float = 4.2
    """Mean audio length."""
    audio_spread: float = 0.5
    """Standard deviation of the log audio length."""
    silence: float = 0.0
    """Leading silence in seconds, which is not sent."""
    objectives: Mapping[str, Objective] = {}
    initial: Setting
    talkers: int = 1
    codecs: int = 1
    talker_speeds: tuple[float, ...] = ()
    """Factors on each talker's step time; 1 by default. A slow node has a larger factor."""
    codec_speeds: tuple[float, ...] = ()
    costs: Costs
    talker_resident: int = 32
    """Maximum requests of a talker."""
    codec_resident: int = 32
    admission: Literal["resident", "talker rows", "rows"] = "resident"
    """Limit of a replica's streams. "resident": its capacity, with Syrinx's admission by deadline. "talker rows",
    "rows": the batch size of the talker or of both stages, as in engines with one knob for both. Such a codec serves
    the oldest request first."""
    lead_limit: float = 8.0
    max_queue: int = 256
    max_queue_seconds: float = 10.0
    failures: tuple[Failure, ...] = ()
    scrape_seconds: float = 5.0
    """Scrape interval of the counters."""
    outages: tuple[tuple[float, float], ...] = ()
    """(start, end) of outages of the metrics."""
    history_seconds: float = 7200.0
    """How long counters are kept."""
    identity: Identity = Identity(model="simulated", image="simulated", device="simulated")
