"""Stage settings: what can change live over `PUT /settings`, and what a process is started with."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Rows = Annotated[int, Meta(ge=1, le=1024)]
Frames = Annotated[int, Meta(ge=1, le=64)]
Ramp = Annotated[tuple[Frames, ...], Meta(min_length=1, max_length=16)]
CapturePair = tuple[Rows, Frames]
CapturePairs = Annotated[tuple[CapturePair, ...], Meta(max_length=64)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]

DEFAULT_RAMP = (2, 2, 4, 8, 12)
"""Frames of a request's first, second, ... chunk; the last one repeats."""


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a talker can change while streams play."""

    max_num_seqs: Rows = 8
    """Rows per step; at most `max_resident`."""
    lead_limit_seconds: Seconds = 8.0
    """A live stream whose codes are further ahead of playback than this yields its row."""


class CodecSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a codec can change while streams play."""

    max_num_seqs: Rows = 8
    """Rows per call; at most `max_resident`."""
    chunk_ramp: Ramp = DEFAULT_RAMP
    """Frames of the first, second, ... audio chunk of a stream; the last one repeats."""
    capture_pairs: CapturePairs = ()
    """(rows, frames) shapes kept ready; a call is padded to the cheapest that fits, or runs at its own shape."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a gateway can change while streams play."""

    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """Requests that may wait for a talker before new ones are refused with 503."""
    max_queue_seconds: Seconds = 10.0
    """Once the oldest waiting request is older than this, new ones are refused with 503. While a stage has been
    missing for longer, all are, those that have waited for it too."""


StageSettings = TalkerSettings | CodecSettings | GatewaySettings


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What vLLM is started with, in its own words (`vllm serve --help`)."""

    tensor_parallel_size: Annotated[int, Meta(ge=1, le=16)] = 1
    """GPUs that share the talker's layers."""
    quantization: Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)] | None = None
    """How vLLM quantises the layers as it loads them, as fp8."""
    kv_cache_dtype: Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)] = "auto"
    """Of keys and values."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of a GPU's memory that it takes, weights included."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1 << 20)] | None = None
    """Positions of one step, prompts' included. None: vLLM's default."""


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stage process is started: a JSON file.

    Secrets are not in it: they come as `REDIS_URL` and `REDIS_PASSWORD`.
    """

    pipeline: str
    generation: str
    """Model generation: stages of different generations never meet."""
    replica: str = ""
    """This process's name, unique and stable across restarts. Empty: `POD_NAME` of the environment."""
    model: str
    """Directory of the checkpoint, or `bundled`."""
    model_name: str = "syrinx-us"
    """The name clients may send as `model`."""
    host: str = "127.0.0.1"
    """Address that the servers below bind. Empty, or `::`: all of this machine, IPv4 and IPv6."""
    port: Port = 0
    """Of the gateway's public API; 0 takes a free one."""
    admin_port: Port = 0
    """Of every stage's health, metrics and settings; 0 takes a free one."""
    device: str = "cpu"
    engine: Literal["torch", "vllm"] = "torch"
    """What the talker computes with."""
    vllm: VllmOptions = VllmOptions()
    """For that engine."""
    max_resident: Rows = 32
    """Requests that hold state at once (start-up only)."""
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """After SIGTERM: time to finish what is owned; the rest is handed over to other replicas."""
    settings_file: str | None = None
    """A file with the body of `PUT /settings`, read at the start: if it is there, it wins over what stands below."""
    settings_generation: int = 0
    """Of the settings below; reported back by `GET /settings`."""
    talker: TalkerSettings = TalkerSettings()
    codec: CodecSettings = CodecSettings()
    gateway: GatewaySettings = GatewaySettings()
    reference_hosts: tuple[str, ...] = ()
    """Hosts from which the gateway may fetch `ref_audio` URLs; none by default."""


def load_config(data: bytes) -> StageConfig:
    """Reads a stage's JSON config. Raises `msgspec.ValidationError` naming the field."""
    return msgspec.json.decode(data, type=StageConfig)
