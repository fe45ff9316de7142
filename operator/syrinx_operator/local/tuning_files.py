"""What the tuner beside `syrinx up` keeps in its pipeline's directory: its memory, and a log of what it decided."""

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
"""Of the log at most, and as much again of what was before."""


class TuningMemoryError(Exception):
    """The memory cannot be read; the message names the file and says why."""


class TuningMemory(StatusStruct, frozen=True, kw_only=True):
    """The tuner's memory, and what `syrinx tune` shows beside it."""

    state: Annotated[State, Meta(description="The memory.")]
    observed_at: Annotated[Timestamp, Meta(description="When the metrics were looked at last.")]
    requested: Annotated[Setting, Meta(description="What the resource asks for.")]
    objectives: Annotated[tuple[TtfaObjective, ...], Meta(max_length=3, description="The objectives.")] = ()
    slo: Annotated[tuple[SloStatus, ...], Meta(max_length=3, description="How each task type did lately.")] = ()


def save(directory: Path, kept: TuningMemory) -> None:
    """Writes the memory whole. Raises `OSError`."""
    write_atomically(directory / STATE_FILE, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def load(directory: Path) -> TuningMemory | None:
    """The memory; None if there is none. Raises `TuningMemoryError`."""
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
    """Takes the audit's lines."""
    return RotatedLog(directory / AUDIT_FILE, AUDIT_BYTES)


def audit_files(directory: Path) -> list[Path]:
    """What there is of the log, oldest first."""
    file = directory / AUDIT_FILE
    return [each for each in (previous_file(file), file) if each.exists()]
