"""The text tokenizer: Qwen2's byte-level BPE and the chat template.

The official package tokenizes the whole template as one string, so text can contain the template's special tokens. Here
special tokens are added by id and text is never parsed for them. The text between two special tokens, with the
template's newline, is encoded as one string, which gives the official ids for every text without special tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from syrinx_stages.model.config import CheckpointError, ModelConfig, decode_file, read_file

# The pattern that Qwen's models were trained with. transformers 4.57.3 replaces it with another family's pattern when
# `qwen-tts` loads some checkpoints from a directory, but not when it loads them by name.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_ROLE_TOKENS = 3


class AssistantIds(NamedTuple):
    """The ids of the template's start and of the text, split as in the official package."""

    role: list[int]
    text: list[int]


class WordIds(NamedTuple):
    """Tokens and where each is in its text."""

    ids: list[int]
    words: list[int]
    """Number of the pattern's match that has it."""
    starts: list[int]
    """In characters."""


class Tokenizer:
    """Encodes text for one checkpoint. Raises ValueError for text with lone surrogates, which UTF-8 cannot encode."""

    TEMPLATE = "assistant\n"
    """Before the text to speak."""

    def __init__(self, bpe: tokenizers.Tokenizer, config: ModelConfig) -> None:
        self._bpe = bpe
        self._start, self._end = config.im_start_token_id, config.im_end_token_id

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text; special tokens such as `<|im_end|>` in it are ordinary characters."""
        return list(self._encoding(text).ids)

    def encode_words(self, text: str) -> WordIds:
        """Returns the ids of plain text with their positions."""
        encoding = self._encoding(text)
        return WordIds(encoding.ids, encoding.word_ids, [start for start, _ in encoding.offsets])

    def _encoding(self, text: str) -> Any:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text has a lone surrogate at character {error.start}") from None
        return self._bpe.encode(text, add_special_tokens=False)

    def assistant(self, text: str) -> AssistantIds:
        """Returns the ids of the text to speak."""
        return self.split_assistant(self.encode(self.TEMPLATE + text))

    def split_assistant(self, encoded: Sequence[int]) -> AssistantIds:
        """Returns the ids of the template and the text to speak, which are encoded as one."""
        ids = [self._start, *encoded]
        return AssistantIds(ids[:_ROLE_TOKENS], ids[_ROLE_TOKENS:])

    def user(self, instructions: str) -> list[int]:
        """Returns the ids of instructions, template included."""
        return [self._start, *self.encode(f"user\n{instructions}"), self._end, *self.encode("\n")]


def load_tokenizer(directory: Path, config: ModelConfig) -> Tokenizer:
    """Reads `vocab.json`, `merges.txt`, `tokenizer_config.json`. Raises `CheckpointError` naming file and field."""
    vocab = decode_file(directory / "vocab.json", dict[str, int])
    largest, limit = max(vocab.values(), default=0), config.talker_config.text_vocab_size
    if largest >= limit:
        raise CheckpointError(
            f"{directory / 'vocab.json'}: id {largest} is outside config.json's text_vocab_size {limit}"
        )
    merges = _read_merges(directory / "merges.txt")
    try:
        bpe = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{directory / 'merges.txt'}: does not fit vocab.json: {error}") from None
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer = Tokenizer(bpe, config)
    _check(directory, tokenizer, config)
    return tokenizer


def _check(directory: Path, tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Raises `CheckpointError` unless config.json and the tokenizer agree on the special ids."""
    path = directory / "tokenizer_config.json"
    added = decode_file(path, _TokenizerConfig).added_tokens_decoder
    for field, content in (("im_start_token_id", "<|im_start|>"), ("im_end_token_id", "<|im_end|>")):
        token = added.get(str(getattr(config, field)))
        if token is None or token.get("content") != content:
            raise CheckpointError(f"{path}: added_tokens_decoder: no {content} under config.json's {field}")
    role = tokenizer.encode("assistant")
    if len(role) != 1 or config.assistant_token_id not in (None, role[0]):
        raise CheckpointError(f"{directory / 'vocab.json'}: 'assistant' is not the single token assistant_token_id")
    if len(tokenizer.encode("\n")) != 1:
        raise CheckpointError(f"{directory / 'vocab.json'}: a newline is not a single token")


class _TokenizerConfig(msgspec.Struct):
    """The field of `tokenizer_config.json` that is needed."""

    added_tokens_decoder: dict[str, dict[str, Any]]


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    lines = read_file(path).decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise CheckpointError(f"{path}: line {number} is not a pair of tokens")
        merges.append((left, right))
    return merges
