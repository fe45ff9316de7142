"""Files of the local tuner in the pipeline's directory: the resource, its state, and a log of its decisions."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from syrinx_operator.local.files import write_atomically
from syrinx_operator.resource.fields.tuning import TtfaObjective
from syrinx_operator.resource.knobs import Setting, StatusStruct
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.state.status import SloStatus
from syrinx_operator.resource.state.tuning_status import State, Timestamp
from syrinx_operator.resource.versions import read_known

STATE_FILE = "tuning.json"
RESOURCE_FILE = "resource.json"
AUDIT_FILE = "tuning.jsonl"
AUDIT_BYTES = 16 << 20
"""Size at which the log is rotated to FILE.1. Only one old file is kept."""


class TuningMemoryError(Exception):
    """The state cannot be read. The message names the file and the cause."""


class TuningMemory(StatusStruct, frozen=True, kw_only=True):
    """The tuner's state, and further values for `syrinx tune`."""

    state: State
    observed_at: Timestamp
    """Time of the last evaluation."""
    requested: Setting
    """Settings in the resource."""
    objectives: tuple[TtfaObjective, ...] = ()
    slo: tuple[SloStatus, ...] = ()
    """Recent latency of each task type."""


def save(directory: Path, memory: TuningMemory) -> None:
    """Writes the state atomically. Raises `OSError`."""
    write_atomically(directory / STATE_FILE, msgspec.json.format(msgspec.json.encode(memory), indent=1))


def load(directory: Path, on_loss: Callable[[str], object] = lambda message: None) -> TuningMemory | None:
    """Returns the saved state, or None. Raises `TuningMemoryError`.

    Another version may have written it: `on_loss` is called with a message if a part cannot be read.
    """
    file = directory / STATE_FILE
    try:
        content = msgspec.json.decode(file.read_bytes())
        try:
            return msgspec.convert(content, TuningMemory)
        except msgspec.ValidationError as error:
            found = read_known(content, TuningMemory)
            on_loss(f"{file} is not readable as a whole: {error}")
            return found
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise TuningMemoryError(f"{file}: {getattr(error, 'strerror', error)}") from None


def save_resource(directory: Path, pipeline: TTSPipeline) -> None:
    """Writes the resource that the tuner works on. Raises `OSError`."""
    write_atomically(directory / RESOURCE_FILE, msgspec.json.encode(pipeline))


def load_resource(directory: Path) -> TTSPipeline | None:
    """Returns the resource; None without one that this version can read."""
    try:
        return msgspec.json.decode((directory / RESOURCE_FILE).read_bytes(), type=TTSPipeline)
    except (OSError, msgspec.MsgspecError):
        return None


def audit_log(directory: Path) -> Callable[[str], None]:
    """Returns a function that appends a line to the log of decisions. It raises `OSError`."""
    file = directory / AUDIT_FILE

    def write(line: str) -> None:
        with file.open("ab") as stream:
            stream.write(line.encode() + b"\n")
            is_full = stream.tell() >= AUDIT_BYTES
        if is_full:
            file.replace(directory / f"{AUDIT_FILE}.1")

    return write


def audit_files(directory: Path) -> list[Path]:
    """Returns the files of the log, oldest first."""
    files = (directory / f"{AUDIT_FILE}.1", directory / AUDIT_FILE)
    return [file for file in files if file.exists()]
