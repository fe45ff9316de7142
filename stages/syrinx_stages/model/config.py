"""The two configuration files of a checkpoint as typed structs. Imports no torch, because the gateway reads them too.

Unknown keys are ignored, because official files have many. A field that may be missing has the default of the official
package's configuration classes. Unsupported values are errors that name the field.
"""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from syrinx_stages.contract.family import QWEN3_TTS

CODE_GROUPS = QWEN3_TTS.code_groups

SPECIAL_IDS = QWEN3_TTS.special_ids
"""The last ids of the talker's vocabulary: languages, speakers and control tokens. Only EOS is ever sampled."""

Size = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class CheckpointError(ValueError):
    """A checkpoint is invalid or unsupported; the message names the file and the field or tensor."""


class ModelType(StrEnum):
    """What a checkpoint was trained for (`tts_model_type`)."""

    BASE = "base"
    CUSTOM_VOICE = "custom_voice"
    VOICE_DESIGN = "voice_design"


def _require(config: msgspec.Struct, **supported: int) -> None:
    """Raises ValueError unless each field has its only supported value."""
    for field, only in supported.items():
        if (value := getattr(config, field)) != only:
            raise ValueError(f"{field}: {json.dumps(value)} is not supported, only {json.dumps(only)}")


class _StackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a stack of decoder layers."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size | None = None
    """None means `hidden_size // num_attention_heads`; use `head_size`."""
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10_000.0
    hidden_act: Literal["silu"] = "silu"
    attention_bias: bool = False

    def __post_init__(self) -> None:
        _require(self, attention_bias=False)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_attention_heads: not a multiple of num_key_value_heads {self.num_key_value_heads}")

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class TransformerConfig(_StackConfig, frozen=True, kw_only=True):
    """The fields that the talker and the code predictor have in common."""

    vocab_size: Size
    max_position_embeddings: Size = 32_768
    rope_scaling: dict[str, Any] | None = None
    use_sliding_window: bool = False
    num_code_groups: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        scaling = self.rope_scaling or {}
        if (rope_type := scaling.get("rope_type", scaling.get("type", "default"))) != "default":
            raise ValueError(f"rope_scaling: rope_type {rope_type!r} is not supported, only 'default'")
        _require(self, use_sliding_window=False, num_code_groups=CODE_GROUPS)
        if self.head_size % 2:
            raise ValueError(f"head_dim: {self.head_size} is odd, rotary embeddings need pairs")


class CodePredictorConfig(TransformerConfig, frozen=True, kw_only=True):
    """The code predictor, which generates codes 1 to 15 of a frame."""

    head_dim: Size = 128


class TalkerConfig(TransformerConfig, frozen=True, kw_only=True):
    """The talker, which generates code 0 of each frame."""

    text_hidden_size: Size
    text_vocab_size: Size
    codec_pad_id: TokenId
    codec_bos_id: TokenId
    codec_eos_token_id: TokenId
    codec_think_id: TokenId
    codec_nothink_id: TokenId
    codec_think_bos_id: TokenId
    codec_think_eos_id: TokenId
    codec_language_id: dict[str, TokenId]
    spk_id: dict[str, TokenId] | None = None
    spk_is_dialect: dict[str, bool | str] | None = None
    """Per speaker: false, or the `codec_language_id` key of the dialect it speaks."""
    code_predictor_config: CodePredictorConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size <= SPECIAL_IDS:
            raise ValueError(f"vocab_size: {self.vocab_size} leaves no codes below the {SPECIAL_IDS} special ids")
        ids = {f"codec_language_id.{key}": value for key, value in self.codec_language_id.items()}
        ids |= {f"spk_id.{key}": value for key, value in self.speakers.items()}
        control_tokens = [name for name in self.__struct_fields__ if name.startswith("codec_") and name.endswith("_id")]
        ids |= {name: getattr(self, name) for name in control_tokens if name != "codec_language_id"}
        for name, value in ids.items():
            if value >= self.vocab_size:
                raise ValueError(f"{name}: id {value} is outside vocab_size {self.vocab_size}")
        for speaker in self.speakers:
            if (dialect := self.dialect(speaker)) is not None and dialect not in self.codec_language_id:
                raise ValueError(f"spk_is_dialect.{speaker}: {dialect!r} is not in codec_language_id")

    @property
    def speakers(self) -> dict[str, int]:
        return self.spk_id or {}

    def dialect(self, speaker: str) -> str | None:
        """The `codec_language_id` key of a speaker's dialect, or None."""
        dialect = (self.spk_is_dialect or {}).get(speaker, False)
        return dialect if isinstance(dialect, str) else None

    @property
    def codebook_size(self) -> int:
        return self.vocab_size - SPECIAL_IDS


class SpeakerEncoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The ECAPA-TDNN of Base checkpoints, with the official package's defaults."""

    mel_dim: Size = 128
    enc_dim: Size = 1024
    enc_channels: tuple[Size, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[Size, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[Size, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: Size = 128
    enc_res2net_scale: Size = 8
    enc_se_channels: Size = 128
    sample_rate: Size = QWEN3_TTS.sample_rate

    def __post_init__(self) -> None:
        _require(self, sample_rate=QWEN3_TTS.sample_rate)
        if not len(self.enc_channels) == len(self.enc_kernel_sizes) == len(self.enc_dilations):
            raise ValueError("enc_channels, enc_kernel_sizes, enc_dilations: must have equal lengths")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`config.json`."""

    model_type: Literal["qwen3_tts"]
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    tts_model_type: ModelType
    tts_model_size: str
    im_start_token_id: TokenId = 151_644
    im_end_token_id: TokenId = 151_645
    assistant_token_id: TokenId | None = None
    """None means the id that the tokenizer gives to "assistant"."""
    tts_pad_token_id: TokenId = 151_671
    tts_bos_token_id: TokenId = 151_672
    tts_eos_token_id: TokenId = 151_673
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig = SpeakerEncoderConfig()

    def __post_init__(self) -> None:
        talker = self.talker_config
        for name in self.__struct_fields__:
            if name.endswith("_token_id") and (getattr(self, name) or 0) >= talker.text_vocab_size:
                raise ValueError(f"{name}: {getattr(self, name)} is outside text_vocab_size {talker.text_vocab_size}")
        if talker.codebook_size != talker.code_predictor_config.vocab_size:
            raise ValueError(
                f"talker_config.vocab_size: {talker.vocab_size} less {SPECIAL_IDS} is not"
                f" code_predictor_config.vocab_size {talker.code_predictor_config.vocab_size}"
            )
        if self.tts_model_type is ModelType.BASE and self.speaker_encoder_config.enc_dim != talker.hidden_size:
            raise ValueError(
                f"speaker_encoder_config.enc_dim: {self.speaker_encoder_config.enc_dim} is not"
                f" talker_config.hidden_size {talker.hidden_size}"
            )


class DecoderConfig(_StackConfig, frozen=True, kw_only=True):
    """The codec decoder: codes to waveform."""

    codebook_size: Size
    codebook_dim: Size = 512
    latent_dim: Size
    sliding_window: Annotated[int, Meta(ge=2)] = 72
    rms_norm_eps: Positive = 1e-5
    num_quantizers: Size
    upsample_rates: tuple[Size, ...]
    upsampling_ratios: tuple[Size, ...]
    decoder_dim: Size

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_rates + self.upsampling_ratios)


class SpeechTokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`speech_tokenizer/config.json`."""

    model_type: Literal["qwen3_tts_tokenizer_12hz"]
    decoder_config: DecoderConfig
    encoder_config: dict[str, Any] = {}
    """Arguments of transformers' `MimiConfig`; only Base checkpoints need them."""
    encoder_valid_num_quantizers: Size = CODE_GROUPS
    input_sample_rate: Size = QWEN3_TTS.sample_rate
    output_sample_rate: Size = QWEN3_TTS.sample_rate
    decode_upsample_rate: Size = QWEN3_TTS.samples_per_frame
    encode_downsample_rate: Size = QWEN3_TTS.samples_per_frame

    def __post_init__(self) -> None:
        _require(
            self,
            encoder_valid_num_quantizers=CODE_GROUPS,
            input_sample_rate=QWEN3_TTS.sample_rate,
            output_sample_rate=QWEN3_TTS.sample_rate,
            decode_upsample_rate=QWEN3_TTS.samples_per_frame,
            encode_downsample_rate=QWEN3_TTS.samples_per_frame,
        )
        if (samples := self.decoder_config.samples_per_frame) != self.decode_upsample_rate:
            raise ValueError(
                f"decoder_config.upsample_rates, upsampling_ratios: their product {samples} is not decode_upsample_rate"
                f" {self.decode_upsample_rate}"
            )
        _require(self.decoder_config, num_quantizers=CODE_GROUPS)


_T = TypeVar("_T")


def read_file(path: Path) -> bytes:
    """Reads a file of a checkpoint. Raises `CheckpointError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def decode_file(path: Path, file_type: type[_T]) -> _T:
    """Decodes a JSON file of a checkpoint. Raises `CheckpointError` naming file and field."""
    try:
        return msgspec.json.decode(read_file(path), type=file_type)
    except msgspec.DecodeError as error:  # includes ValidationError, which names the field
        raise CheckpointError(f"{path}: {error}") from None


class _ModelTypeField(msgspec.Struct):
    """Decoded first, so that an unknown type gets a clear error."""

    tts_model_type: str


def read_model_config(directory: Path) -> ModelConfig:
    """Reads `config.json`. Raises `CheckpointError` naming file and field."""
    path = directory / "config.json"
    model_type = decode_file(path, _ModelTypeField).tts_model_type
    if model_type not in set(ModelType):
        raise CheckpointError(f"{path}: tts_model_type {model_type!r} is unknown; accepted: {', '.join(ModelType)}")
    return decode_file(path, ModelConfig)


def read_speech_tokenizer_config(directory: Path) -> SpeechTokenizerConfig:
    """Reads `speech_tokenizer/config.json`. Raises `CheckpointError` naming file and field."""
    return decode_file(directory / "speech_tokenizer" / "config.json", SpeechTokenizerConfig)
