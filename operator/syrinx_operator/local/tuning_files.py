"""Files of the local tuner in the pipeline's directory: its state, and a log of its decisions."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from syrinx_operator.local.files import write_atomically
from syrinx_operator.resource.knobs import Setting, StatusStruct
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import TtfaObjective
from syrinx_operator.resource.tuning_status import State, Timestamp

STATE_FILE = "tuning.json"
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


def load(directory: Path) -> TuningMemory | None:
    """Returns the saved state, or None. Raises `TuningMemoryError`."""
    file = directory / STATE_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=TuningMemory)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise TuningMemoryError(f"{file}: {getattr(error, 'strerror', error)}") from None


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
