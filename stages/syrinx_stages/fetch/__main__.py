"""`python -m syrinx_stages.fetch --id ORG/NAME --revision REV --parts gateway|talker|codec --cache DIR`.

Brings what a stage reads of a checkpoint to DIR/ORG--NAME/REV and prints that directory.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from syrinx_stages.fetch.errors import FetchError
from syrinx_stages.fetch.store import Store
from syrinx_stages.model.config import CheckpointError, ModelType, read_model_config

CONFIGS = ("*.json", "*.txt", "speech_tokenizer/*.json")
"""Configurations and tokenizer: every stage reads them."""
WEIGHTS = {"gateway": (), "talker": ("model*.safetensors",), "codec": ("speech_tokenizer/model*.safetensors",)}
"""What each stage loads besides."""
_SAFE = re.compile(r"(speech_tokenizer/)?[A-Za-z0-9][A-Za-z0-9._-]*")


def main() -> int:
    """Returns the exit status: 0, or 1 after a line that says what is wrong."""
    # As the first process of a container it would not hear the signal otherwise; what has arrived stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments = _arguments(sys.argv[1:])
    store = Store(Path(arguments.cache), arguments.id, arguments.revision)
    try:
        if not store.complete(arguments.parts):
            _fetch(store, arguments.id, arguments.revision, arguments.parts)
    except (FetchError, CheckpointError) as error:
        print(f"syrinx fetch: {error}", file=sys.stderr)
        return 1
    print(store.directory)
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m syrinx_stages.fetch", description=__doc__)
    parser.add_argument("--id", required=True, type=_repository, help="repository, as ORG/NAME")
    parser.add_argument("--revision", required=True, type=_revision, help="commit, tag or branch")
    parser.add_argument("--parts", required=True, choices=sorted(WEIGHTS), help="the stage that will read them")
    parser.add_argument("--cache", required=True, help="directory of all checkpoints")
    return parser.parse_args(arguments)


def _repository(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ORG/NAME")
    return text


def _revision(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9._/]*", text) or {"", ".", ".."} & set(text.split("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is no commit, tag or branch")
    return text


def _fetch(store: Store, name: str, revision: str, part: str) -> None:
    # Slow to import, and not needed where everything is there already.
    from syrinx_stages.fetch.download import download, patiently
    from syrinx_stages.fetch.hub import Repository

    commit, files = patiently(Repository(name, revision).list, lambda: None, _say)
    if (pinned := store.pin(commit)) != commit:
        commit, files = patiently(Repository(name, pinned).list, lambda: None, _say)
    repository = Repository(name, commit)

    def bring(patterns: Sequence[str]) -> dict[str, int]:
        chosen = [file for file in files if _SAFE.fullmatch(file.path) and _matches(file.path, patterns)]
        for pattern in patterns:
            if not any(_matches(file.path, [pattern]) for file in chosen):
                raise FetchError(f"{name} at {revision} is no Qwen3-TTS checkpoint: it has no {pattern}")
        for file in chosen:
            download(repository, commit, file, store, _say)
        return {file.path: file.size for file in chosen}

    brought = bring(CONFIGS)
    weights = WEIGHTS[part]
    if part == "talker" and read_model_config(store.directory).tts_model_type is ModelType.BASE:
        # The talker of a Base checkpoint also encodes reference audio.
        weights = (*weights, *WEIGHTS["codec"])
    store.mark(part, commit, brought | bring(weights))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """By shell patterns whose `*` does not stand for a slash."""
    return any(path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _say(message: str) -> None:
    print(f"syrinx fetch: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
