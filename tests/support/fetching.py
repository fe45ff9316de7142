"""`python -m syrinx_stages.fetch` with short delays, as an init container runs it."""

import filecmp
import subprocess
import sys
from pathlib import Path

from support import small_checkpoint
from support.waiting import DEADLINE

WEIGHTS, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
CONFIGS = {"config.json", "merges.txt", "tokenizer_config.json", "vocab.json", "speech_tokenizer/config.json"}
UNREACHABLE = "http://127.0.0.1:9"
PROGRAM = (
    "import sys, syrinx_stages.fetch.download as download; download.RETRY_DELAYS = (0.01, 0.02, 0.04);"
    "download.GROWTH_SECONDS = 0.3; from syrinx_stages.fetch.__main__ import main; sys.exit(main())"
)


def repository(directory: Path, kind: str, *others: str) -> Path:
    """Writes a checkpoint, and other files, which must not be fetched."""
    small_checkpoint.write(directory, kind)
    for name in others:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("not needed")
    return directory


def start_fetch(arguments: dict[str, str], environment: dict[str, str], *prefix: str) -> subprocess.Popen[str]:
    """Starts to fetch. `prefix` precedes the command."""
    words = [word for name, value in arguments.items() for word in (f"--{name}", *value.split(" "))]
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_fetch(process: subprocess.Popen[str], secret: str) -> tuple[int, str, str]:
    """Status, output and errors, which show neither the secret nor a traceback."""
    output, errors = process.communicate(timeout=DEADLINE)
    assert secret not in output + errors and "Traceback" not in errors, errors
    return process.returncode, output, errors


def files(directory: Path) -> set[str]:
    """Names of the files present, except markers and partial files."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not path.name.startswith(".")}


def same(source: Path, directory: Path, *names: str) -> bool:
    """Returns whether files of two directories are equal."""
    return all(filecmp.cmp(source / name, directory / name, shallow=False) for name in names)
