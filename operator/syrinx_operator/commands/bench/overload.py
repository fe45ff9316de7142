"""`syrinx bench --overload`: throughput and latency at multiples of a pipeline's capacity, and the time to recover."""

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.commands.bench.load import Limit, LoadGenerator, Script, corpus
from syrinx_operator.commands.bench.report import ReportError, load, points_table
from syrinx_operator.commands.bench.stats import PREROLL_SECONDS, Outcome, PlaybackRecorder
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_operator.local.machine import describe, revision

MULTIPLES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Loads in multiples of the capacity."""
CLIENTS = (4, 8, 12, 16, 24)
"""Numbers of clients of the closed loops that measure the capacity."""
PARTS = 3
"""Times that a load and a closed loop take turns: the speed of a shared machine drifts within seconds."""
SEED_STEP = 10_000
"""Difference of the seeds of two parts: more than the requests of one."""
RAMP_SECONDS = 2.0
"""Excluded from throughput at the start of a load, while the first streams start."""
NORMAL = 2.0
"""The pipeline has recovered when the TTFA of a request is at most this multiple of that without load."""
RECOVERY_SECONDS = 30.0
"""Recovery is not waited for longer than this."""


class Load(Struct, frozen=True, kw_only=True):
    """The measurements of an open loop. None if no request has a value."""

    machine: str
    over_capacity: float
    """Requests per second, as a multiple of the capacity."""
    rate: float
    """Requests per second."""
    requests: int
    refused: int
    failed: int
    """Requests that ended in an error other than a refusal."""
    throughput_share: float
    """Served audio per second, as a share of that of the closed loops around its parts."""
    ttfa_p50_ms: float | None
    ttfa_p95_ms: float | None
    underruns: float | None
    """Share of the served streams whose playback stalled."""
    refusal_p50_ms: float | None
    refusal_p95_ms: float | None
    recovery_seconds: float | None
    """From the end of a part to the first request with a normal TTFA, the longest; None if there was none."""


class Part(Struct, frozen=True):
    """A part of a load."""

    outcomes: Sequence[Outcome]
    seconds: float
    peak: float
    """Seconds of audio served per second by the closed loops before and after it."""
    recovery_seconds: float | None


class Run(Struct, frozen=True, kw_only=True):
    """A measured machine."""

    machine: str
    created: str
    revision: str | None
    command: str
    ttfa_alone_ms: float
    """Median TTFA of requests that are sent one at a time."""
    peak_audio_seconds: float = 0.0
    """Seconds of audio served per second by the best closed loop: the mean of those before, between and after loads."""
    capacity: float = 0.0
    """Requests per second that the first of them completed."""
    clients: int = 0
    """Number of its clients."""


class OverloadReport(Struct, frozen=True):
    """The content of `overload.json`."""

    runs: list[Run]
    loads: list[Load]


def served(outcomes: Sequence[Outcome], begin: float, end: float) -> float:
    """Returns the seconds of audio that arrived from `begin` to `end` (monotonic), per second.

    Within a stream, audio is taken to arrive evenly between the first byte and the last one.
    """
    total = 0.0
    for outcome in outcomes:
        if (playback := outcome.playback) is None:
            continue
        first, last = outcome.due + playback.first_byte, outcome.due + playback.end
        if last > first:
            total += playback.duration * max(0.0, min(last, end) - max(first, begin)) / (last - first)
        elif begin <= first < end:
            total += playback.duration
    return total / (end - begin)


def completed(outcomes: Sequence[Outcome], begin: float, end: float) -> float:
    """Returns the requests completed from `begin` to `end` (monotonic), per second."""
    ends = (each.due + each.playback.end for each in outcomes if each.playback is not None)
    return sum(begin <= at < end for at in ends) / (end - begin)


def summarize(run: Run, multiple: float, parts: Sequence[Part]) -> Load:
    """Returns the measurements of an open loop of `multiple` times the capacity."""
    outcomes = [outcome for part in parts for outcome in part.outcomes]
    playbacks = [outcome.playback for outcome in outcomes if outcome.playback is not None]
    refusals = [1000 * outcome.seconds for outcome in outcomes if outcome.error == "http 503"]
    ttfas = [1000 * playback.ttfa for playback in playbacks if playback.ttfa is not None]
    recoveries = [part.recovery_seconds for part in parts if part.recovery_seconds is not None]
    return Load(
        machine=run.machine,
        over_capacity=multiple,
        rate=multiple * run.capacity,
        requests=len(outcomes),
        refused=len(refusals),
        failed=len(outcomes) - len(playbacks) - len(refusals),
        throughput_share=sum(map(_throughput, parts)) / sum(part.peak for part in parts),
        ttfa_p50_ms=_quantile(ttfas, 0.5),
        ttfa_p95_ms=_quantile(ttfas, 0.95),
        underruns=sum(playback.underruns > 0 for playback in playbacks) / len(playbacks) if playbacks else None,
        refusal_p50_ms=_quantile(refusals, 0.5),
        refusal_p95_ms=_quantile(refusals, 0.95),
        recovery_seconds=max(recoveries) if len(recoveries) == len(parts) else None,
    )


def _throughput(part: Part) -> float:
    begin = min((outcome.due for outcome in part.outcomes), default=0.0)
    return served(part.outcomes, begin + RAMP_SECONDS, begin + part.seconds)


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


async def measure(url: str, command: str, *, seconds: float, seed: int, done: Callable[[str], None]) -> OverloadReport:
    """Finds the capacity of the gateway at `url` with closed loops, then loads it with multiples of it.

    seconds: duration of each load. Passes a line to `done` after each. Raises `ReportError` if nothing is served.
    """
    machine = describe()
    async with SpeechClient(url) as client:
        script = Script(corpus(), await client.voices(), seed)
        async with LoadGenerator([url], script) as generator:
            await generator.closed(1, Limit(requests=3))
            alone = _ttfas((await generator.closed(1, Limit(requests=8))).outcomes)
            if not alone:
                raise ReportError(f"{url} serves no audio")
            run = Run(
                machine=f"{machine.cpu}, {machine.cores} cores",
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                revision=revision(),
                command=command,
                ttfa_alone_ms=1000 * float(np.median(alone)),
            )
            done(f"one at a time: TTFA {run.ttfa_alone_ms:.0f} ms")
            run, peak = await _with_capacity(run, generator, seconds, done)
        peaks, loads, seconds = [peak], list[Load](), seconds / PARTS
        for multiple in MULTIPLES:
            parts = []
            for _ in range(PARTS):
                script = msgspec.structs.replace(script, seed=script.seed + SEED_STEP)
                async with LoadGenerator([url], script) as generator:
                    open_loop = generator.open(multiple * run.capacity, Limit(seconds=seconds), awake=0.0)
                    load = asyncio.create_task(open_loop)
                    await asyncio.sleep(seconds)
                    recovery = await _recovery(client, script, NORMAL * run.ttfa_alone_ms / 1000)
                    outcomes = (await load).outcomes
                    peaks.append((await _closed(generator, run.clients, seconds, done))[0])
                parts.append(Part(outcomes, seconds, (peaks[-2] + peaks[-1]) / 2, recovery))
            loads.append(summarize(run, multiple, parts))
            done(line(loads[-1]))
    return OverloadReport([msgspec.structs.replace(run, peak_audio_seconds=float(np.mean(peaks)))], loads)


async def _closed(
    generator: LoadGenerator, clients: int, seconds: float, done: Callable[[str], None]
) -> tuple[float, float]:
    """Returns the audio seconds and the requests that a closed loop serves per second."""
    outcomes = (await generator.closed(clients, Limit(seconds=seconds))).outcomes
    begin = min(outcome.due for outcome in outcomes)
    window = begin + RAMP_SECONDS, begin + seconds
    audio, requests = served(outcomes, *window), completed(outcomes, *window)
    done(f"{clients} clients: {audio:.2f} audio s/s, {requests:.2f} requests/s")
    return audio, requests


async def _with_capacity(
    run: Run, generator: LoadGenerator, seconds: float, done: Callable[[str], None]
) -> tuple[Run, float]:
    """Returns the run with the closed loop that serves most audio, and its audio seconds per second.

    That loop is measured again, because the best of several noisy measurements is too high.
    """
    found = {clients: (await _closed(generator, clients, seconds / 2, done))[0] for clients in CLIENTS}
    best = max(found, key=lambda clients: found[clients])
    audio, requests = await _closed(generator, best, seconds, done)
    return msgspec.structs.replace(run, capacity=requests, clients=best), audio


def _ttfas(outcomes: Sequence[Outcome]) -> list[float]:
    return [each.playback.ttfa for each in outcomes if each.playback is not None and each.playback.ttfa is not None]


async def _recovery(client: SpeechClient, script: Script, limit: float) -> float | None:
    """Sends one request after another until one has a TTFA within `limit` seconds; returns when that one was sent.

    Stops each when its first audio has arrived.
    """
    begin, number = monotonic(), 0
    while (due := monotonic()) - begin < RECOVERY_SECONDS:
        ttfa = await _first_audio(client, script.body(number), due)
        if ttfa is not None and ttfa <= limit:
            return due - begin
        number += 1
        await asyncio.sleep(0.05)
    return None


async def _first_audio(client: SpeechClient, body: dict[str, object], due: float) -> float | None:
    """Returns the TTFA of a request that is stopped then; None if it is refused or silent."""
    recorder = PlaybackRecorder()
    with contextlib.suppress(SpeechError):
        async with client.speech(body) as pieces:
            async for piece in pieces:
                recorder.add(monotonic() - due, piece)
                playback = recorder.playback()
                if playback is not None and playback.ttfa is not None and playback.duration >= PREROLL_SECONDS:
                    return playback.ttfa
    return None


def merge(report: OverloadReport, file: Path) -> OverloadReport:
    """Returns a report with what `file`, if it exists, has of other machines. Raises `ReportError`."""
    known = load(file, OverloadReport) if file.exists() and file.stat().st_size else OverloadReport([], [])
    new = {run.machine for run in report.runs}
    return OverloadReport(
        [run for run in known.runs if run.machine not in new] + report.runs,
        [each for each in known.loads if each.machine not in new] + report.loads,
    )


def line(load: Load) -> str:
    """Returns a one-line summary of a load."""
    return ", ".join(f"{name} {cell(load)}" for name, cell in _COLUMNS.items())


def _pair(p50: float | None, p95: float | None) -> str:
    return "-" if p50 is None or p95 is None else f"{p50:.0f}/{p95:.0f}"


_COLUMNS: Mapping[str, Callable[[Load], str]] = {
    "load": lambda load: f"{load.over_capacity:g}x",
    "requests": lambda load: str(load.requests),
    "refused": lambda load: str(load.refused),
    "throughput": lambda load: f"{load.throughput_share:.0%}",
    "TTFA ms": lambda load: _pair(load.ttfa_p50_ms, load.ttfa_p95_ms),
    "underruns": lambda load: "-" if load.underruns is None else f"{load.underruns:.1%}",
    "refusal ms": lambda load: _pair(load.refusal_p50_ms, load.refusal_p95_ms),
    "recovery s": lambda load: "-" if load.recovery_seconds is None else f"{load.recovery_seconds:.1f}",
}


def describe_report(report: OverloadReport) -> str:
    """Returns a table for each machine."""
    parts = []
    for run in report.runs:
        loads = [each for each in report.loads if each.machine == run.machine]
        about = (
            f"{run.machine}: {run.peak_audio_seconds:.1f} audio s/s and {run.capacity:.2f} requests/s with "
            f"{run.clients} clients in a closed loop; TTFA of one request alone {run.ttfa_alone_ms:.0f} ms."
        )
        parts.append(f"{about}\n\n{points_table(loads, _COLUMNS)}")
    caption = (
        f"Open loop at multiples of the capacity, in {PARTS} parts, each between two closed loops. Throughput: served "
        "audio as a share of that of these closed loops. Times are p50/p95. TTFA and underruns: of the admitted "
        "requests. Recovery: from the end of a part to a request with a TTFA within "
        f"{NORMAL:g} times that of one alone; the longest of the parts."
    )
    return "\n\n".join([*parts, caption])
