"""The tuner's decisions as its audit log has them: a JSON object a line, among whatever else a log holds."""

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
    """One decision, or one pair of periods compared."""

    time: Timestamp
    pipeline: str
    """NAME, or NAMESPACE/NAME."""
    reason: str
    message: str = ""
    after: _After = _After()
    data: _Data = _Data()

    @property
    def setting(self) -> Setting | None:
        """What is in force after it, trials aside."""
        return self.after.base

    @property
    def trial(self) -> Trial | None:
        """The trial that it is about, as it was then."""
        return self.data.trial


def read_audit(files: Iterable[Path | None], pipeline: str | None) -> list[AuditEntry]:
    """A pipeline's lines of some files (None: standard input), in their order. Raises `TuneError` if there are none."""
    lines = [line for file in files for text in _texts(file) if (line := _line(text)) is not None]
    found = [line for line in lines if pipeline in (None, line.pipeline)]
    if not found and lines:
        others = ", ".join(sorted({line.pipeline for line in lines}))
        raise TuneError(f"nothing was decided about {pipeline} there, only about {others}")
    if not found:
        raise TuneError("nothing was decided yet: there is nothing to draw")
    return found


def _texts(file: Path | None) -> Iterator[str]:
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


def _line(text: str) -> AuditEntry | None:
    """A log may put a time or a level in front, or be JSON itself, with the line as its message."""
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
