"""Files of the local tuner in the pipeline's directory: its state, and a log of its decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from syrinx_operator.local.files import RotatedLog, previous_file, write_atomically
from syrinx_operator.resource.knobs import Setting, StatusStruct
from syrinx_operator.resource.spec import TtfaObjective
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning_status import State, Timestamp

STATE_FILE = "tuning.json"
AUDIT_FILE = "tuning.jsonl"
AUDIT_BYTES = 16 << 20
"""Size at which the log is rotated."""


class TuningMemoryError(Exception):
    """The state cannot be read. The message names the file and the cause."""


class TuningMemory(StatusStruct, frozen=True, kw_only=True):
    """The tuner's state, and further values for `syrinx tune`."""

    state: Annotated[State, Meta(description="State of the tuner.")]
    observed_at: Annotated[Timestamp, Meta(description="Time of the last evaluation.")]
    requested: Annotated[Setting, Meta(description="Settings in the resource.")]
    objectives: Annotated[tuple[TtfaObjective, ...], Meta(max_length=3, description="The objectives.")] = ()
    slo: Annotated[tuple[SloStatus, ...], Meta(max_length=3, description="Recent latency of each task type.")] = ()


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
    except OSError as error:
        raise TuningMemoryError(f"{file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise TuningMemoryError(f"{file}: {error}") from None


def audit_log(directory: Path) -> RotatedLog:
    """Returns the log of decisions."""
    return RotatedLog(directory / AUDIT_FILE, AUDIT_BYTES)


def audit_files(directory: Path) -> list[Path]:
    """Returns the files of the log, oldest first."""
    file = directory / AUDIT_FILE
    return [each for each in (previous_file(file), file) if each.exists()]
