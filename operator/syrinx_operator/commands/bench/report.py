"""The report of a benchmark as JSON and as tables."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from syrinx_operator.commands.bench.stats import PREROLL_SECONDS, Point, Spread
from syrinx_operator.local.machine import Machine
from syrinx_operator.resource.spec import TTSPipeline

_P = TypeVar("_P")
_R = TypeVar("_R", bound=Struct)


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


def save(report: Struct, file: Path) -> None:
    """Writes a report. Raises `ReportError`."""
    with writing(file):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def load(file: Path, report_type: type[_R]) -> _R:
    """Reads a report. Raises `ReportError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=report_type)
    except OSError as error:
        raise ReportError(f"{file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ReportError(f"{file}: not a bench report of this kind: {error}") from None


def milliseconds(spread: Spread | None, form: str = "{:.0f}/{:.0f}") -> str:
    """Returns the p50 and p95 of times."""
    return "-" if spread is None else form.format(spread.p50 * 1000, spread.p95 * 1000)


def errors(point: Point) -> str:
    """Returns the number of failed requests by kind."""
    return ", ".join(f"{count} x {kind}" for kind, count in point.errors.items()) or "0"


def _load(point: Point) -> str:
    return f"{point.load:g} concurrent" if point.loop == "closed" else f"{point.load:g} req/s"


COLUMNS: Mapping[str, Callable[[Point], str]] = {
    "load": _load,
    "requests": lambda point: str(point.requests),
    "first byte ms": lambda point: milliseconds(point.first_byte),
    "playable ms": lambda point: milliseconds(point.first_playable),
    "TTFA ms": lambda point: milliseconds(point.ttfa),
    "gap ms": lambda point: milliseconds(point.gap),
    "underruns": lambda point: "-" if point.underrun_share is None else f"{point.underrun_share:.0%}",
    "RTF": lambda point: "-" if point.rtf is None else f"{point.rtf.p50:.2f}",
    "audio s/s": lambda point: f"{point.audio_seconds_per_second:.2f}",
    "req/s": lambda point: f"{point.requests_per_second:.2f}",
    "errors": errors,
}
CAPTION = (
    "Times are p50/p95. TTFA: from the request to the first audible sample, including leading silence; playable: "
    f"{PREROLL_SECONDS * 1000:.0f} ms of audio buffered; underruns: share of streams with a stall; RTF: wall time "
    "per second of audio, median."
)


def line(point: Point) -> str:
    """Returns a one-line summary of a load point."""
    ttfa = "no audible audio" if point.ttfa is None else f"TTFA {milliseconds(point.ttfa)} ms"
    speed = f"{point.audio_seconds_per_second:.2f} audio s/s"
    return f"{_load(point)}: {point.requests} requests, {ttfa}, {speed}, errors: {errors(point)}"


def markdown(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table with aligned columns; the first is left-aligned, the others are right-aligned."""
    table = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in (table[0], rule, *table[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def points_table(points: Sequence[_P], columns: Mapping[str, Callable[[_P], str]]) -> str:
    """Returns a table with a row for each point."""
    return markdown(columns, [[cell(point) for cell in columns.values()] for point in points])


def describe(report: Report) -> str:
    """Returns the table of a report, with a description of the machine."""
    machine = report.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items() if name in ("syrinx", "torch"))
    about = f"{machine.cpu}, {machine.cores} cores; Python {machine.python}, {packages}. {CAPTION}"
    return f"{points_table(report.points, COLUMNS)}\n\n{about}"
