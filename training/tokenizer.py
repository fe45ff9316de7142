"""Trains the text tokenizer: a small byte-level BPE in the file format of Qwen2's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from syrinx_stages.model.tokenizer import PATTERN

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
_ASSISTANT_COUNT = 60_000
"""Repetitions of "assistant" in the training text: the prompt layout needs it to become a single token."""


def _untrained() -> tokenizers.Tokenizer:
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return bpe


def train(corpus: Iterable[str], merges: int, directory: Path) -> None:
    """Learns `merges` merges and writes `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
    bpe = _untrained()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(chain(corpus, repeat("assistant", _ASSISTANT_COUNT)), trainer)
    model = json.loads(bpe.to_str())["model"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), "utf-8")
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(_settings(len(model["vocab"])), indent=1))


def _settings(size: int) -> dict[str, Any]:
    """Returns `tokenizer_config.json`; the special tokens follow the vocabulary's `size` tokens."""
    options = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(size + index): {"content": token, **options} for index, token in enumerate(SPECIAL_TOKENS)}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
