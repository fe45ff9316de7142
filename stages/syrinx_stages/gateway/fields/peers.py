"""What becomes of the fields that other APIs' clients send. docs/other-apis.md is the same table.

`python -m syrinx_stages.gateway.fields.peers` prints that page.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from syrinx_stages.gateway.fields import conversions
from syrinx_stages.gateway.fields.conversions import Meant
from syrinx_stages.gateway.fields.values import truth


class Client(Struct, frozen=True):
    """Another API, and where its fields are described."""

    name: str
    source: str


OPENAI = Client(
    "OpenAI", "https://developers.openai.com/api/reference/resources/audio/subresources/speech/methods/create"
)
VLLM_OMNI = Client(
    "vLLM-Omni",
    "https://github.com/vllm-project/vllm-omni/blob/0131cb5560450800b800e889fb849ea2c851bd3f"
    "/vllm_omni/entrypoints/openai/protocol/audio.py",
)
SGLANG_OMNI = Client(
    "SGLang-Omni", "https://github.com/sgl-project/sglang-omni/blob/main/sglang_omni/serve/protocol.py"
)
KOKORO = Client(
    "Kokoro-FastAPI",
    "https://github.com/remsky/Kokoro-FastAPI/blob/26eec068d8ce6f559afef83f68933127ac38e315/api/src/structures/schemas.py",
)
CHAT = Client(
    "OpenAI chat",
    "https://developers.openai.com/api/reference/resources/chat/subresources/completions/methods/create",
)
ELEVENLABS = Client("ElevenLabs", "https://elevenlabs.io/docs/api-reference/text-to-speech/convert")
FISH = Client("Fish Audio", "https://docs.fish.audio/api-reference/endpoint/openapi-v1/text-to-speech")
QWEN = Client(
    "qwen-tts",
    "https://github.com/QwenLM/Qwen3-TTS/blob/e20f46b719c0066314f8b8b7413c3314dde27c6c"
    "/qwen_tts/inference/qwen3_tts_model.py",
)
LOCALAI = Client("LocalAI", "https://localai.io/features/text-to-audio/")
CHATTERBOX = Client(
    "Chatterbox TTS API",
    "https://github.com/travisvn/chatterbox-tts-api/blob/0fc1d71845439eb6688f87484517e00289743282/app/models/requests.py",
)
SILICONFLOW = Client("SiliconFlow", "https://docs.siliconflow.cn/en/userguide/capabilities/text-to-speech")
MLX_AUDIO = Client(
    "mlx-audio",
    "https://github.com/Blaizzy/mlx-audio/blob/22b0b48aee5a501b2a505cc66ac2b9085c8f08a0/mlx_audio/server.py",
)
CLIENTS = (
    OPENAI, CHAT, VLLM_OMNI, SGLANG_OMNI, KOKORO, ELEVENLABS, FISH, QWEN, LOCALAI, CHATTERBOX, SILICONFLOW, MLX_AUDIO
)  # fmt: skip


class PeerField(Struct, frozen=True):
    """A field of other APIs, and what becomes of it: exactly one of `means`, `ignored` and `refused`, or it is ours."""

    name: str
    clients: tuple[Client, ...]
    means: str = ""
    """What it stands for, as the documentation says it; `convert` does it."""
    convert: Callable[[Any], Meant] | None = None
    ignored: str = ""
    """Why a value has no effect, which a `Warning` says."""
    refused: str = ""
    """Why a value cannot be served, and what to do instead."""
    nothing: float | None = None
    """A value that asks for nothing, besides null, false, 0 and empty ones."""
    stands_for: str = ""
    """The field of this API with the same values, if there is one."""

    def asks_for_nothing(self, value: Any) -> bool:
        """Returns whether a request without the field is the same."""
        if isinstance(value, str):
            value = value.strip().lower()
        if self.convert is not None:
            return value in (None, "", [], {})
        if isinstance(value, str):
            value = truth(value)
            with contextlib.suppress(ValueError):
                value = float(value)
        return not value or (self.nothing is not None and value == self.nothing)


def _ours(name: str, *clients: Client) -> PeerField:
    return PeerField(name, clients)


def _alias(name: str, of: str, *clients: Client) -> PeerField:
    return PeerField(name, clients, means=f"`{of}`", convert=lambda value: ({of: value}, []), stands_for=of)


def _meant(name: str, means: str, convert: Callable[[Any], Meant], *clients: Client) -> PeerField:
    return PeerField(name, clients, means=means, convert=convert)


def _sampled(name: str, temperature: str) -> PeerField:
    return _meant(name, f"false: `{temperature}` 0", conversions.greedy(name, temperature), QWEN)


def _ignored(name: str, why: str, *clients: Client, nothing: float | None = None) -> PeerField:
    return PeerField(name, clients, ignored=why, nothing=nothing)


def _refused(name: str, why: str, *clients: Client) -> PeerField:
    return PeerField(name, clients, refused=why)


_CHUNKS = "chunk sizes are a setting of the server (chunkRamp)"
_LENGTH = "the length of speech follows from its text; send speed"
_TIMED = "words are not timed; leave it out: events and audio.segment say which characters each segment has"
_LINKS = "the response is the file, and no link to it"
_VOLUME = "the volume is that of the voice"
_EXPRESSION = "the model has no such setting"
_PENALTY = "repetition_penalty is the only penalty"
_CONTEXT = "each request is spoken by itself; send a long text at once"
_PAUSES = "pauses follow from the punctuation"
_SEGMENTS = "texts are divided at their sentences"
_SHARED = (OPENAI, VLLM_OMNI, SGLANG_OMNI, KOKORO, MLX_AUDIO)
_SERVERS = (VLLM_OMNI, SGLANG_OMNI)

PEER_FIELDS: Sequence[PeerField] = (
    _ours("input", *_SHARED),
    _ours("model", *_SHARED),
    _ours("voice", *_SHARED),
    _ours("response_format", *_SHARED),
    _ours("speed", *_SHARED),
    _ours("instructions", OPENAI, *_SERVERS),
    _ours("stream_format", OPENAI, *_SERVERS),
    _ours("stream", *_SERVERS, KOKORO, MLX_AUDIO),
    _ours("sample_rate", VLLM_OMNI, FISH),
    _ours("task_type", *_SERVERS),
    _ours("language", *_SERVERS, QWEN),
    _ours("ref_audio", *_SERVERS, QWEN, MLX_AUDIO),
    _ours("ref_text", *_SERVERS, QWEN, MLX_AUDIO),
    _ours("x_vector_only_mode", *_SERVERS, QWEN),
    _ours("speaker_embedding", VLLM_OMNI),
    _ours("non_streaming_mode", VLLM_OMNI, QWEN),
    _ours("extra_params", VLLM_OMNI),
    _ours("max_new_tokens", *_SERVERS, FISH, QWEN),
    _ours("seed", *_SERVERS, ELEVENLABS),
    _ours("temperature", SGLANG_OMNI, FISH, QWEN, MLX_AUDIO),
    _ours("top_k", SGLANG_OMNI, QWEN, MLX_AUDIO),
    _ours("top_p", SGLANG_OMNI, FISH, QWEN, MLX_AUDIO),
    _ours("repetition_penalty", SGLANG_OMNI, FISH, QWEN, MLX_AUDIO),
    _ours("subtalker_temperature", QWEN),
    _ours("subtalker_top_k", QWEN),
    _ours("subtalker_top_p", QWEN),
    _ours("normalize", FISH),
    _alias("text", "input", ELEVENLABS, FISH, QWEN),
    _alias("model_id", "model", ELEVENLABS),
    _alias("speaker", "voice", *_SERVERS, QWEN),
    _alias("voice_id", "voice", ELEVENLABS),
    _alias("reference_id", "voice", FISH),
    _alias("instruct", "instructions", QWEN, MLX_AUDIO),
    _alias("language_code", "language", ELEVENLABS),
    _meant("lang_code", "`language`; one letter is Kokoro's code", conversions.language, KOKORO, MLX_AUDIO),
    _alias("format", "response_format", FISH),
    _meant("output_format", "`response_format` and `sample_rate`: `pcm_16000`", conversions.output_format, ELEVENLABS),
    _alias("max_tokens", "max_new_tokens", CHAT, MLX_AUDIO),
    _alias("max_completion_tokens", "max_new_tokens", CHAT),
    _sampled("do_sample", "temperature"),
    _sampled("subtalker_dosample", "subtalker_temperature"),
    _meant("references", "`ref_audio` and `ref_text`, of one `{audio, text}`", conversions.references, *_SERVERS, FISH),
    _meant("normalization_options", "its `normalize`", conversions.normalization, KOKORO),
    _meant("apply_text_normalization", "`normalize`, unless it is `auto`", conversions.text_normalization, ELEVENLABS),
    _meant("voice_settings", "its `speed`", conversions.speed_of("voice_settings"), ELEVENLABS),
    _meant("prosody", "its `speed`", conversions.speed_of("prosody"), FISH),
    _ignored("user", "clients are told apart by their key", CHAT),
    _ignored("stream_options", "events have one form", CHAT),
    _ignored("frequency_penalty", _PENALTY, CHAT),
    _ignored("presence_penalty", _PENALTY, CHAT),
    _ignored("stop", "speech ends with its text", CHAT),
    _ignored("initial_codec_chunk_frames", _CHUNKS, *_SERVERS),
    _ignored("stream_codec_output", _CHUNKS, SGLANG_OMNI),
    _ignored("suppress_bootstrap_silence", "silence before speech is always removed", SGLANG_OMNI),
    _ignored("volume_multiplier", _VOLUME, KOKORO, nothing=1),
    _ignored("gain", _VOLUME, SILICONFLOW),
    _ignored("download_format", _LINKS, KOKORO),
    _ignored("return_download_link", _LINKS, KOKORO),
    _ignored("return_timing", _LINKS, KOKORO),
    _ignored("previous_text", _CONTEXT, ELEVENLABS),
    _ignored("next_text", _CONTEXT, ELEVENLABS),
    _ignored("previous_request_ids", _CONTEXT, ELEVENLABS),
    _ignored("next_request_ids", _CONTEXT, ELEVENLABS),
    _ignored("use_pvc_as_ivc", "there is one kind of voice", ELEVENLABS),
    _ignored("apply_language_text_normalization", "normalize covers all languages", ELEVENLABS),
    _ignored("optimize_streaming_latency", _CHUNKS, ELEVENLABS),
    _ignored("enable_logging", "texts are not kept", ELEVENLABS),
    _ignored("latency", _CHUNKS, FISH),
    _ignored("chunk_length", _SEGMENTS, FISH),
    _ignored("min_chunk_length", _SEGMENTS, FISH),
    _ignored("condition_on_previous_chunks", _SEGMENTS, FISH),
    _ignored("early_stop_threshold", "runaway_guard stops speech that goes on", FISH),
    _ignored("mp3_bitrate", conversions.BIT_RATE, FISH),
    _ignored("opus_bitrate", conversions.BIT_RATE, FISH),
    _ignored("backend", "there is one", LOCALAI),
    _ignored("exaggeration", _EXPRESSION, CHATTERBOX),
    _ignored("cfg_weight", _EXPRESSION, CHATTERBOX),
    _ignored("streaming_chunk_size", _SEGMENTS, CHATTERBOX),
    _ignored("streaming_strategy", _SEGMENTS, CHATTERBOX),
    _ignored("streaming_buffer_size", _CHUNKS, CHATTERBOX),
    _ignored("streaming_quality", _CHUNKS, CHATTERBOX),
    _ignored("enable_pauses", _PAUSES, CHATTERBOX),
    _ignored("custom_pauses", _PAUSES, CHATTERBOX),
    _ignored("gender", "the voice has one", MLX_AUDIO),
    _ignored("pitch", "the pitch is that of the voice", MLX_AUDIO, nothing=1),
    _ignored("streaming_interval", _CHUNKS, MLX_AUDIO),
    _ignored("verbose", "the log is the operator's", MLX_AUDIO),
    _refused("word_timestamps", _TIMED, VLLM_OMNI),
    _refused("return_timestamps", _TIMED, KOKORO),
    _refused("ref_audio_2", "a voice is cloned from one reference; send a request for each speaker", VLLM_OMNI),
    _refused("ambient_sound", "the model makes no other sounds than speech; leave it out", VLLM_OMNI),
    _refused("duration_seconds", _LENGTH, VLLM_OMNI),
    _refused("token_count", _LENGTH, SGLANG_OMNI),
    _refused("duration_tokens", _LENGTH, SGLANG_OMNI),
    _refused("stage_params", "send temperature, top_k, top_p and those that begin with subtalker_", SGLANG_OMNI),
    _refused("allow_voice_tags", "tags would be spoken; send a request for each voice", KOKORO),
    _refused("ssml", "the markup would be spoken; send plain text", KOKORO),
    _refused("voice_aliases", "they are a setting of the server (voiceAliases); send the voice itself", KOKORO),
    _refused("pronunciation_dictionary_locators", "send lexicon, with a respelling for each word", ELEVENLABS),
)
"""The fields of a request in the APIs that clients of speech services use."""
FOREIGN = {each.name: each for each in PEER_FIELDS if each.convert or each.ignored or each.refused}
"""Those that this API does not have."""

_HEAD = """\
# Fields of other APIs

Generated by `make generate` from `stages/syrinx_stages/gateway/fields/peers.py`. Clients of other speech services may
send these fields to [`POST /v1/audio/speech`](api.md), in the items of a batch and in `session.config`.

- A field that stands for one of this API has its effect. The request is refused if both are sent with different values.
  Errors name the field that was sent.
- A field without effect is named in the `Warning` header, or in the `warnings` and messages of batches and WebSockets.
- A field that cannot be served is refused with 400 and the reason.
- Of the last two, a value that asks for nothing (null, false, 0, empty, also as text) is accepted.
- A field that stands for one of this API counts as absent if it is null or blank.

"""


def page() -> str:
    """Returns the text of docs/other-apis.md."""
    rows = [f"| `{each.name}` | {outcome(each)} | {names(each.clients)} |" for each in PEER_FIELDS]
    sources = [f"- [{each.name}]({each.source})" for each in CLIENTS]
    tail = ["", "These pages describe the fields of each API:", "", *sources]
    return _HEAD + "\n".join(["| field | what becomes of it | API |", "|---|---|---|", *rows, *tail, ""])


def names(clients: Sequence[Client]) -> str:
    """Returns the names of APIs in a line."""
    return ", ".join(each.name for each in clients)


def outcome(field: PeerField) -> str:
    """Returns what becomes of a field, in Markdown."""
    if field.means:
        return field.means
    if field.ignored:
        return f"`Warning`: {field.ignored}"
    return f"400: {field.refused}" if field.refused else "the [same field](api.md#request-fields)"


if __name__ == "__main__":
    print(page(), end="")
