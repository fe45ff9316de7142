"""Benchmarks the service end to end on this machine: `python -m gpu.service`; by default with random weights.

Measures open loops (Poisson), closed loops, and the maximum number of listeners without gaps. The result file is
written after every point, so that an interrupted run keeps its points.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import structs

from gpu import table
from gpu.load_generator import GeneratorError, LoadGenerator, LoadResult
from gpu.monitor import Gpus, Monitor
from gpu.options import parse, plan_of, setup_of
from gpu.peers import PEERS, PeerFailed, start_peer
from gpu.plan import LivePlan, Plan, Ramp, is_gap_free, search_max
from gpu.results import ServicePoint, ServiceRun, save
from gpu.system import System
from gpu.workload import Workload, length_seconds
from syrinx_operator.commands.bench.run import corpus
from syrinx_operator.commands.bench.stats import Loop, Point, summarize
from syrinx_operator.commands.client import SpeechError, connect, voices
from syrinx_operator.local.machine import describe, publishable_command, revision
from syrinx_operator.local.pipeline import LocalError
from syrinx_operator.local.supervisor import StageFailed
from syrinx_stages.connector.server import RedisServerError
from syrinx_stages.model.config import CheckpointError, read_model_config

EXPECTED = (
    StageFailed,
    LocalError,
    RedisServerError,
    GeneratorError,
    SpeechError,
    PeerFailed,
    CheckpointError,
    OSError,
)
"""Errors that are printed without a traceback."""
SETTLE_SECONDS = 0.5
"""Pause between two points."""
PEER_VOICES = ("ryan", "vivian")
"""Voices of every CustomVoice checkpoint, including those of `gpu.checkpoint`."""
SIZE_NAMES = {"0b6": "0.6B", "1b7": "1.7B"}


class Bench:
    """A run in progress."""

    def __init__(
        self, run: ServiceRun, file: Path, generator: LoadGenerator, gpus: Gpus, system: System | None
    ) -> None:
        self.run = run
        self._file = file
        self._generator = generator
        self._gpus = gpus
        self._system = system

    async def measure(self, plan: Plan) -> None:
        """Measures all points of a plan. Raises `GeneratorError` if all warm-up requests fail."""
        for clients, duration in plan.warm_up:
            outcomes = (await self._generator.closed(clients, duration)).outcomes
            if all(outcome.error for outcome in outcomes):
                raise GeneratorError(f"all warm-up requests failed: {outcomes[0].error if outcomes else 'no response'}")
        for load in plan.loads:
            result = (
                self._generator.open(load.amount, load.seconds)
                if load.loop == "open"
                else self._generator.closed(int(load.amount), load.seconds)
            )
            await self._point(load.loop, load.amount, load.seconds, plan.ramp(load), result)
        if plan.live is not None:
            await self._live(plan.live, plan.busy_ramp)

    async def _live(self, plan: LivePlan, ramp: Ramp) -> None:
        levels = search_max(plan.start, plan.limit)
        level = next(levels)
        with contextlib.suppress(StopIteration):
            while True:
                result = self._generator.live(level, plan.ramp_up, plan.hold)
                point = await self._point("live", level, plan.hold, ramp, result)
                level = levels.send(is_gap_free(point))

    async def _point(
        self,
        loop: Literal["open", "closed", "live"],
        amount: float,
        seconds: float,
        ramp: Ramp,
        load: Awaitable[LoadResult],
    ) -> Point:
        system = self._system
        if system is not None:
            await system.set_ramp(ramp)
        await asyncio.sleep(SETTLE_SECONDS)
        monitor = Monitor(self._gpus, system.pids if system else {}, system.admin_urls if system else {})
        async with monitor.running() as usage:
            result = await load
        point = ServicePoint(
            load=loop,
            amount=amount,
            seconds=seconds,
            chunk_ramp=ramp if system is not None else (),
            stats=summarize(Loop.OPEN if loop == "open" else Loop.CLOSED, amount, result.outcomes, result.wall_seconds),
            usage=usage[0],
            generator=result.generator,
        )
        self.run.points.append(point)
        self.save()
        print(table.line(point), file=sys.stderr, flush=True)
        return point.stats

    def save(self, *, complete: bool = False, failure: str = "") -> None:
        """Writes the result file. Raises `OSError`."""
        deaths = [] if self._system is None else self._system.deaths
        self.run = structs.replace(self.run, complete=complete, failure=failure, deaths=deaths)
        save(self.run, self._file)


async def measure(args: argparse.Namespace, command: str) -> list[ServiceRun]:
    """Measures Syrinx, then every installed peer. Raises one of `EXPECTED`; measured points are written before."""
    args.out.mkdir(parents=True, exist_ok=True)
    gpus = Gpus()
    with contextlib.ExitStack() as stack:
        model = _model(args, stack)
        run = _new_run(args, model, command, gpus)
        setup = setup_of(args, model)
        run = structs.replace(run, setup=structs.replace(setup, model=model and Path(model).name))
        started = time.monotonic()
        async with System(setup) as system:
            print(f"the service is ready after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
            runs = [await _measure_one(args, run, gpus, system.urls, system)]
        for peer in PEERS if model and args.device == "cuda" else ():
            if peer.installed:
                async with start_peer(peer, model or "") as url:
                    peer_run = structs.replace(run, system=peer.name, topology="its own", setup=None, points=[])
                    runs.append(await _measure_one(args, peer_run, gpus, [url], None))
    return runs


async def _measure_one(
    args: argparse.Namespace, run: ServiceRun, gpus: Gpus, urls: Sequence[str], system: System | None
) -> ServiceRun:
    voice_names = args.voices or (await _voices(urls[0]) if system else PEER_VOICES)
    workload = Workload(corpus(), voice_names, args.seed, run.random_weights)
    name = (args.name or _name(args, gpus)) + (f"_{run.system}" if system is None else "")
    async with LoadGenerator(args.generators, urls, workload) as generator:
        bench = Bench(run, args.out / f"{name}_service.json", generator, gpus, system)
        try:
            await bench.measure(plan_of(args))
        except Exception as error:
            bench.save(failure=f"{type(error).__name__}: {error}")
            raise
        bench.save(complete=True)
        return bench.run


def _model(args: argparse.Namespace, stack: contextlib.ExitStack) -> str | None:
    """Returns the checkpoint directory; None for the bundled voice. By default generates random weights."""
    if args.bundled:
        return None
    if args.model or args.random_model:
        return str(args.model or args.random_model)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-bench-model-"))) / args.size
    # In a process of its own, which frees the GPU's memory.
    parts = ("--configs",) if args.paced else ()
    subprocess.run([sys.executable, "-m", "gpu.checkpoint", str(directory), "--size", args.size, *parts], check=True)
    return str(directory)


async def _voices(url: str) -> Sequence[str]:
    async with connect(url) as client:
        return await voices(client)


def _new_run(args: argparse.Namespace, model: str | None, command: str, gpus: Gpus) -> ServiceRun:
    """Returns the result without any points."""
    random_weights = model is not None and not args.model
    lengths = [length_seconds((number + 0.5) / 1000) for number in range(1000)]
    return ServiceRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        driver=gpus.driver(),
        system="syrinx",
        topology=_topology(args),
        model=_model_name(args, model),
        random_weights=random_weights,
        setup=None,
        seed=args.seed,
        utterance_seconds=round(statistics.fmean(lengths), 3) if random_weights else None,
    )


def _model_name(args: argparse.Namespace, model: str | None) -> str:
    """Returns the model's name in the report."""
    if model is None:
        return "bundled voice"
    size = read_model_config(Path(model)).tts_model_size
    return f"{SIZE_NAMES.get(size, size)}, {Path(args.model).name if args.model else 'random weights'}"


def _topology(args: argparse.Namespace) -> str:
    placement = _placement(args)
    return f"{placement}, the talker on vLLM" if args.engine == "vllm" else placement


def _placement(args: argparse.Namespace) -> str:
    if args.paced:
        return "engines with simulated timing"
    if args.device == "cpu":
        return "talker and codec on the CPU" + (", in one process" if args.colocated else "")
    if args.colocated:
        return "talker and codec in one process on one GPU"
    if args.two_gpus:
        return "talker and codec on one GPU each"
    return "talker and codec as processes on one GPU" + (" under MPS" if args.mps else "")


def _name(args: argparse.Namespace, gpus: Gpus) -> str:
    """Returns the name of the result, such as `h200_1b7_mps`."""
    device = gpus.short_name() if args.device == "cuda" else "cpu"
    shape = "bundled" if args.bundled else Path(args.model).name if args.model else args.size
    variant = "".join(f"_{flag}" for flag in ("colocated", "two_gpus", "mps", "paced") if getattr(args, flag))
    return f"{device}_{shape}{'_vllm' if args.engine == 'vllm' else ''}{variant}"


def _publishable(arguments: Sequence[str]) -> str:
    """Returns the command line without absolute paths and hosts."""
    return "python -m gpu.service " + publishable_command(arguments).removeprefix("syrinx ")


def main() -> int:
    """Runs the benchmark and prints its tables; returns the exit status."""
    arguments = sys.argv[1:]
    args = parse(arguments)
    try:
        runs = asyncio.run(measure(args, _publishable(arguments)))
    except EXPECTED as error:
        print(f"gpu.service: {error}", file=sys.stderr)
        return 1
    for run in runs:
        print(f"{run.system}, {run.model}, {run.topology}; {run.gpu or run.machine.cpu}\n")
        print(table.of_points(run.points), end="\n\n")
        print(table.of_stages(run.points), end="\n\n")
    print(table.CAPTION, table.STAGES_CAPTION, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
