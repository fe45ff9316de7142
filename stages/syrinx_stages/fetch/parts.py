"""Which files of a checkpoint each stage needs."""

import fnmatch
import re
from collections.abc import Sequence

from syrinx_stages.fetch.download import File
from syrinx_stages.fetch.store import FetchError

CONFIGS = ("*.json", "*.txt", "speech_tokenizer/*.json")
"""Configuration and tokenizer files, which every stage reads."""
WEIGHTS = {"gateway": (), "talker": ("model*.safetensors",), "codec": ("speech_tokenizer/model*.safetensors",)}
"""The other files that each stage reads."""
_SAFE = re.compile(r"(speech_tokenizer/)?[A-Za-z0-9][A-Za-z0-9._-]*")


def select(source: object, files: Sequence[File], patterns: Sequence[str]) -> list[File]:
    """Returns the files that match a pattern. Raises `FetchError`, which names the source, if none matches one."""
    selected = [file for file in files if _SAFE.fullmatch(file.path) and _matches(file.path, patterns)]
    for pattern in patterns:
        if not any(_matches(file.path, [pattern]) for file in selected):
            raise FetchError(f"{source} is not a Qwen3-TTS checkpoint: it has no {pattern}")
    return selected


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Matches shell patterns in which `*` does not match a slash."""
    return any(path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
