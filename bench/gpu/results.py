"""The result files of the GPU benchmarks, and their tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import yaml
from msgspec import Struct

from gpu.monitor import Usage
from gpu.worth import WorthRun
from syrinx_operator.commands.bench.load import GeneratorStats
from syrinx_operator.commands.bench.report import errors, markdown, milliseconds
from syrinx_operator.commands.bench.stats import Loop, Point
from syrinx_operator.local.machine import Machine

PRIMARY = "1b7_defaults"
"""The service run that is compared with the targets."""


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
    """The result file of `gpu.service`; points are appended as they are measured."""

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


class Spoken(Struct, frozen=True, kw_only=True):
    """What was understood of the sentences that were spoken at one load."""

    concurrency: int
    requests: int
    incomplete: int
    """Responses that failed or ended early; refusals are repeated, as clients do."""
    identified: float
    """Share of all requests whose sentence the recognizer identified."""
    killed: Sequence[str] = ()
    """Processes that were killed meanwhile."""

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.concurrency} with kills" if self.killed else f"{self.concurrency}"


class SpeechRun(Struct, frozen=True, kw_only=True):
    """The result file of `gpu.speech`."""

    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    loads: Sequence[Spoken]


class Kill(Struct, frozen=True):
    """What the listeners heard of a kill. Times in seconds."""

    killed: str
    utterances: int
    refused: int
    """Utterances that got 503."""
    failed: int
    """Other utterances without their whole audio."""
    longest_stall: float
    """Of an utterance that had begun to play."""
    longest_wait: float
    """For the first audio."""
    away: float
    """Until the process was ready again."""

    def __str__(self) -> str:
        return (
            f"{self.killed} killed: longest stall {self.longest_stall:.2f} s, longest wait {self.longest_wait:.2f} s; "
            f"of {self.utterances} utterances {self.refused} refused, {self.failed} failed; "
            f"ready again after {self.away:.1f} s"
        )


class KillsRun(Struct, frozen=True, kw_only=True):
    """The result file of `gpu.kills`."""

    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    listeners: int
    kills: Sequence[Kill]


class EngineResult(Struct, frozen=True, kw_only=True):
    """The result file of `gpu.talker` or `gpu.codec`. Times are milliseconds by batch size; empty: not measured."""

    benchmark: str = ""
    model: str = "1.7B"
    gpu: str | None = None
    talker_frame_ms: dict[str, float] = {}
    """A frame of every row, between launches in a steady loop, median."""
    codec_4frames_ms: dict[str, float] = {}
    """Four new frames of every row, from codes to PCM, both in host memory."""
    floor_ms: dict[str, float] = {}
    """Lower bound: arithmetic or memory, whichever is slower."""
    first_frame_ms: dict[str, float] = {}
    """From admission to the first codes, with a prompt of 22 tokens."""
    codec_ms: dict[str, dict[str, float]] = {}
    """Calls of other numbers of frames."""
    padding: float | None = None
    """Part of the time of a padded codec call that a captured shape of its own would save."""
    launch_gap_ms: dict[str, float] = {}
    """Device idle between two frames in the steady loop, median."""
    launch_gap_p99_ms: dict[str, float] = {}
    graph_ms: dict[str, dict[str, float]] = {}
    """Device time alone by graph of a talker frame (`draw`, `advance`, and both, `frame`), or by frames of a call."""

    @property
    def measured_ms(self) -> dict[str, float]:
        """The time of a talker frame, or of a codec call of four frames."""
        return self.talker_frame_ms or self.codec_4frames_ms

    @property
    def graphs_alone_ms(self) -> dict[str, float]:
        """The device time of a talker frame, or of a codec call of four frames."""
        return self.graph_ms.get("frame" if self.talker_frame_ms else "4", {})


class Gathered(Struct, frozen=True, kw_only=True):
    """All results."""

    talker: EngineResult = EngineResult()
    codec: EngineResult = EngineResult()
    speech: Sequence[Spoken] = ()
    """How well the bundled voice was understood, by load."""
    kills: Sequence[Kill] = ()
    worth: WorthRun | None = None
    runs: dict[str, ServiceRun] = {}
    """By file name without the GPU prefix and `_service`."""

    @property
    def primary(self) -> ServiceRun | None:
        """The run that is compared with the targets."""
        return self.runs.get(PRIMARY)


def gather(directory: Path, prefix: str) -> Gathered:
    """Reads the existing result files. Raises `OSError` or `msgspec.DecodeError` for an invalid one."""
    files = {stage: directory / f"{prefix}_{stage}.json" for stage in ("talker", "codec")}
    engines = {
        stage: msgspec.json.decode(file.read_bytes(), type=EngineResult)
        for stage, file in files.items()
        if file.exists()
    }
    spoken = directory / f"{prefix}_speech.json"
    speech = msgspec.json.decode(spoken.read_bytes(), type=SpeechRun).loads if spoken.exists() else ()
    killed = directory / f"{prefix}_kills.json"
    kills = msgspec.json.decode(killed.read_bytes(), type=KillsRun).kills if killed.exists() else ()
    switched = directory / f"{prefix}_worth.json"
    worth = msgspec.json.decode(switched.read_bytes(), type=WorthRun) if switched.exists() else None
    services = sorted(directory.glob(f"{prefix}_*_service.json"))
    runs = {file.stem.removeprefix(f"{prefix}_").removesuffix("_service"): load(file) for file in services}
    return Gathered(**engines, speech=speech, kills=kills, worth=worth, runs=runs)


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


def speech_table(loads: Sequence[Spoken]) -> str:
    """Returns the table of the loads."""
    rows = [
        [
            str(each.concurrency),
            ", ".join(each.killed) or "-",
            str(each.requests),
            str(each.incomplete),
            f"{each.identified:.3f}",
        ]
        for each in loads
    ]
    return markdown(["clients", "killed", "requests", "incomplete", "identified"], rows)
