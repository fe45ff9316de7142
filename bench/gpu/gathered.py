"""Gathers all results of one GPU, the contents of `h200.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from gpu.plan import is_gap_free, is_nearly_gap_free
from gpu.results import ServicePoint, ServiceRun

PRIMARY = "1b7"
"""The service run that is compared with the targets by default."""
MODEL = "1.7B"


class Kernel(Struct, frozen=True):
    """One kernel of a talker frame or codec call."""

    name: str
    count: int
    ms: float


class EngineResult(Struct, frozen=True, kw_only=True):
    """The output of `gpu.talker` or `gpu.codec`, documented in the package."""

    benchmark: str
    model: str = MODEL
    gpu: str | None = None
    talker_frame_ms: dict[str, float] = {}
    codec_4frames_ms: dict[str, float] = {}
    floor_ms: dict[str, float] = {}
    first_frame_ms: dict[str, float] = {}
    codec_ms: dict[str, dict[str, float]] = {}
    launch_gap_ms: dict[str, float] = {}
    launch_gap_p99_ms: dict[str, float] = {}
    graph_ms: dict[str, dict[str, float]] = {}
    """By graph of a talker frame (`draw`, `advance`, and both, `frame`), or by frames of a codec call."""
    precision: dict[str, dict[str, dict[str, float]]] = {}
    """By model, variant and figure."""
    kernels: list[Kernel] = []
    """At batch size 32."""
    kernels_batch_1: list[Kernel] = []

    @property
    def graphs_alone_ms(self) -> dict[str, float]:
        """Returns the device time of a talker frame, or of a codec call of four frames."""
        return self.graph_ms.get("frame" if self.talker_frame_ms else "4", {})


class Service(Struct, frozen=True, kw_only=True):
    """The results of a service run."""

    system: str
    model: str
    topology: str
    complete: bool
    open_loop_ttfa_p50_ms: dict[str, float]
    open_loop_ttfa_p95_ms: dict[str, float]
    open_loop_first_playable_p95_ms: dict[str, float]
    open_loop_underrun_share: dict[str, float]
    closed_loop_audio_s_per_s: dict[str, float]
    closed_loop_ttfa_p95_ms: dict[str, float]
    live_streams: int | None
    """The maximum without any gap."""
    live_streams_under_1_percent: int | None
    """The maximum with gaps in less than 1 % of the utterances."""
    ttfa_c4_over_c1: float | None
    """Ratio of the medians."""


class Gathered(Struct, frozen=True, kw_only=True):
    """All results."""

    talker: EngineResult | None
    codec: EngineResult | None
    runs: dict[str, ServiceRun]
    """By file name without the GPU prefix and `_service`."""
    named: str = PRIMARY

    @property
    def primary(self) -> ServiceRun | None:
        """The run that is compared with the targets."""
        return self.runs.get(self.named)


def gather(directory: Path, prefix: str, named: str = PRIMARY) -> Gathered:
    """Reads the existing result files. Raises `OSError` or `msgspec.DecodeError` for an invalid one."""
    engines = {}
    for stage in ("talker", "codec"):
        file = directory / f"{prefix}_{stage}.json"
        engines[stage] = msgspec.json.decode(file.read_bytes(), type=EngineResult) if file.exists() else None
    runs = {
        file.stem.removeprefix(f"{prefix}_").removesuffix("_service"): msgspec.json.decode(
            file.read_bytes(), type=ServiceRun
        )
        for file in sorted(directory.glob(f"{prefix}_*_service.json"))
    }
    return Gathered(talker=engines["talker"], codec=engines["codec"], runs=runs, named=named)


def figures(run: ServiceRun) -> Service:
    """The results of a service run."""
    opened, closed = _of(run, "open"), _of(run, "closed")
    return Service(
        system=run.system,
        model=run.model,
        topology=run.topology,
        complete=run.complete,
        open_loop_ttfa_p50_ms={load: 1000 * p.stats.ttfa.p50 for load, p in opened.items() if p.stats.ttfa},
        open_loop_ttfa_p95_ms={load: 1000 * p.stats.ttfa.p95 for load, p in opened.items() if p.stats.ttfa},
        open_loop_first_playable_p95_ms={
            load: 1000 * p.stats.first_playable.p95 for load, p in opened.items() if p.stats.first_playable
        },
        open_loop_underrun_share={
            load: p.stats.underrun_share for load, p in opened.items() if p.stats.underrun_share is not None
        },
        closed_loop_audio_s_per_s={load: p.stats.audio_seconds_per_second for load, p in closed.items()},
        closed_loop_ttfa_p95_ms={load: 1000 * p.stats.ttfa.p95 for load, p in closed.items() if p.stats.ttfa},
        live_streams=_max_streams([p for p in run.points if p.load == "live" and is_gap_free(p.stats)]),
        live_streams_under_1_percent=_max_streams(
            [p for p in run.points if p.load == "live" and is_nearly_gap_free(p.stats)]
        ),
        ttfa_c4_over_c1=_ratio(closed),
    )


def _of(run: ServiceRun, load: str) -> dict[str, ServicePoint]:
    return {f"{point.amount:g}": point for point in run.points if point.load == load}


def _max_streams(points: Sequence[ServicePoint]) -> int | None:
    return max((int(point.amount) for point in points), default=None)


def _ratio(closed: dict[str, ServicePoint]) -> float | None:
    one, four = (closed[load].stats.ttfa if load in closed else None for load in ("1", "4"))
    return four.p50 / one.p50 if one and four else None
