"""Reads the tuner's audit log: one JSON object per line, possibly among other log lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from syrinx_operator.commands.tune.source import TuneError
from syrinx_operator.resource.knobs import Setting, StatusStruct
from syrinx_operator.resource.tuning_status import Timestamp, Trial


class _Data(StatusStruct, frozen=True, kw_only=True):
    trial: Trial | None = None


class _After(StatusStruct, frozen=True, kw_only=True):
    base: Setting | None = None


class AuditEntry(StatusStruct, frozen=True, kw_only=True):
    """One decision, or one completed pair of periods."""

    time: Timestamp
    pipeline: str
    """NAME, or NAMESPACE/NAME."""
    reason: str
    message: str = ""
    after: _After = _After()
    data: _Data = _Data()

    @property
    def setting(self) -> Setting | None:
        """The setting in force afterwards, outside of trials."""
        return self.after.base

    @property
    def trial(self) -> Trial | None:
        """The trial as it was at that time."""
        return self.data.trial


def read_audit(files: Iterable[Path | None], pipeline: str | None) -> list[AuditEntry]:
    """Returns a pipeline's entries in order. None as a file is standard input. Raises TuneError without entries."""
    entries = [entry for file in files for text in _lines(file) if (entry := _parse(text)) is not None]
    found = [entry for entry in entries if pipeline in (None, entry.pipeline)]
    if not found and entries:
        others = ", ".join(sorted({entry.pipeline for entry in entries}))
        raise TuneError(f"the log has no decisions about {pipeline}, only about {others}")
    if not found:
        raise TuneError("the log has no decisions yet")
    return found


def _lines(file: Path | None) -> Iterator[str]:
    if file is None:
        yield from sys.stdin
        return
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            yield from stream
    except OSError as error:
        raise TuneError(f"{file}: {error.strerror}") from None


class _Wrapped(Struct):
    message: str


def _parse(text: str) -> AuditEntry | None:
    """Parses a log line. The entry may follow a prefix, or be the `message` of a JSON log record."""
    begin = text.find("{")
    if begin < 0:
        return None
    try:
        return msgspec.json.decode(text[begin:], type=AuditEntry)
    except msgspec.MsgspecError:
        pass
    try:
        return msgspec.json.decode(msgspec.json.decode(text[begin:], type=_Wrapped).message, type=AuditEntry)
    except msgspec.MsgspecError:
        return None
