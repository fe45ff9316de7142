"""Measures machine usage during a load point: GPUs (NVML), processes, and the stages' own metrics."""

import asyncio
import contextlib
import importlib
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from syrinx_operator.local.gpus import visible_gpus
from syrinx_stages.contract import metrics as m

SAMPLE_SECONDS = 0.1


class GpuUsage(Struct, frozen=True):
    """The usage of one GPU during a load point, by NVML."""

    utilization: float
    """Mean share of the time in which a kernel ran."""
    memory_gib: float
    """Maximum in use by all processes."""


StageWork = dict[str, float | None]
"""The work of a talker or codec during a load point, by its own metrics: frames and steps per second, frames per step
(for a talker, its rows), and means of `TIMES`. None: not measured."""
TIMES = {
    "claim_wait_ms": m.CLAIM_WAIT,
    "prefill_ms": m.PREFILL_SECONDS,
    "step_ms": m.STEP_SECONDS,
    "redis_write_ms": m.REDIS_SECONDS,
}
"""The claim's wait starts when the request arrives at its gateway."""


class Usage(Struct, frozen=True):
    """The machine's usage during a load point."""

    gpus: list[GpuUsage]
    cpu_share: dict[str, float]
    """CPU use of each process, as a share of one core."""
    stages: dict[str, StageWork]
    gateway_first_byte_ms: float | None
    """Mean time from a request's arrival at its gateway until the gateway sends the first audio."""


class Gpus:
    """The GPUs that CUDA shows, by NVML (`nvidia-ml-py`); none without the package or a driver."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # ImportError, or pynvml's own error without a driver.
            return
        self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in visible_gpus()]

    def names(self) -> list[str]:
        """Returns NVIDIA's names of the GPUs."""
        return [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def short_name(self) -> str:
        """Returns the first GPU's name in short form, such as `h200`; `gpu` without one."""
        found = re.search(r"\b[A-Z]+\d+\w*", "".join(self.names()[:1]))
        return found[0].lower() if found else "gpu"

    def driver(self) -> str | None:
        """Returns the driver's version."""
        return str(self._nvml.nvmlSystemGetDriverVersion()) if self._handles else None

    async def sample_until_cancelled(self) -> list[GpuUsage]:
        """Samples all GPUs until the task is cancelled; then returns their usage."""
        samples: list[list[tuple[float, float]]] = [[] for _ in self._handles]
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                for handle, of_gpu in zip(self._handles, samples, strict=True):
                    utilization = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                    memory = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30
                    of_gpu.append((utilization, memory))
                await asyncio.sleep(SAMPLE_SECONDS)
        columns = [list(zip(*of_gpu, strict=True)) for of_gpu in samples]
        return [GpuUsage(round(fmean(utilization), 3), round(max(memory), 2)) for utilization, memory in columns]


@contextlib.asynccontextmanager
async def monitor(gpus: Gpus, pids: Mapping[str, int], admin_urls: Mapping[str, str]) -> AsyncIterator[list[Usage]]:
    """Measures the usage of processes and stages while the context is active.

    Yields a list that gets its only element on exit.
    """
    result: list[Usage] = []
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
        before = [await scrape(http, name, url) for name, url in admin_urls.items()]
        sampler = asyncio.create_task(gpus.sample_until_cancelled())
        cpu, begin = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
        try:
            yield result
        finally:
            wall = time.monotonic() - begin
            cpu_share = {name: round((cpu_seconds(pid) - cpu[name]) / wall, 3) for name, pid in pids.items()}
            sampler.cancel()
            usages = await sampler
        after = [await scrape(http, name, url) for name, url in admin_urls.items()]
    increases = [
        {metric: value - earlier.get(metric, 0.0) for metric, value in later.items()}
        for earlier, later in zip(before, after, strict=True)
    ]
    total = {metric: sum(each.get(metric, 0.0) for each in increases) for metric in set().union(*increases)}
    stages = zip(admin_urls, increases, strict=True)
    work = {name: _work(increase, wall) for name, increase in stages if m.FRAMES.name in increase}
    result.append(Usage(usages, cpu_share, work, _mean_ms(total, m.FIRST_BYTE)))


async def scrape(http: httpx.AsyncClient, name: str, url: str) -> Mapping[str, float]:
    """Returns a stage's metrics, summed over their labels; a process of two stages exposes both at either port."""
    stage = name.rpartition("-")[0]
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families((await http.get(f"{url}/metrics")).text):
        for sample in family.samples:
            if sample.labels.get("stage", stage) == stage:
                sums[sample.name] += sample.value
    return sums


def _mean_ms(increase: Mapping[str, float], histogram: m.Metric) -> float | None:
    count = increase.get(f"{histogram.name}_count")
    return round(1000 * increase[f"{histogram.name}_sum"] / count, 3) if count else None


def _work(increase: Mapping[str, float], wall: float) -> StageWork:
    steps, frames = increase.get(f"{m.STEP_SECONDS.name}_count", 0.0), increase[m.FRAMES.name]
    rates = {"frames_per_second": round(frames / wall, 1), "steps_per_second": round(steps / wall, 1)}
    means = {name: _mean_ms(increase, metric) for name, metric in TIMES.items()}
    return {**rates, "frames_per_step": round(frames / steps, 2) if steps else None, **means}


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process so far; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
