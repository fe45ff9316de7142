"""What is simulated: load, replicas, what their engines cost, and what fails. Types only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from syrinx_operator.resource.knobs import Identity, Setting, Stage
from syrinx_operator.tuner.policy import Objective
from syrinx_stages.contract.family import FAMILY

TASK_TYPES = FAMILY.task_types

Load = tuple[tuple[float, Mapping[str, float]], ...]
"""Requests per second by task type, each until so many seconds; after the last it begins anew, as the next day."""


class Curve(Struct, frozen=True):
    """Seconds of an engine step by its rows: measured points, with straight lines between and behind them."""

    points: tuple[tuple[int, float], ...]


def line(base: float, per_row: float) -> Curve:
    """`base + per_row * rows` seconds."""
    return Curve(((0, base), (1024, base + 1024 * per_row)))


class Decoder(Struct, frozen=True):
    """Seconds of a decoder call: `base + per_row * rows + per_frame * rows * frames`."""

    base: float
    per_row: float
    per_frame: float


class Costs(Struct, frozen=True, kw_only=True):
    """What the engines of one kind of machine need, in seconds."""

    step: Curve
    """A talker step."""
    eager: Decoder
    """A decoder call at its own shape."""
    captured: Decoder
    """A decoder call at a captured shape."""
    prefill: Mapping[str, float]
    """Before a request's first step, by task type; the talker does nothing else meanwhile."""
    prepare: Mapping[str, float] = {}
    """Before prefill, on a thread of its own, one request after the other: encoding a reference."""
    reference_frames: Mapping[str, int] = {}
    """Frames of a reference, which the codec decodes before a request's own."""
    context_frames: int = 0
    """Frames that a decoder without state decodes again in each row of each call."""
    hop: float = 0.001
    """From one process to the next."""
    noise: float = 0.1
    """Standard deviation of the logarithm of a step's time."""
    interference: float = 1.0
    """Factor on what begins while the other stage computes on the same device: talker and codec of one index share."""
    crowding: float = 0.0
    """What each further row of a decoder call adds to that factor for the talker."""
    capture: float = 0.3
    """To capture one shape."""
    capture_bytes: int = 2 << 20
    """Memory of a captured shape, for each of its rows and frames."""


class Failure(Struct, frozen=True, kw_only=True):
    """A replica that dies and comes back."""

    stage: Stage
    replica: int
    at: float
    down: float
    """Seconds until it is ready again."""


class Scenario(Struct, frozen=True, kw_only=True):
    """One simulated pipeline and all that happens to it. Two runs with one seed see the same requests."""

    name: str
    seed: int = 0
    seconds: float
    """How long it lasts."""
    load: Load = ()
    """Open loop: people who come whatever the service does."""
    listeners: Mapping[str, int] = {}
    """Closed loop instead of `load`: so many at any time, each asking again as soon as it was served."""
    burst: float = 1.0
    """How many requests come at once, on average: 1 is a Poisson process, more are bursts of geometric size."""
    audio_seconds: float = 4.2
    """Mean length of what is spoken."""
    audio_spread: float = 0.5
    """Standard deviation of its logarithm."""
    silence: float = 0.0
    """Leading seconds of each utterance that are not sent, as nothing is audible in them."""
    objectives: Mapping[str, Objective] = {}
    initial: Setting
    talkers: int = 1
    codecs: int = 1
    talker_speeds: tuple[float, ...] = ()
    """Factors on the time of each talker's steps; 1 where none is given. A slow node has more."""
    codec_speeds: tuple[float, ...] = ()
    costs: Costs
    talker_resident: int = 32
    """Requests that one talker holds at most."""
    codec_resident: int = 32
    admission: Literal["resident", "talker rows", "rows"] = "resident"
    """What bounds the streams that a replica takes: what it can hold, and Syrinx's care for those that play; or, as in
    engines where both are one knob, its rows, of the talker alone or of both stages. Such a codec serves the oldest
    request first."""
    lead_limit: float = 8.0
    max_queue: int = 256
    max_queue_seconds: float = 10.0
    failures: tuple[Failure, ...] = ()
    scrape_seconds: float = 5.0
    """Counters are seen at multiples of this only."""
    outages: tuple[tuple[float, float], ...] = ()
    """From when to when nobody sees the counters."""
    history_seconds: float = 7200.0
    """How far back evidence can be asked for."""
    identity: Identity = Identity(model="simulated", image="simulated", device="simulated")
