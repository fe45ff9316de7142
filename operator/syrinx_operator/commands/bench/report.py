"""The report of a benchmark as JSON and as tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from syrinx_operator.commands.bench.playback import PREROLL_SECONDS
from syrinx_operator.commands.bench.stats import Loop, Point, Spread
from syrinx_operator.local.machine import Machine
from syrinx_operator.resource.spec import TTSPipeline


class Report(Struct, frozen=True, kw_only=True):
    """The report of a run, as written by `--json`."""

    created: str
    """UTC, ISO 8601."""
    command: str
    revision: str | None
    machine: Machine
    pipeline: TTSPipeline | None
    """None if a URL was measured."""
    seed: int
    texts: int
    """Number of sentences in the corpus."""
    voices: list[str]
    preroll_seconds: float = PREROLL_SECONDS
    points: list[Point]


class ReportError(Exception):
    """A file is not a bench report, or cannot be written."""


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Creates the file's directory and converts `OSError` to `ReportError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ReportError(f"cannot write {file}: {error.strerror}") from None


def check_writable(file: Path) -> None:
    """Raises `ReportError` if a file cannot be written, before the measurement."""
    with writing(file):
        file.open("ab").close()


def save(report: Report, file: Path) -> None:
    """Writes a report. Raises `ReportError`."""
    with writing(file):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def load(file: Path) -> Report:
    """Reads a report. Raises `ReportError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Report)
    except OSError as error:
        raise ReportError(f"{file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ReportError(f"{file}: not a bench report: {error}") from None


class _Column(Struct, frozen=True):
    head: str
    cell: Callable[[Point], str]


def _milliseconds(pick: Callable[[Point], Spread | None]) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        values = pick(point)
        return "-" if values is None else f"{values.p50 * 1000:.0f}/{values.p95 * 1000:.0f}"

    return cell


def _load(point: Point) -> str:
    return f"{point.load:g} concurrent" if point.loop == Loop.CLOSED else f"{point.load:g} req/s"


def _rtf(point: Point) -> str:
    return "-" if point.rtf is None else f"{point.rtf.p50:.2f}"


def _underruns(point: Point) -> str:
    return "-" if point.underrun_share is None else f"{point.underrun_share:.0%}"


def _errors(point: Point) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in point.errors.items()) or "0"


_TABLE_WIDTH = 110
"""Minimum width of the table, so that no numbers are truncated."""
COLUMNS: Sequence[_Column] = (
    _Column("load", _load),
    _Column("requests", lambda point: str(point.requests)),
    _Column("first byte ms", _milliseconds(lambda point: point.first_byte)),
    _Column("playable ms", _milliseconds(lambda point: point.first_playable)),
    _Column("TTFA ms", _milliseconds(lambda point: point.ttfa)),
    _Column("gap ms", _milliseconds(lambda point: point.gap)),
    _Column("underruns", _underruns),
    _Column("RTF", _rtf),
    _Column("audio s/s", lambda point: f"{point.audio_seconds_per_second:.2f}"),
    _Column("req/s", lambda point: f"{point.requests_per_second:.2f}"),
    _Column("errors", _errors),
)
CAPTION = (
    "Times are p50/p95. TTFA: from the request to the first audible sample, including leading silence; playable: "
    f"{PREROLL_SECONDS * 1000:.0f} ms of audio buffered; underruns: share of streams with a stall; RTF: wall time "
    "per second of audio, median."
)


def line(point: Point) -> str:
    """Returns a one-line summary of a load point."""
    ttfa = "no audible audio" if point.ttfa is None else f"TTFA {_milliseconds(lambda p: p.ttfa)(point)} ms"
    speed = f"{point.audio_seconds_per_second:.2f} audio s/s"
    return f"{_load(point)}: {point.requests} requests, {ttfa}, {speed}, errors: {_errors(point)}"


def show(points: Sequence[Point], console: Console) -> None:
    """Prints the table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column.head.replace(" ", "\n"), justify="right", no_wrap=True)
    for point in points:
        table.add_row(*(column.cell(point) for column in COLUMNS))
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table, crop=False, soft_wrap=False)
    console.print(CAPTION)


def markdown(report: Report) -> str:
    """Returns the table as Markdown, with a description of the machine."""
    lines = [
        "| " + " | ".join(column.head for column in COLUMNS) + " |",
        "|" + " ---: |" * len(COLUMNS),
        *("| " + " | ".join(column.cell(point) for column in COLUMNS) + " |" for point in report.points),
    ]
    machine = report.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items() if name in ("syrinx", "torch"))
    return "\n".join(
        [*lines, "", f"{machine.cpu}, {machine.cores} cores; Python {machine.python}, {packages}. {CAPTION}"]
    )
