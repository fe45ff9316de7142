"""Trains the text tokenizer: a small byte-level BPE in the file format of Qwen2's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from syrinx_stages.model.describe import BUNDLED, checkpoint_directory
from syrinx_stages.model.tokenizer import PATTERN

_ASSISTANT_COUNT = 60_000
"""Repetitions of "assistant" in the training text: the prompt layout needs it to become a single token."""


def bundled_settings(path: str) -> dict[str, Any]:
    """Returns a config file of the bundled voice: the settings that all runs share."""
    settings: dict[str, Any] = json.loads((checkpoint_directory(BUNDLED) / path).read_text("utf-8"))
    return settings


SPECIAL_TOKENS: list[dict[str, Any]] = list(bundled_settings("tokenizer_config.json")["added_tokens_decoder"].values())
"""The special tokens, which follow the vocabulary, with their options."""


def train(corpus: Iterable[str], merges: int, directory: Path) -> None:
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
    settings = bundled_settings("tokenizer_config.json") | {"added_tokens_decoder": special}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
