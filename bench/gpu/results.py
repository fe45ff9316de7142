"""The result file of the service benchmark, `..._service.json`, and its tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import yaml
from msgspec import Struct

from gpu.monitor import Usage
from syrinx_operator.commands.bench.load import GeneratorStats
from syrinx_operator.commands.bench.report import errors, markdown, milliseconds
from syrinx_operator.commands.bench.stats import Loop, Point
from syrinx_operator.local.machine import Machine


class ServicePoint(Struct, frozen=True, kw_only=True):
    """A load point."""

    load: Loop
    amount: float
    """Requests per second (open), concurrent clients (closed), listeners (live), or requests at once (burst)."""
    seconds: float
    """Duration in which requests were sent."""
    voice: Literal["", "kept", "new"] = ""
    """Of a Base checkpoint: the same reference audio in each request, or another one."""
    search: int = 0
    """Which search for the maximum of listeners the point is from."""
    stats: Point
    """For a live point, without the requests of its ramp-up."""
    usage: Usage
    generator: GeneratorStats


class ServiceRun(Struct, frozen=True, kw_only=True):
    """A run; points are appended as they are measured."""

    benchmark: Literal["service"] = "service"
    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    driver: str | None
    system: str
    """`syrinx`, or the name of another service."""
    topology: str
    """Describes which processes share a GPU."""
    model: str
    """The shape, and the origin of the weights."""
    random_weights: bool
    checks: bool | None = None
    """Whether segments are checked. None: unless the weights are random."""
    seed: int
    utterance_seconds: float | None
    """Mean requested length; None if the model ends the utterances."""
    complete: bool = False
    failure: str = ""
    deaths: list[str] = []
    """Processes that died during the run."""
    points: list[ServicePoint] = []


def load(file: Path) -> ServiceRun:
    """Reads the file. Raises `OSError` or `msgspec.DecodeError`."""
    return msgspec.json.decode(file.read_bytes(), type=ServiceRun)


_UNITS = {"open": "req/s", "closed": "clients", "live": "listeners", "burst": "at once"}
_TIMES = "{:.1f} / {:.1f}"


def _load(point: ServicePoint) -> str:
    voice = f", {point.voice} voice" if point.voice else ""
    return f"{point.amount:g} {_UNITS[point.load]}{voice}"


def _underruns(point: ServicePoint) -> str:
    share = point.stats.underrun_share
    return "-" if share is None else f"{share:.2%}"


def _gpus(point: ServicePoint) -> str:
    return ", ".join(f"{gpu.utilization:.0%} {gpu.memory_gib:.1f} GiB" for gpu in point.usage.gpus) or "-"


def _busiest(point: ServicePoint) -> str:
    name, share = max(point.usage.cpu_share.items(), key=lambda item: item[1], default=("", 0.0))
    return f"{name} {share:.0%}" if name else "-"


COLUMNS: Mapping[str, Callable[[ServicePoint], str]] = {
    "load": _load,
    "requests": lambda point: str(point.stats.requests),
    "first byte ms": lambda point: milliseconds(point.stats.first_byte, _TIMES),
    "playable ms": lambda point: milliseconds(point.stats.first_playable, _TIMES),
    "TTFA ms": lambda point: milliseconds(point.stats.ttfa, _TIMES),
    "underruns": _underruns,
    "audio s/s": lambda point: (
        "-" if point.load in ("live", "burst") else f"{point.stats.audio_seconds_per_second:.1f}"
    ),
    "errors": lambda point: errors(point.stats),
    "GPU": _gpus,
    "busiest process": _busiest,
    "generator": lambda point: f"{point.generator.cpu_share:.0%}",
}
TEXTS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text())


def stages_table(points: Sequence[ServicePoint]) -> str:
    """Returns the table of the stages' own metrics."""
    head = ["load", "first byte at client ms", "at gateway ms", "stage", "claim", "prefill", "step", "frames/step"]
    rows = []
    for point in points:
        for name, work in point.usage.stages.items():
            client = None if point.stats.first_byte is None else 1000 * point.stats.first_byte.mean
            first = (client, point.usage.gateway_first_byte_ms)
            keys = ("claim_wait_ms", "prefill_ms", "step_ms", "frames_per_step", "steps_per_second", "redis_write_ms")
            rows.append([_load(point), *map(_number, first), name, *(_number(work[key]) for key in keys)])
    return markdown([*head, "steps/s", "Redis write"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
