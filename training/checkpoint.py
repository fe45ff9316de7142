"""Makes the text tokenizer and the configs of a checkpoint in the official layout.

Settings that do not depend on the run are those of the bundled voice's config files.
"""

import json
import math
import re
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.config import SPECIAL_IDS, DecoderConfig, ModelConfig, ModelType, SpeechTokenizerConfig
from syrinx_stages.model.describe import BUNDLED, checkpoint_directory
from syrinx_stages.model.tokenizer import PATTERN
from training.config import CloningConfig, CodecConfig, TrainingConfig

TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
_ASSISTANT_COUNT = 60_000
"""Repetitions of "assistant" in the training text: the prompt layout needs it to become a single token."""


def _bundled_settings(path: str) -> dict[str, Any]:
    """Returns a config file of the bundled voice: the settings that all runs share."""
    settings: dict[str, Any] = json.loads((checkpoint_directory(BUNDLED) / path).read_text("utf-8"))
    return settings


SPECIAL_TOKENS: list[dict[str, Any]] = list(_bundled_settings("tokenizer_config.json")["added_tokens_decoder"].values())
"""The special tokens, which follow the vocabulary, with their options."""


def train_tokenizer(corpus: Iterable[str], merges: int, directory: Path) -> None:
    """Learns `merges` merges and writes `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(chain(corpus, repeat("assistant", _ASSISTANT_COUNT)), trainer)
    model = json.loads(bpe.to_str())["model"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), "utf-8")
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), "utf-8")
    special = {str(number): token for number, token in enumerate(SPECIAL_TOKENS, len(model["vocab"]))}
    settings = _bundled_settings("tokenizer_config.json") | {"added_tokens_decoder": special}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def model_settings(config: TrainingConfig, tokenizer: Path) -> dict[str, Any]:
    """Returns `config.json`. tokenizer: directory of the tokenizer's files."""
    codes = decoder_config(config.codec).codebook_size
    speakers = [] if config.cloning is not None else list(config.synthesis.speakers)
    vocabulary = json.loads((tokenizer / "vocab.json").read_text("utf-8"))
    special = {token["content"]: number for number, token in enumerate(SPECIAL_TOKENS, len(vocabulary))}
    settings = _bundled_settings("config.json") | {
        "assistant_token_id": vocabulary["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
    }
    talker = settings["talker_config"]
    talker["code_predictor_config"] |= {"vocab_size": codes, **config.talker.predictor_shape}
    # Languages, control tokens and speakers follow the codes, at the same distances as in the official checkpoints.
    shift = codes + SPECIAL_IDS - talker["vocab_size"]
    first_speaker = min(talker["spk_id"].values()) + shift
    talker |= {
        name: number + shift for name, number in talker.items() if re.fullmatch("codec_.*(?<!language)_id", name)
    }
    talker |= {
        "vocab_size": codes + SPECIAL_IDS,
        # Rounded up to a multiple of 32 for speed.
        "text_vocab_size": math.ceil((256 + config.talker.merges + len(SPECIAL_TOKENS)) / 32) * 32,
        "spk_id": {name: first_speaker + index for index, name in enumerate(speakers)},
        "spk_is_dialect": dict.fromkeys(speakers, False),
        "codec_language_id": {
            name: number + shift
            for name, number in talker["codec_language_id"].items()
            if name in config.corpus.generated
        },
        **config.talker.shape,
    }
    if config.cloning is not None:
        settings["tts_model_type"] = ModelType.BASE
        settings["speaker_encoder_config"] = speaker_encoder_settings(config.cloning, talker["hidden_size"])
    return settings


def speaker_encoder_settings(cloning: CloningConfig, width: int) -> dict[str, Any]:
    """Returns `speaker_encoder_config` for a talker of `width`."""
    return {**cloning.speaker_encoder, "enc_dim": width, "sample_rate": FAMILY.sample_rate}


def model_config(config: TrainingConfig, tokenizer: Path) -> ModelConfig:
    """Returns `config.json` as a struct."""
    return msgspec.convert(model_settings(config, tokenizer), ModelConfig)


def codec_settings(codec: CodecConfig) -> dict[str, Any]:
    """Returns `speech_tokenizer/config.json`."""
    settings = _bundled_settings("speech_tokenizer/config.json")
    settings["decoder_config"] |= codec.shape
    return settings


def decoder_config(codec: CodecConfig) -> DecoderConfig:
    """Returns the `decoder_config` of `speech_tokenizer/config.json` as a struct."""
    return msgspec.convert(codec_settings(codec), SpeechTokenizerConfig).decoder_config
