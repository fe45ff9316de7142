"""Writes a checkpoint in the official layout, in float16, for `syrinx_stages.model.checkpoint` and `qwen-tts`.

Settings that do not depend on the run are those of the bundled voice's config files.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor, nn

from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.config import SPECIAL_IDS, DecoderConfig, ModelConfig, SpeechTokenizerConfig
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.talker import Talker

from .config import CodecConfig, TrainingConfig
from .talker_forward import share_norms
from .tokenizer import SPECIAL_TOKENS, bundled_settings

MAX_BYTES = 25_000_000
"""Limit of the weights' size, because the bundled voice is part of the package."""
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")

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


def model_settings(config: TrainingConfig, tokenizer: Path) -> dict[str, Any]:
    """Returns `config.json`. tokenizer: directory of the tokenizer's files."""
    training, codes, speakers = config.talker, config.codec.codebook_size, list(config.synthesis.speakers)
    vocabulary = json.loads((tokenizer / "vocab.json").read_text("utf-8"))
    special = {token["content"]: number for number, token in enumerate(SPECIAL_TOKENS, len(vocabulary))}
    settings = bundled_settings("config.json") | {
        "assistant_token_id": vocabulary["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
    }
    half = training.head_dim // 2
    rope_sections = [half - 2 * (half * 10 // 32), half * 10 // 32, half * 10 // 32]
    talker = settings["talker_config"]
    talker |= {name: codes + index for name, index in _CODEC_SPECIAL_TOKENS.items()} | {
        "vocab_size": codes + SPECIAL_IDS,
        "hidden_size": training.hidden,
        "intermediate_size": training.feed_forward,
        "num_hidden_layers": training.layers,
        "num_attention_heads": training.heads,
        "head_dim": training.head_dim,
        # The three axes of positions are always equal, so the sections have no effect.
        "rope_scaling": talker["rope_scaling"] | {"mrope_section": rope_sections},
        "text_hidden_size": training.text_hidden,
        # Rounded up to a multiple of 32 for speed.
        "text_vocab_size": math.ceil((256 + training.merges + len(SPECIAL_TOKENS)) / 32) * 32,
        "spk_id": {name: codes + _FIRST_SPEAKER + index for index, name in enumerate(speakers)},
        "spk_is_dialect": dict.fromkeys(speakers, False),
        "codec_language_id": {name: codes + index for name, index in _LANGUAGES.items()},
    }
    talker["code_predictor_config"] |= {
        "vocab_size": codes,
        "hidden_size": training.predictor_hidden,
        "intermediate_size": training.predictor_feed_forward,
        "num_hidden_layers": training.predictor_layers,
        "num_attention_heads": training.predictor_heads,
        "head_dim": training.head_dim,
    }
    return settings


def model_config(config: TrainingConfig, tokenizer: Path) -> ModelConfig:
    """Returns `config.json` as a struct."""
    return msgspec.convert(model_settings(config, tokenizer), ModelConfig)


def codec_settings(codec: CodecConfig) -> dict[str, Any]:
    """Returns `speech_tokenizer/config.json`."""
    settings = bundled_settings("speech_tokenizer/config.json")
    settings["decoder_config"] |= {
        "codebook_size": codec.codebook_size,
        "codebook_dim": codec.codebook_dim,
        "hidden_size": codec.hidden,
        "latent_dim": codec.latent,
        "num_attention_heads": codec.heads,
        "num_key_value_heads": codec.heads,
        "head_dim": codec.hidden // codec.heads,
        "intermediate_size": codec.feed_forward,
        "num_hidden_layers": codec.layers,
        "semantic_codebook_size": codec.codebook_size,
        "decoder_dim": codec.decoder_dim,
    }
    return settings


def decoder_config(codec: CodecConfig) -> DecoderConfig:
    """Returns the `decoder_config` of `speech_tokenizer/config.json` as a struct."""
    return msgspec.convert(codec_settings(codec), SpeechTokenizerConfig).decoder_config


def _write(directory: Path, settings: dict[str, Any], module: nn.Module, prefix: str) -> None:
    """Writes config and weights. Raises ValueError if a weight is out of float16's range."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    tensors: dict[str, Tensor] = {}
    for name, slot in checkpoint_tensors(module, prefix):
        # The checkpoint has one norm for all heads; the module has a row for each head.
        target = slot.target if slot.target.dim() == len(slot.shape) else slot.target[0]
        tensors[name] = target.detach().to("cpu", torch.float16).contiguous()
        if not bool(tensors[name].isfinite().all()):
            raise ValueError(f"{name}: a weight is out of float16's range")
    # safetensors.torch.save_file creates files with mode 0600, which a container with another user cannot read.
    (directory / "model.safetensors").write_bytes(save(tensors))


def export_codec(config: CodecConfig, decoder: CodecDecoder, directory: Path) -> None:
    """Writes `speech_tokenizer/`. Changes the decoder's codebooks to entries with a usage of 1."""
    with torch.no_grad():
        for quantizer in (decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest):
            for book in quantizer._books:
                book.embedding_sum.copy_(book.entries())
                book.cluster_usage.fill_(1)
    _write(directory / "speech_tokenizer", codec_settings(config), decoder, "decoder")


def export(config: TrainingConfig, talker: Talker, decoder: CodecDecoder, tokenizer: Path, directory: Path) -> int:
    """Writes a whole checkpoint and returns its weights' size in bytes. tokenizer: directory of the tokenizer's files.

    Raises ValueError if the weights exceed `MAX_BYTES`.
    """
    share_norms(talker)
    _write(directory, model_settings(config, tokenizer), talker, "talker")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    export_codec(config.codec, decoder, directory)
    size = sum(path.stat().st_size for path in directory.rglob("*.safetensors"))
    if size > MAX_BYTES:
        raise ValueError(f"the checkpoint's weights have {size} bytes; the limit is {MAX_BYTES}")
    return size
