"""Processor time of the host for steps, rows and requests, without a GPU: `python -m gpu.host [engine] [stages]`.

`engine` runs the GPU talker's engine on a CPU with graphs that do nothing. `stages` runs a talker and a codec process
with the simulated engines of `gpu.paced`, and this process in place of gateways. Compare two revisions by alternating
runs in one session: the times are of this machine.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import httpx
import torch

from gpu.monitor import cpu_seconds, scrape
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer, free_port
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import STREAM_CREATED, Keys, StreamKind
from syrinx_stages.contract.messages import End, Sampling, SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.cuda.prefill import prefill_shapes
from syrinx_stages.talker.prompt import Prepared

ROWS = (32, 64, 128)
STEPS, REPEATS = 20, 9
"""Engine steps that are timed at once, and how often."""
PREFILL_ROWS = 32
FRAMES = 300
"""Of the requests whose steps are measured."""
BURST, BURSTS, BURST_FRAMES = 128, 6, 8
TEXT = "The quick brown fox jumps over the lazy dog and runs away, deep into the dark green woods."
READY_SECONDS = 60.0
_KEYS = Keys("host", "1")
_LIMITS = GatewaySettings(max_queue=10_000, max_queue_seconds=600)


def request(name: str, frames: int) -> SpeechRequest:
    """Returns a request of this many frames; the engine never samples its end."""
    return SpeechRequest(
        id=name,
        accepted_at=time.time(),
        text=TEXT,
        task_type=TaskType.CUSTOM_VOICE,
        voice="us_f",
        non_streaming_text=False,
        max_frames=frames,
        sampling=Sampling(min_frames=frames),
    )


# The engine --------------------------------------------------------------------------------------------------------


def _per_call(function: Callable[[], object], count: int) -> str:
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        for _ in range(count):
            function()
        times.append(1e6 * (time.thread_time() - started) / count)
    return f"{statistics.median(times):7.1f} us ({min(times):.1f} to {max(times):.1f})"


class _Times:
    """Times of an engine's calls in microseconds."""

    def __init__(self) -> None:
        self.admit: list[float] = []
        self.launch: list[float] = []
        self.read: list[float] = []

    def measure(self, engine: CudaTalkerEngine, prepared: Sequence[Prepared]) -> None:
        """Prefills requests anew, and runs a few steps with all of them."""
        ids = [each.request.id for each in prepared]
        started = time.thread_time()
        for first in range(0, len(prepared), PREFILL_ROWS):
            engine.admit(prepared[first : first + PREFILL_ROWS])
        self.admit.append(1e6 * (time.thread_time() - started) / len(prepared))
        for _ in range(STEPS):
            started = time.thread_time()
            step = engine.launch(ids)
            launched = time.thread_time()
            engine.read(step)
            self.launch.append(1e6 * (launched - started))
            self.read.append(1e6 * (time.thread_time() - launched))
        for request_id in ids:
            engine.release(request_id)


def measure_engine() -> None:
    """Prints the time of the calls of the GPU talker's engine, without what the device does."""
    torch.set_num_threads(1)
    engine = CudaTalkerEngine(Checkpoint("bundled"), max(ROWS))
    runner = engine.runner

    def nothing() -> None:
        pass

    runner.frames = {rows: (runner.new_frame(rows), nothing, nothing) for rows in runner.batch_sizes}
    runner.prefills = {shape: (runner.new_prefill(*shape), nothing) for shape in prefill_shapes()}
    print(f"prepare          {_per_call(lambda: engine.prepare(request('one', 200), b'', None), 50)} a request")
    for rows in ROWS:
        prepared = [engine.prepare(request(f"request-{row:030d}", 10_000), b"", None) for row in range(rows)]
        times = _Times()
        for _ in range(REPEATS):
            times.measure(engine, prepared)
        for name, each, unit in (
            ("admit", times.admit, "request"), ("launch", times.launch, "step"), ("read", times.read, "step"),
        ):  # fmt: skip
            low, *_, high = statistics.quantiles(each, n=20)
            median = statistics.median(each)
            print(f"{name:7}{rows:4} rows {median:8.1f} us ({low:.1f} to {high:.1f}) a {unit}", flush=True)


# The stages --------------------------------------------------------------------------------------------------------


class Stages:
    """A talker and a codec process, and a connector in place of their gateways."""

    def __init__(
        self, connector: RedisConnector, processes: Mapping[str, asyncio.subprocess.Process], ports: Mapping[str, int]
    ) -> None:
        self._connector, self._processes, self._ports = connector, processes, ports
        self._reader = connector.reader()
        self._number = 0

    async def run(self, count: int, frames: int) -> list[float]:
        """Submits requests at once and reads their audio to the end. Returns the seconds to the first audio of each."""
        names = {f"{self._number + index:032d}" for index in range(count)}
        self._number += count
        started, first = time.monotonic(), dict[str, float]()
        submitted = [self._connector.submit(request(name, frames), _LIMITS) for name in names]
        tickets = {ticket.request_id: ticket for ticket in await asyncio.gather(*submitted)}
        for name in names:
            self._reader.subscribe(name, StreamKind.AUDIO, STREAM_CREATED)
        running = set(names)
        while running:
            for event in await self._reader.read():
                if isinstance(event, StreamEntry):
                    first.setdefault(event.request_id, time.monotonic() - started)
                    if isinstance(event.entry, End):
                        running.discard(event.request_id)
                        self._reader.unsubscribe(event.request_id, StreamKind.AUDIO)
        await asyncio.gather(*map(self._connector.release, tickets.values()))
        return sorted(first.values())

    async def counts(self) -> dict[str, tuple[float, ...]]:
        """Returns of each stage: processor seconds, steps, their rows or frames, and seconds of waits for claims."""
        found: dict[str, tuple[float, ...]] = {}
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            for stage, port in self._ports.items():
                sums = await scrape(http, f"{stage}-0", f"http://127.0.0.1:{port}")
                numbers = (f"{m.STEP_SECONDS.name}_count", m.FRAMES.name, f"{m.CLAIM_WAIT.name}_sum")
                found[stage] = cpu_seconds(self._processes[stage].pid), *(sums.get(name, 0.0) for name in numbers)
        return found


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[Stages]:
    with tempfile.TemporaryDirectory() as directory, RedisServer() as redis, contextlib.ExitStack() as stack:
        environment = os.environ | {"REDIS_URL": redis.url, "REDIS_PASSWORD": redis.password, "LOG_LEVEL": "warning"}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        processes: dict[str, asyncio.subprocess.Process] = {}
        ports: dict[str, int] = {}
        for stage in ("talker", "codec"):
            path, ports[stage] = Path(directory) / f"{stage}.json", free_port()
            shapes = [(rows, frames) for rows in (1, 2, 4, 8, 16, 32) for frames in (2, 4, 8, 12)]
            config = {
                **{"pipeline": "host", "generation": "1", "replica": f"{stage}-0", "model": "bundled"},
                **{"admin_port": ports[stage], "max_resident": 1024, "drain_seconds": 0},
                "talker": {"max_num_seqs": 256, "lead_limit_seconds": 600},
                "codec": {"max_num_seqs": 32, "chunk_ramp": [2, 4, 8, 12], "capture_pairs": shapes},
            }
            path.write_text(json.dumps(config))
            command = [sys.executable, "-m", "gpu.paced", stage, str(path)]
            processes[stage] = await asyncio.create_subprocess_exec(*command, env=environment, stdout=DEVNULL)
            stack.callback(_kill, processes[stage])
        await _until_ready(processes.values(), ports.values())
        connector = RedisConnector(redis.url, _KEYS, password=redis.password)
        try:
            yield Stages(connector, processes, ports)
        finally:
            await connector.close()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _until_ready(processes: Iterable[asyncio.subprocess.Process], ports: Iterable[int]) -> None:
    async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient(trust_env=False) as http:
        for process, port in zip(processes, ports, strict=True):
            while process.returncode is None:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(f"http://127.0.0.1:{port}/readyz")).is_success:
                        break
                await asyncio.sleep(0.1)
            else:
                raise RuntimeError(f"a stage exited with status {process.returncode}")


async def measure_stages() -> None:
    """Prints the processor time of talker and codec for steps with many rows, and for requests of a burst."""
    async with _running() as stages:
        await stages.run(8, 20)
        for rows in ROWS:
            before = await stages.counts()
            await stages.run(rows, FRAMES)
            after = await stages.counts()
            for stage in before:
                cpu, steps, frames, _ = (new - old for new, old in zip(after[stage], before[stage], strict=True))
                per_frame = f"{1e6 * cpu / frames:6.1f} us a frame"
                print(
                    f"{stage:7}{rows:4} rows {1e3 * cpu / steps:6.2f} ms a step of {frames / steps:5.1f}, {per_frame}"
                )
        for _ in range(BURSTS):
            before = await stages.counts()
            first = await stages.run(BURST, BURST_FRAMES)
            after = await stages.counts()
            for stage in before:
                cpu, steps, frames, waited = (new - old for new, old in zip(after[stage], before[stage], strict=True))
                waits = f"claimed after {1e3 * waited / BURST:6.1f} ms, {steps:.0f} steps"
                print(f"{stage:7} burst of {BURST}: {1e3 * cpu / BURST:6.2f} ms a request, {waits}")
            print(f"first audio: p50 {1e3 * first[len(first) // 2]:.0f} ms, p99 {1e3 * first[-2]:.0f} ms", flush=True)


def main() -> None:
    """Measures what the command line names, or everything."""
    parts = sys.argv[1:] or ["engine", "stages"]
    if "engine" in parts:
        measure_engine()
    if "stages" in parts:
        asyncio.run(measure_stages())


if __name__ == "__main__":
    main()
