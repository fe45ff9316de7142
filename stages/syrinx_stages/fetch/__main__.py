"""`python -m syrinx_stages.fetch (--id ORG/NAME --revision REV | --s3 URI) --parts STAGE [STAGE ...] --cache DIR`.

Downloads the files of a checkpoint that stages need to a directory below DIR and prints that directory.
"""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from syrinx_stages.contract.checkpoints import hub_directory, s3_directory
from syrinx_stages.fetch.download import Source, download, retry
from syrinx_stages.fetch.parts import CONFIGS, WEIGHTS, select
from syrinx_stages.fetch.store import FetchError, Store
from syrinx_stages.model.config import CheckpointError, ModelType, read_model_config

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_S3_NAME = r"[A-Za-z0-9][A-Za-z0-9._=+-]*"
_REPOSITORY = (rf"{_NAME}/{_NAME}", "of the form ORG/NAME")
_URI = (rf"s3://[a-z0-9][a-z0-9.-]+(/{_S3_NAME})*/?", "of the form s3://BUCKET/PREFIX")
_REVISION = (rf"{_NAME}(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)*", "a commit, tag or branch")


def main() -> int:
    """Returns the exit status: 0, or 1 after an error message."""
    _end_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m syrinx_stages.fetch", description=__doc__)
    parser.add_argument("--id", type=partial(_checked, *_REPOSITORY), help="repository of a hub, as ORG/NAME")
    parser.add_argument("--revision", type=partial(_checked, *_REVISION), help="commit, tag or branch")
    parser.add_argument("--s3", type=partial(_checked, *_URI), help="bucket and prefix, as s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint", default="", help="URL of the S3 server; AWS without it")
    parser.add_argument("--parts", required=True, nargs="+", choices=sorted(WEIGHTS), help="stages that need the files")
    parser.add_argument("--cache", required=True, help="directory of all checkpoints")
    arguments = parser.parse_args()
    if bool(arguments.s3) == bool(arguments.id and arguments.revision):
        parser.error("give --id and --revision, or --s3")
    s3, endpoint = arguments.s3, arguments.endpoint
    directory = s3_directory(s3, endpoint) if s3 else hub_directory(arguments.id, arguments.revision)
    store = Store(Path(arguments.cache, directory))
    try:
        if parts := [part for part in arguments.parts if not store.complete(part)]:
            _fetch(_source(arguments), store, parts)
    except (FetchError, CheckpointError) as error:
        _log(str(error))
        return 1
    print(store.directory)
    return 0


def _end_on_sigterm() -> None:
    """Ends the process at once on SIGTERM, which PID 1 of a container ignores otherwise. Partial files are kept.

    A thread waits for it: a handler has to wait itself while the main thread reads from a server that is silent.
    """

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        os._exit(128 + signal.SIGTERM)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()


def _source(arguments: argparse.Namespace) -> Source:
    # Imported late because they are slow to import and not needed if the files are present.
    if arguments.s3:
        from syrinx_stages.fetch.s3 import Bucket

        return Bucket(arguments.s3, arguments.endpoint)
    from syrinx_stages.fetch.hub import Repository

    return Repository(arguments.id, arguments.revision)


def _checked(pattern: str, description: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
    return text


def _fetch(source: Source, store: Store, parts: Sequence[str]) -> None:
    newest, files = retry(source.files, lambda: None, _log)
    if (version := store.pin(newest)) != newest:
        _, files = retry(lambda: source.files(version), lambda: None, _log)

    def fetch(patterns: Sequence[str]) -> dict[str, int]:
        """Downloads the files that match; returns their sizes by path."""
        selected = select(source, files, patterns)
        for file in selected:
            download(source, file, store, _log)
        return {file.path: file.size for file in selected}

    sizes = fetch(CONFIGS)
    for part in parts:
        weights = WEIGHTS[part]
        if part == "talker" and read_model_config(store.directory).tts_model_type is ModelType.BASE:
            # The talker of a Base checkpoint also encodes reference audio.
            weights = (*weights, *WEIGHTS["codec"])
        store.mark_complete(part, version, sizes | fetch(weights))


def _log(message: str) -> None:
    print(f"syrinx fetch: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
