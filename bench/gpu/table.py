"""Formats results as Markdown tables that are also readable in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.results import ServicePoint
from syrinx_operator.commands.bench.stats import Spread

Cell = Callable[[ServicePoint], str]


def _times(pick: Callable[[ServicePoint], Spread | None]) -> Cell:
    def cell(point: ServicePoint) -> str:
        spread = pick(point)
        return "-" if spread is None else f"{spread.p50 * 1000:.1f} / {spread.p95 * 1000:.1f}"

    return cell


def _load(point: ServicePoint) -> str:
    unit = {"open": "req/s", "closed": "clients", "live": "listeners"}[point.load]
    return f"{point.amount:g} {unit}"


def _underruns(point: ServicePoint) -> str:
    share = point.stats.underrun_share
    return "-" if share is None else f"{share:.2%}"


def _gpu(point: ServicePoint) -> str:
    return ", ".join(f"{gpu.utilization:.0%} {gpu.memory_gib:.1f} GiB" for gpu in point.usage.gpus) or "-"


def _errors(point: ServicePoint) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in point.stats.errors.items()) or "0"


def _busiest(point: ServicePoint) -> str:
    name, share = max(point.usage.cpu_share.items(), key=lambda item: item[1], default=("", 0.0))
    return f"{name} {share:.0%}" if name else "-"


COLUMNS: Sequence[tuple[str, Cell]] = (
    ("load", _load),
    ("requests", lambda point: str(point.stats.requests)),
    ("first byte ms", _times(lambda point: point.stats.first_byte)),
    ("playable ms", _times(lambda point: point.stats.first_playable)),
    ("TTFA ms", _times(lambda point: point.stats.ttfa)),
    ("underruns", _underruns),
    ("audio s/s", lambda point: "-" if point.load == "live" else f"{point.stats.audio_seconds_per_second:.1f}"),
    ("errors", _errors),
    ("GPU", _gpu),
    ("busiest process", _busiest),
    ("generator", lambda point: f"{point.generator.cpu_share:.0%}"),
    ("ramp", lambda point: ",".join(map(str, point.chunk_ramp)) or "-"),
)
CAPTION = (
    "Times are p50 / p95 since a request was due. First byte: any audio; playable: 100 ms of audio buffered; TTFA: the "
    "first audible sample played. Underruns: utterances whose playback stalled. Busiest process and generator: CPU use "
    "as a share of one core."
)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with aligned columns; the first is left-aligned, the others are right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        return f"| {cells[0]:<{widths[0]}} | " + " | ".join(map(str.rjust, cells[1:], widths[1:])) + " |"

    return "\n".join(map(line, (head, rule, *rows)))


def of_points(points: Sequence[ServicePoint]) -> str:
    """Returns the table of a service run."""
    return markdown([name for name, _ in COLUMNS], [[cell(point) for _, cell in COLUMNS] for point in points])


def of_stages(points: Sequence[ServicePoint]) -> str:
    """Returns the table of the stages' own metrics."""
    head = ["load", "first byte at client ms", "at gateway ms", "stage", "claim", "prefill", "step", "frames/step"]
    rows = []
    for point in points:
        for name, work in point.usage.stages.items():
            client = None if point.stats.first_byte is None else 1000 * point.stats.first_byte.mean
            first = [_load(point), _number(client), _number(point.usage.gateway_first_byte_ms)]
            times = (work.claim_wait_ms, work.prefill_ms, work.step_ms, work.frames_per_step)
            rows.append([*first, name, *map(_number, (*times, work.steps_per_second, work.redis_write_ms))])
    return markdown([*head, "steps/s", "Redis write"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


STAGES_CAPTION = (
    "Means in milliseconds, by the stages' own metrics. At gateway: from a request's arrival until the gateway sends "
    "its first audio; the rest of the time at the client is HTTP and the load generator. Claim: from the arrival until "
    "the stage claims the request."
)


def line(point: ServicePoint) -> str:
    """Returns a point as a line for progress output."""
    return "; ".join(f"{name} {cell(point)}" for name, cell in COLUMNS)
