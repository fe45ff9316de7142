"""Measures machine usage during a load point: GPUs (NVML), processes, and the stages' own metrics."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from syrinx_stages.contract import metrics as m

SAMPLE_SECONDS = 0.1


class GpuSample(Struct, frozen=True):
    """The state of one GPU."""

    utilization: float
    """Share of NVML's last sampling period in which a kernel ran."""
    memory_bytes: float
    """In use by all processes."""
    watts: float


class Gpus:
    """The GPUs of this machine, by NVML (`nvidia-ml-py`); none without the package or a driver."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # ImportError, or pynvml's own error without a driver.
            return
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def names(self) -> list[str]:
        """Returns NVIDIA's names of the GPUs."""
        return [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def short_name(self) -> str:
        """Returns the first GPU's name in short form, such as `h200`; `gpu` without one."""
        found = re.search(r"\b[A-Z]+\d+\w*", self.names()[0]) if self._handles else None
        return found[0].lower() if found else "gpu"

    def driver(self) -> str | None:
        """Returns the driver's version."""
        return str(self._nvml.nvmlSystemGetDriverVersion()) if self._handles else None

    def sample(self) -> list[GpuSample]:
        """Returns the current state of all GPUs."""
        return [
            GpuSample(
                self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                self._nvml.nvmlDeviceGetMemoryInfo(handle).used,
                self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            )
            for handle in self._handles
        ]


class GpuUsage(Struct, frozen=True):
    """The usage of one GPU during a load point, by NVML."""

    utilization: float
    """Mean share of the time in which a kernel ran."""
    memory_gib: float
    """Maximum in use by all processes."""
    power_watts: float
    """Mean."""


class StageWork(Struct, frozen=True):
    """The work of a talker or codec during a load point, by its own metrics. All times are means."""

    frames_per_second: float
    steps_per_second: float
    frames_per_step: float | None
    """For a talker, rows of a step; for a codec, frames of a call."""
    claim_wait_ms: float | None
    """From a request's arrival at its gateway to its claim."""
    prefill_ms: float | None
    step_ms: float | None
    redis_write_ms: float | None


class Usage(Struct, frozen=True):
    """The machine's usage during a load point."""

    gpus: list[GpuUsage]
    cpu_share: dict[str, float]
    """CPU use of each process, as a share of one core."""
    stages: dict[str, StageWork]
    gateway_first_byte_ms: float | None
    """Mean time from a request's arrival at its gateway until the gateway sends the first audio."""


class Monitor:
    """Measures the usage of given processes and stages."""

    def __init__(self, gpus: Gpus, pids: Mapping[str, int], admin_urls: Mapping[str, str]) -> None:
        self._gpus = gpus
        self._pids = pids
        self._admin_urls = admin_urls

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[list[Usage]]:
        """Measures while the context is active; yields a list that gets its only element on exit."""
        result: list[Usage] = []
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            before = await self._scrape_all(http)
            sampler = asyncio.create_task(_sample(self._gpus))
            cpu, begin = {name: _cpu_seconds(pid) for name, pid in self._pids.items()}, time.monotonic()
            try:
                yield result
            finally:
                wall = time.monotonic() - begin
                cpu_share = {name: (_cpu_seconds(pid) - cpu[name]) / wall for name, pid in self._pids.items()}
                sampler.cancel()
                gpus = await sampler
            after = await self._scrape_all(http)
            increases = {name: _increase(before[name], after[name]) for name in after}
            total: defaultdict[str, float] = defaultdict(float)
            for increase in increases.values():
                for name, value in increase.items():
                    total[name] += value
            result.append(
                Usage(
                    gpus=gpus,
                    cpu_share={name: round(share, 3) for name, share in cpu_share.items()},
                    stages={name: _work(sums, wall) for name, sums in increases.items() if m.FRAMES.name in sums},
                    gateway_first_byte_ms=_mean_ms(total, m.FIRST_BYTE.name),
                )
            )

    async def _scrape_all(self, http: httpx.AsyncClient) -> dict[str, Mapping[str, float]]:
        """Returns each stage process's metrics, summed over their labels."""
        stages = ((url, name.rpartition("-")[0]) for name, url in self._admin_urls.items())
        sums = await asyncio.gather(*(_scrape(http, url, stage) for url, stage in stages))
        return dict(zip(self._admin_urls, sums, strict=True))


async def _scrape(http: httpx.AsyncClient, url: str, stage: str) -> Mapping[str, float]:
    """Returns the metrics of one stage; a process of two stages exposes both at either port."""
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families((await http.get(f"{url}/metrics")).text):
        for sample in family.samples:
            if sample.labels.get("stage", stage) == stage:
                sums[sample.name] += sample.value
    return sums


def _increase(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _mean_ms(increase: Mapping[str, float], histogram: str) -> float | None:
    count = increase.get(f"{histogram}_count", 0.0)
    return round(1000 * increase[f"{histogram}_sum"] / count, 3) if count else None


def _work(increase: Mapping[str, float], wall: float) -> StageWork:
    steps, frames = increase.get(f"{m.STEP_SECONDS.name}_count", 0.0), increase[m.FRAMES.name]
    return StageWork(
        frames_per_second=round(frames / wall, 1),
        steps_per_second=round(steps / wall, 1),
        frames_per_step=round(frames / steps, 2) if steps else None,
        claim_wait_ms=_mean_ms(increase, m.CLAIM_WAIT.name),
        prefill_ms=_mean_ms(increase, m.PREFILL_SECONDS.name),
        step_ms=_mean_ms(increase, m.STEP_SECONDS.name),
        redis_write_ms=_mean_ms(increase, m.REDIS_SECONDS.name),
    )


async def _sample(gpus: Gpus) -> list[GpuUsage]:
    """Samples all GPUs until the task is cancelled; then returns their usage."""
    samples = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            samples.append(gpus.sample())
            await asyncio.sleep(SAMPLE_SECONDS)
    return [
        GpuUsage(
            utilization=round(sum(sample.utilization for sample in of_gpu) / len(of_gpu), 3),
            memory_gib=round(max(sample.memory_bytes for sample in of_gpu) / 2**30, 2),
            power_watts=round(sum(sample.watts for sample in of_gpu) / len(of_gpu)),
        )
        for of_gpu in zip(*samples, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
