"""The two config files of a checkpoint in the official layout, derived from a run's config and its tokenizer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from syrinx_stages.model.config import CODE_GROUPS, SPECIAL_IDS, DecoderConfig, ModelConfig, SpeechTokenizerConfig

from .config import CodecConfig, TalkerTrainingConfig, TrainingConfig
from .tokenizer import SPECIAL_TOKENS

_UPSAMPLE_RATES, _UPSAMPLING_RATIOS = [8, 5, 4, 3], [2, 2]
_POSITIONS = 4_096

# Offsets from the number of codes, as in the official checkpoints, which have 2,048 codes.
_LANGUAGES = {"english": 2, "german": 5}
_CODEC_SPECIAL_TOKENS = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_think_id": 106,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
_FIRST_SPEAKER = 900


def _stack(width: int, feed_forward: int, layers: int, heads: int, head_dim: int) -> dict[str, Any]:
    """Returns the settings that talker and code predictor share; one key head keeps the KV cache small."""
    return {
        "hidden_size": width,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _POSITIONS,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
        "tie_word_embeddings": False,
        "rope_theta": 10_000,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "attention_dropout": 0,
        "num_code_groups": CODE_GROUPS,
    }


def _predictor(training: TalkerTrainingConfig, codes: int) -> dict[str, Any]:
    stack = _stack(
        training.predictor_hidden,
        training.predictor_feed_forward,
        training.predictor_layers,
        training.predictor_heads,
        training.head_dim,
    )
    own = {"model_type": "qwen3_tts_talker_code_predictor", "vocab_size": codes}
    return own | stack | {"rope_scaling": None, "max_window_layers": 28}


def _rope_scaling(head_dim: int) -> dict[str, Any]:
    """Returns the official setting. The three axes of positions are always equal, so the sections have no effect."""
    half = head_dim // 2
    sections = [half - 2 * (half * 10 // 32), half * 10 // 32, half * 10 // 32]
    return {"interleaved": True, "mrope_section": sections, "rope_type": "default", "type": "default"}


def _talker(config: TrainingConfig) -> dict[str, Any]:
    training, codes = config.talker, config.codec.codebook_size
    speakers = list(config.synthesis.speakers)
    stack = _stack(training.hidden, training.feed_forward, training.layers, training.heads, training.head_dim)
    own = {
        "rope_scaling": _rope_scaling(training.head_dim),
        "text_hidden_size": training.text_hidden,
        # Rounded up to a multiple of 32 for speed.
        "text_vocab_size": math.ceil((256 + training.merges + len(SPECIAL_TOKENS)) / 32) * 32,
        "spk_id": {name: codes + _FIRST_SPEAKER + index for index, name in enumerate(speakers)},
        "spk_is_dialect": dict.fromkeys(speakers, False),
        "codec_language_id": {name: codes + index for name, index in _LANGUAGES.items()},
        "code_predictor_config": _predictor(training, codes),
    }
    special = {name: codes + index for name, index in _CODEC_SPECIAL_TOKENS.items()}
    return {"model_type": "qwen3_tts_talker", "vocab_size": codes + SPECIAL_IDS} | stack | special | own


def model_settings(config: TrainingConfig, tokenizer: Path) -> dict[str, Any]:
    """Returns `config.json`. tokenizer: directory of the tokenizer's files."""
    vocabulary = json.loads((tokenizer / "vocab.json").read_text("utf-8"))
    special = {name: len(vocabulary) + index for index, name in enumerate(SPECIAL_TOKENS)}
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "tiny",
        "tts_model_type": "custom_voice",
        "assistant_token_id": vocabulary["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
        "talker_config": _talker(config),
    }


def model_config(config: TrainingConfig, tokenizer: Path) -> ModelConfig:
    """Returns `config.json` as a struct."""
    return msgspec.convert(model_settings(config, tokenizer), ModelConfig)


def codec_settings(codec: CodecConfig) -> dict[str, Any]:
    """Returns `speech_tokenizer/config.json`."""
    decoder = {
        "codebook_size": codec.codebook_size,
        "codebook_dim": codec.codebook_dim,
        "hidden_size": codec.hidden,
        "latent_dim": codec.latent,
        "max_position_embeddings": 8_000,
        "rope_theta": 10_000,
        "num_attention_heads": codec.heads,
        "num_key_value_heads": codec.heads,
        "head_dim": codec.hidden // codec.heads,
        "attention_bias": False,
        "sliding_window": 72,
        "intermediate_size": codec.feed_forward,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "rms_norm_eps": 1e-5,
        "num_hidden_layers": codec.layers,
        "num_quantizers": CODE_GROUPS,
        "num_semantic_quantizers": 1,
        "semantic_codebook_size": codec.codebook_size,
        "upsample_rates": _UPSAMPLE_RATES,
        "upsampling_ratios": _UPSAMPLING_RATIOS,
        "decoder_dim": codec.decoder_dim,
        "attention_dropout": 0.0,
    }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": CODE_GROUPS,
        "input_sample_rate": 24_000,
        "output_sample_rate": 24_000,
        "decode_upsample_rate": 1_920,
        "encode_downsample_rate": 1_920,
        "decoder_config": decoder,
    }


def decoder_config(codec: CodecConfig) -> DecoderConfig:
    """Returns the `decoder_config` of `speech_tokenizer/config.json` as a struct."""
    return msgspec.convert(codec_settings(codec), SpeechTokenizerConfig).decoder_config
