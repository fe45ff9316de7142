"""What the machine did meanwhile: the GPUs, every process, and what the stages count themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from gpu.nvml import Gpus
from syrinx_stages.contract import metrics as m

SAMPLE_SECONDS = 0.1


class Gpu(Struct, frozen=True):
    """One GPU over a point, by NVML."""

    utilisation: float
    """Share of the time in which a kernel ran, mean."""
    memory_gib: float
    """In use at most, by everybody."""
    power_watts: float
    """Mean."""


class StageWork(Struct, frozen=True):
    """What a talker or a codec did over a point, by its own metrics."""

    frames_per_second: float
    steps_per_second: float
    frames_per_step: float | None
    """At a talker, rows of a step; at a codec, frames of a call."""
    claim_wait_ms: float | None
    """From a request's arrival at its gateway to its claim. All times are means."""
    prefill_ms: float | None
    step_ms: float | None
    redis_write_ms: float | None


class Watched(Struct, frozen=True):
    """All of it."""

    gpus: list[Gpu]
    cpu_share: dict[str, float]
    """Of one core, by process."""
    stages: dict[str, StageWork]
    gateway_first_byte_ms: float | None
    """From a request's arrival at its gateway to its first audio's leaving it, mean."""


class Watch:
    """Watches what runs between entering and leaving; then `seen` says what it was."""

    def __init__(self, gpus: Gpus, pids: Mapping[str, int], admin_urls: Mapping[str, str]) -> None:
        self._gpus = gpus
        self._pids = pids
        self._admin_urls = admin_urls

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[list[Watched]]:
        """The list gets its one element on leaving."""
        seen: list[Watched] = []
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            counted = await self._count(http)
            sampler = asyncio.create_task(_sample(self._gpus))
            cpu, begin = {name: _cpu_seconds(pid) for name, pid in self._pids.items()}, time.monotonic()
            try:
                yield seen
            finally:
                wall = time.monotonic() - begin
                busy = {name: (_cpu_seconds(pid) - cpu[name]) / wall for name, pid in self._pids.items()}
                sampler.cancel()
                gpus = await sampler
            after = await self._count(http)
            grown = {name: _grown(counted[name], after[name]) for name in after}
            seen.append(
                Watched(
                    gpus=gpus,
                    cpu_share={name: round(share, 3) for name, share in busy.items()},
                    stages={name: _work(sums, wall) for name, sums in grown.items() if m.FRAMES.name in sums},
                    gateway_first_byte_ms=_mean_ms(_together(grown.values()), m.FIRST_BYTE.name),
                )
            )

    async def _count(self, http: httpx.AsyncClient) -> dict[str, dict[str, float]]:
        """Sums over the labels of every metric, by stage process."""
        stages = ((url, name.rpartition("-")[0]) for name, url in self._admin_urls.items())
        answers = await asyncio.gather(*(_scrape(http, url, stage) for url, stage in stages))
        return dict(zip(self._admin_urls, answers, strict=True))


async def _scrape(http: httpx.AsyncClient, url: str, stage: str) -> dict[str, float]:
    """A process of two stages shows both at either port."""
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families((await http.get(f"{url}/metrics")).text):
        for sample in family.samples:
            if sample.labels.get("stage", stage) == stage:
                sums[sample.name] += sample.value
    return sums


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _together(grown: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for part in grown:
        for name, value in part.items():
            sums[name] += value
    return sums


def _mean_ms(grown: Mapping[str, float], histogram: str) -> float | None:
    count = grown.get(f"{histogram}_count", 0.0)
    return round(1000 * grown[f"{histogram}_sum"] / count, 3) if count else None


def _work(grown: Mapping[str, float], wall: float) -> StageWork:
    steps, frames = grown.get(f"{m.STEP_SECONDS.name}_count", 0.0), grown[m.FRAMES.name]
    return StageWork(
        frames_per_second=round(frames / wall, 1),
        steps_per_second=round(steps / wall, 1),
        frames_per_step=round(frames / steps, 2) if steps else None,
        claim_wait_ms=_mean_ms(grown, m.CLAIM_WAIT.name),
        prefill_ms=_mean_ms(grown, m.PREFILL_SECONDS.name),
        step_ms=_mean_ms(grown, m.STEP_SECONDS.name),
        redis_write_ms=_mean_ms(grown, m.REDIS_SECONDS.name),
    )


async def _sample(gpus: Gpus) -> list[Gpu]:
    """Until it is cancelled."""
    samples = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            samples.append(gpus.sample())
            await asyncio.sleep(SAMPLE_SECONDS)
    return [
        Gpu(
            utilisation=round(sum(sample.utilisation for sample in of_one) / len(of_one), 3),
            memory_gib=round(max(sample.memory_bytes for sample in of_one) / 2**30, 2),
            power_watts=round(sum(sample.watts for sample in of_one) / len(of_one)),
        )
        for of_one in zip(*samples, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """That a process has used so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
