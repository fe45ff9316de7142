"""`python -m syrinx_stages.fetch --id ORG/NAME --revision REV --parts gateway|talker|codec --cache DIR`.

Downloads the files of a checkpoint that a stage needs to DIR/ORG--NAME/REV and prints that directory.
"""

import argparse
import fnmatch
import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from syrinx_stages.fetch.store import FetchError, Store
from syrinx_stages.model.config import CheckpointError, ModelType, read_model_config

CONFIGS = ("*.json", "*.txt", "speech_tokenizer/*.json")
"""Configuration and tokenizer files, which every stage reads."""
WEIGHTS = {"gateway": (), "talker": ("model*.safetensors",), "codec": ("speech_tokenizer/model*.safetensors",)}
"""The other files that each stage reads."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SAFE = re.compile(rf"(speech_tokenizer/)?{_NAME}")
_REPOSITORY = (rf"{_NAME}/{_NAME}", "of the form ORG/NAME")
_REVISION = (rf"{_NAME}(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)*", "a commit, tag or branch")


def main() -> int:
    """Returns the exit status: 0, or 1 after an error message."""
    # PID 1 of a container ignores SIGTERM without a handler. Partial files are kept for the next attempt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m syrinx_stages.fetch", description=__doc__)
    parser.add_argument("--id", required=True, type=partial(_checked, *_REPOSITORY), help="repository, as ORG/NAME")
    parser.add_argument("--revision", required=True, type=partial(_checked, *_REVISION), help="commit, tag or branch")
    parser.add_argument("--parts", required=True, choices=sorted(WEIGHTS), help="stage that needs the files")
    parser.add_argument("--cache", required=True, help="directory of all checkpoints")
    arguments = parser.parse_args()
    store = Store(Path(arguments.cache), arguments.id, arguments.revision)
    try:
        if not store.complete(arguments.parts):
            _fetch(store, arguments.id, arguments.revision, arguments.parts)
    except (FetchError, CheckpointError) as error:
        _log(str(error))
        return 1
    print(store.directory)
    return 0


def _checked(pattern: str, description: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
    return text


def _fetch(store: Store, name: str, revision: str, part: str) -> None:
    # Imported late because they are slow to import and not needed if the files are present.
    from syrinx_stages.fetch.download import Repository, download, retry

    commit, files = retry(Repository(name, revision).list, lambda: None, _log)
    if (pinned := store.pin(commit)) != commit:
        commit, files = retry(Repository(name, pinned).list, lambda: None, _log)
    repository = Repository(name, commit)

    def fetch(patterns: Sequence[str]) -> dict[str, int]:
        """Downloads the files that match; returns their sizes by path."""
        selected = [file for file in files if _SAFE.fullmatch(file.path) and _matches(file.path, patterns)]
        for pattern in patterns:
            if not any(_matches(file.path, [pattern]) for file in selected):
                raise FetchError(f"{name} at {revision} is not a Qwen3-TTS checkpoint: it has no {pattern}")
        for file in selected:
            download(repository, commit, file, store, _log)
        return {file.path: file.size for file in selected}

    sizes = fetch(CONFIGS)
    weights = WEIGHTS[part]
    if part == "talker" and read_model_config(store.directory).tts_model_type is ModelType.BASE:
        # The talker of a Base checkpoint also encodes reference audio.
        weights = (*weights, *WEIGHTS["codec"])
    store.mark_complete(part, commit, sizes | fetch(weights))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Matches shell patterns in which `*` does not match a slash."""
    return any(path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _log(message: str) -> None:
    print(f"syrinx fetch: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
