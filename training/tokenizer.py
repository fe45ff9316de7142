"""The text tokenizer: a small byte-level BPE in the files of Qwen2's, learnt from the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from syrinx_stages.model.tokenizer import PATTERN

MARKS = (
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
"""How often "assistant" is shown: it has to become one token, for the prompt's layout counts on it."""


def _untrained() -> tokenizers.Tokenizer:
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return bpe


def _shown(corpus: Iterable[str]) -> Iterator[str]:
    yield from corpus
    yield from ["assistant"] * _ASSISTANT_COUNT


def train(corpus: Iterable[str], merges: int, directory: Path) -> None:
    """Learns `merges` merges and writes `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
    bpe = _untrained()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(_shown(corpus), trainer)
    model = json.loads(bpe.to_str())["model"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), "utf-8")
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(_settings(len(model["vocab"])), indent=1))


def _settings(size: int) -> dict[str, Any]:
    """`tokenizer_config.json`: the marks follow the vocabulary's `size` tokens."""
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(size + index): {"content": mark, **plain} for index, mark in enumerate(MARKS)},
        "additional_special_tokens": list(MARKS[1:]),
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
