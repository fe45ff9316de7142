"""Stage settings, which change live over `PUT /settings/STAGE`, and the start configuration of a stage process."""

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from syrinx_stages.contract.api import LexiconWord, Respelling
from syrinx_stages.contract.keys import MAX_CELLS
from syrinx_stages.contract.messages import TaskType

MAX_ROWS = 1024
Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
Frames = Annotated[int, Meta(ge=1, le=64)]
Ramp = Annotated[tuple[Frames, ...], Meta(min_length=1, max_length=16)]
CapturePair = tuple[Rows, Frames]
CapturePairs = Annotated[tuple[CapturePair, ...], Meta(max_length=64)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Arm = Annotated[str, Meta(pattern="^[a-z0-9]{0,8}$")]
VoiceName = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=128)]
VoiceAlias = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9][a-z0-9._:/-]{0,63}$",
        description="up to 64 lower-case letters, digits and '._:/-'; requests may use any case",
    ),
]
ModelAlias = Annotated[
    str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128, description="letters, digits and '._:/-'")
]

MAX_TEXT_LENGTH = 150_000
"""Highest limit of a text in characters, about three hours of speech: a body of 1 MB holds it, even if each character
is escaped."""
SETTINGS_PORT = 9091
"""Default port of the settings of a process's stages."""
TOKEN_VARIABLE = "SYRINX_SETTINGS_TOKEN"
"""Environment variable with the token of the settings port."""
NAMESPACE_VARIABLE = "SYRINX_NAMESPACE"
"""Environment variable with the namespace of the pipeline; unset outside of Kubernetes."""
TRACK_VARIABLE = "SYRINX_TRACK"
"""Environment variable with the label `track` of a process's metrics: `canary`, or unset."""
TOKEN_HEADER = "X-Syrinx-Token"
"""Header with the token. Not `Authorization`, which the API server's pod proxy uses itself and removes."""

DEFAULT_RAMP = (2, 2, 3, 4, 5, 7, 9, 12)
"""Frames in the first, second, ... audio chunk of a stream; the last one repeats.

Chunk k is played without a gap if its frames and those of the chunks 2 to k-1 are generated while the chunks 1 to k-1
are played. This ramp allows that from 1.31 times real time on."""


TALKER_MEMORY, CODEC_MEMORY = 0.6, 0.3
"""Fractions of a GPU's memory: both stages fit on one GPU, beside a little else."""
DEFAULT_RESIDENT = 32
"""Requests that hold state at the same time, on a CPU."""


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live settings of a talker."""

    max_num_seqs: Rows = 8
    """Maximum number of rows per step; at most `max_resident`."""
    lead_limit_seconds: Seconds = 8.0
    """A live stream whose codes are further ahead of playback than this many seconds yields its row."""


class CodecSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live settings of a codec."""

    max_num_seqs: Rows = 8
    """Maximum number of rows per decoder call; at most `max_resident`."""
    chunk_ramp: Ramp = DEFAULT_RAMP
    """Frames in the first, second, ... audio chunk of a stream; the last one repeats."""
    capture_pairs: CapturePairs = ()
    """(rows, frames) shapes to capture. A call is padded to the cheapest one that fits, or runs at its own shape."""


class CanaryRoute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of speech requests that a gateway forwards to the gateways of a canary."""

    weight: Annotated[float, Meta(ge=0, le=1)]
    """Share of the requests."""
    urls: Annotated[tuple[Annotated[str, Meta(pattern="^https?://[^/?#@ ]+$")], ...], Meta(min_length=1, max_length=64)]
    """Where the gateways of the canary listen."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live settings of a gateway."""

    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """Maximum number of requests that wait for a talker; further ones are refused with 503."""
    max_queue_seconds: Seconds = 2.0
    """How long a request may wait for a talker. One that is expected to wait longer, or has waited longer, is refused
    with 503."""
    ttfa_seconds: dict[TaskType, Seconds] = {}
    """TTFA objectives by task type: a stream that is first heard later counts as late. Without one none does."""
    # Absent in the encoded settings, so that gateways of earlier versions accept them.
    arm: Arm | msgspec.UnsetType = msgspec.UNSET
    """The label of streams accepted now, which tells the arms of a trial apart. Only ever a temporary setting."""
    canary: CanaryRoute | msgspec.UnsetType = msgspec.UNSET
    """Where a share of the requests goes. Only ever a temporary setting: without an operator nothing is forwarded."""


StageSettings = TalkerSettings | CodecSettings | GatewaySettings


class ReportedSettings(msgspec.Struct, frozen=True):
    """The response to `GET /settings/STAGE`."""

    generation: int
    """Generation of the base settings."""
    settings: dict[str, Any]
    """Settings in force now."""
    base: dict[str, Any]
    """Settings in force once temporary settings expire: all that the stage knows, but for only temporary ones."""
    seconds: float | None = None
    """Seconds until the temporary settings expire; None without any."""
    limits: dict[str, int] = {}
    """What the engine can do on its device: `max_num_seqs` and `max_resident`, if that is limited. Settings beyond it
    have no effect."""
    warnings: tuple[str, ...] = ()
    """What may cost requests or streams although the stage is ready."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the vLLM engine, named as in `vllm serve --help`."""

    tensor_parallel_size: Annotated[int, Meta(ge=1, le=16)] = 1
    """Number of GPUs across which the talker's layers are split."""
    quantization: Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)] | None = None
    """Quantization that vLLM applies to the layers at load time, for example fp8."""
    kv_cache_dtype: Annotated[str, Meta(pattern="^[a-z0-9_-]+$", max_length=40)] = "auto"
    """Data type of the KV cache."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Fraction of a GPU's memory that vLLM uses, weights included."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1 << 20)] | None = None
    """Maximum number of tokens per step, prompts included. None: vLLM's default."""


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway's public API accepts besides the names of the checkpoint."""

    openai_names: bool = True
    """Whether OpenAI's voice and model names are aliases, so that clients work on their defaults."""
    voice_aliases: Annotated[dict[VoiceAlias, VoiceName], Meta(max_length=32)] = {}
    """Other names of voices."""
    model_aliases: Annotated[tuple[ModelAlias, ...], Meta(max_length=16)] = ()
    """Other names of the model."""
    unsupported_instructions: Literal["Ignore", "Refuse"] = "Ignore"
    """What happens to a request with instructions that the checkpoint cannot follow."""
    stream_format: Literal["Audio", "SSE"] = "Audio"
    """What `stream: true` without a `stream_format` gets: the file's bytes as they are generated, or events."""
    runaway_guard: bool = True
    """Whether each segment of a text is checked, and retried if it failed, unless a request says otherwise."""
    max_text_length: Annotated[int, Meta(ge=1, le=MAX_TEXT_LENGTH)] = 100_000
    """Characters of a request's `input`."""
    normalize: bool | None = None
    """Whether numbers, dates and the like are written as words, unless a request says otherwise. None: if the
    checkpoint says that it needs it."""
    lexicon: Annotated[dict[LexiconWord, Respelling], Meta(max_length=200)] = {}
    """Respellings of words; those of a request come first."""


class VoiceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many voices the clients of a pipeline may keep."""

    max_per_key: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Voices of one API key. Without keys all clients share their voices, and only the other limit applies."""
    max_total: Annotated[int, Meta(ge=0, le=1000)] = 100
    """Voices in all. 0: voices cannot be uploaded."""


class SharedVoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A voice that all clients may use, cloned from the audio in `file` or at `url`."""

    name: VoiceName
    file: str | None = None
    url: str | None = None
    """On one of the `reference_hosts`."""
    consent: str
    """Who agreed to the use of the voice."""
    transcript: str | None = None
    """What the audio says. None: the voice is its speaker embedding alone."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certificate and its private key, in PEM format. They are reloaded when they change."""

    certificate: str
    """A file with the certificate, followed by those of intermediate authorities."""
    key: str


KeepAliveSeconds = Annotated[int, Meta(ge=1, le=86_400)]
KEEP_ALIVE_SECONDS = 620
"""Load balancers keep connections for up to 600 s."""


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start configuration of a stage process, a JSON file.

    It holds no secrets: these are passed in the environment, as `REDIS_URL`, `REDIS_PASSWORD` and
    `SYRINX_SETTINGS_TOKEN`. Two stages in one process listen where the first one's configuration says.
    """

    pipeline: str
    generation: str
    """Model generation. Stages of different generations share no Redis key."""
    cells: Annotated[int, Meta(ge=1, le=MAX_CELLS)] = 1
    """Number of cells, each of which has its own keys, talkers and codecs. `REDIS_URL` holds one URL, or one for each
    cell, separated by spaces."""
    replica: str = ""
    """Name of this replica, unique and stable across restarts. Empty: the value of `POD_NAME`."""
    standby_of: str = ""
    """Name of the replica of the same stage whose standby this one is. A standby takes over requests like any replica,
    and claims none while that replica holds its lease. Empty: this one is no standby."""
    model: str
    """Directory of the checkpoint, or `bundled`."""
    model_name: str = "syrinx-us"
    """The name that clients may send as `model`."""
    host: str = "127.0.0.1"
    """Address to listen on. Empty or `::`: all addresses, IPv4 and IPv6."""
    api_host: str | None = None
    """Address of the gateway's public API. None: `host`."""
    port: Port = 0
    """Port of the gateway's public API; 0 picks a free one."""
    shares_port: bool = False
    """Whether other processes listen on this port, too; the kernel distributes the connections."""
    admin_port: Port = 0
    """Port of the admin server (health and metrics, read-only); 0 picks a free one."""
    settings_port: Port = SETTINGS_PORT
    """Port of the settings; 0 picks a free one. Without `SYRINX_SETTINGS_TOKEN` the process does not listen there."""
    device: str = "cpu"
    engine: Literal["torch", "vllm"] = "torch"
    """Engine of the talker."""
    vllm: VllmOptions = VllmOptions()
    """Options for `engine: vllm`."""
    max_resident: Rows = DEFAULT_RESIDENT
    """Maximum number of requests that hold state at the same time. Cannot change after the start."""
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Fraction of a GPU's memory that this stage uses at most. None: `TALKER_MEMORY` or `CODEC_MEMORY`."""
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Time after SIGTERM to finish claimed requests; the remaining ones are handed over to other replicas."""
    settings_file: str | None = None
    """A file with the body of `PUT /settings/STAGE`. If it exists at the start, it overrides the settings below."""
    settings_generation: int = 0
    """Generation of the settings below, reported by `GET /settings/STAGE`."""
    talker: TalkerSettings = TalkerSettings()
    codec: CodecSettings = CodecSettings()
    gateway: GatewaySettings = GatewaySettings()
    api: ApiConfig = ApiConfig()
    voices: VoiceLimits = VoiceLimits()
    shared_voices: tuple[SharedVoice, ...] = ()
    """Voices of a Base checkpoint that all clients may use."""
    playground: bool = False
    """Whether `/` is a page on which to try speech."""
    reference_hosts: tuple[str, ...] = ()
    """Hosts that the gateway may fetch `ref_audio` URLs from; none by default."""
    api_keys_file: str | None = None
    """The API keys that the gateway accepts, in the format of `contract.api_keys`; reloaded when it changes. None: no
    key is needed."""
    tls: TlsFiles | None = None
    """The certificate of the public API. None: without TLS."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call the public API; `*` is all."""
    trusted_proxies: tuple[str, ...] = ()
    """Address ranges (CIDR) of proxies whose `X-Forwarded-For` names the client of the public API."""
    keep_alive_seconds: KeepAliveSeconds = KEEP_ALIVE_SECONDS
    """How long clients may keep a connection to the public API between two requests."""

    @property
    def public_host(self) -> str:
        """Address on which the public API listens."""
        return self.host if self.api_host is None else self.api_host


def resolved_config_line(process: str, replica: str, config: object) -> str:
    """Returns the line that a process logs at its start: JSON with `process`, `replica`, `config_sha256` and `config`.

    The hash is the first 12 hex digits of the SHA-256 of `config` as JSON with sorted keys. `config` is anything that
    msgspec encodes. It must hold no secrets, and not the replica's name: replicas of one release then log equal hashes.
    """
    encoded = msgspec.json.encode(config, order="sorted")
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    line = {"process": process, "replica": replica, "config_sha256": digest, "config": msgspec.Raw(encoded)}
    return msgspec.json.encode(line).decode()
