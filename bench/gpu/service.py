"""The service end to end on this machine: `python -m gpu.service`; without a model, real shapes with random weights.

Open loop (Poisson), closed loop, and the largest number of listeners that hear no gap. The result is written after
every point, so that what was measured survives whatever ends the run.
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

from gpu import live, requests, table
from gpu.generators import GeneratorError, Generators, Heard
from gpu.nvml import Gpus
from gpu.options import parse, plan_of, setup_of
from gpu.peers import PEERS, PeerFailed, started
from gpu.plan import LivePlan, Plan, Ramp
from gpu.requests import Requests
from gpu.results import ServicePoint, ServiceRun, save
from gpu.system import System
from gpu.watch import Watch
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
"""Failures whose message is all that a person needs."""
SETTLE_SECONDS = 0.5
"""Between two points."""
PEER_VOICES = ("ryan", "vivian")
"""Of every CustomVoice checkpoint, and of those that `gpu.checkpoint` writes."""
SIZE_NAMES = {"0b6": "0.6B", "1b7": "1.7B"}


class Bench:
    """A run in progress: each point is measured, told and kept."""

    def __init__(self, run: ServiceRun, file: Path, generators: Generators, gpus: Gpus, system: System | None) -> None:
        self.run = run
        self._file = file
        self._generators = generators
        self._gpus = gpus
        self._system = system

    async def measure(self, plan: Plan) -> None:
        """All points of a plan. Raises `GeneratorError` if nothing speaks."""
        for clients, duration in plan.warm_up:
            outcomes = (await self._generators.closed(clients, duration)).outcomes
            if all(outcome.error for outcome in outcomes):
                raise GeneratorError(f"nothing speaks: {outcomes[0].error if outcomes else 'no answer'}")
        for load in plan.loads:
            sending = (
                self._generators.open(load.amount, load.seconds)
                if load.loop == "open"
                else self._generators.closed(int(load.amount), load.seconds)
            )
            await self._point(load.loop, load.amount, load.seconds, plan.ramp(load), sending)
        if plan.live is not None:
            await self._live(plan.live, plan.busy_ramp)

    async def _live(self, plan: LivePlan, ramp: Ramp) -> None:
        levels = live.search(plan.start, plan.most)
        level = next(levels)
        with contextlib.suppress(StopIteration):
            while True:
                sending = self._generators.live(level, plan.gather, plan.hold)
                heard = await self._point("live", level, plan.hold, ramp, sending)
                level = levels.send(live.gap_free(heard))

    async def _point(
        self,
        loop: Literal["open", "closed", "live"],
        amount: float,
        seconds: float,
        ramp: Ramp,
        sending: Awaitable[Heard],
    ) -> Point:
        system = self._system
        if system is not None:
            await system.set_ramp(ramp)
        await asyncio.sleep(SETTLE_SECONDS)
        watch = Watch(self._gpus, system.pids if system else {}, system.admin_urls if system else {})
        async with watch.watching() as seen:
            heard = await sending
        point = ServicePoint(
            load=loop,
            amount=amount,
            seconds=seconds,
            chunk_ramp=ramp if system is not None else (),
            heard=summarize(Loop.OPEN if loop == "open" else Loop.CLOSED, amount, heard.outcomes, heard.wall_seconds),
            watched=seen[0],
            generator=heard.burden,
        )
        self.run.points.append(point)
        self.keep()
        print(table.line(point), file=sys.stderr, flush=True)
        return point.heard

    def keep(self, *, complete: bool = False, failure: str = "") -> None:
        """Writes what there is. Raises `OSError`."""
        deaths = [] if self._system is None else self._system.deaths
        self.run = structs.replace(self.run, complete=complete, failure=failure, deaths=deaths)
        save(self.run, self._file)


async def measure(given: argparse.Namespace, command: str) -> list[ServiceRun]:
    """Syrinx, then every peer that is at hand. Raises one of `EXPECTED`; what was measured is written then too."""
    given.out.mkdir(parents=True, exist_ok=True)
    gpus = Gpus()
    with contextlib.ExitStack() as stack:
        model = _model(given, stack)
        run = _begin(given, model, command, gpus)
        setup = setup_of(given, model)
        run = structs.replace(run, setup=structs.replace(setup, model=model and Path(model).name))
        began = time.monotonic()
        async with System(setup) as system:
            print(f"the service is ready after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
            runs = [await _measure_one(given, run, gpus, system.urls, system)]
        for peer in PEERS if model and given.device == "cuda" else ():
            if peer.at_hand:
                async with started(peer, model or "") as url:
                    theirs = structs.replace(run, system=peer.name, topology="its own", setup=None, points=[])
                    runs.append(await _measure_one(given, theirs, gpus, [url], None))
    return runs


async def _measure_one(
    given: argparse.Namespace, run: ServiceRun, gpus: Gpus, urls: Sequence[str], system: System | None
) -> ServiceRun:
    spoken = given.voices or (await _voices(urls[0]) if system else PEER_VOICES)
    said = Requests(corpus(), spoken, given.seed, run.random_weights)
    name = (given.name or _name(given, gpus)) + (f"_{run.system}" if system is None else "")
    async with Generators(given.generators, urls, said) as generators:
        bench = Bench(run, given.out / f"{name}_service.json", generators, gpus, system)
        try:
            await bench.measure(plan_of(given))
        except Exception as error:
            bench.keep(failure=f"{type(error).__name__}: {error}")
            raise
        bench.keep(complete=True)
        return bench.run


def _model(given: argparse.Namespace, stack: contextlib.ExitStack) -> str | None:
    """The checkpoint's directory; None is the bundled voice. Random weights are made if nothing else is named."""
    if given.bundled:
        return None
    if given.model or given.random_model:
        return str(given.model or given.random_model)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-bench-model-"))) / given.size
    # A process of its own, which leaves nothing on the GPU.
    parts = ("--configs",) if given.paced else ()
    subprocess.run([sys.executable, "-m", "gpu.checkpoint", str(directory), "--size", given.size, *parts], check=True)
    return str(directory)


async def _voices(url: str) -> Sequence[str]:
    async with connect(url) as client:
        return await voices(client)


def _begin(given: argparse.Namespace, model: str | None, command: str, gpus: Gpus) -> ServiceRun:
    """The result, before anything is measured."""
    random_weights = model is not None and not given.model
    steps = [requests.seconds((number + 0.5) / 1000) for number in range(1000)]
    return ServiceRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        driver=gpus.driver(),
        system="syrinx",
        topology=_topology(given),
        model=_model_name(given, model),
        random_weights=random_weights,
        setup=None,
        seed=given.seed,
        utterance_seconds=round(statistics.fmean(steps), 3) if random_weights else None,
    )


def _model_name(given: argparse.Namespace, model: str | None) -> str:
    """What the report calls it."""
    if model is None:
        return "bundled voice"
    size = read_model_config(Path(model)).tts_model_size
    return f"{SIZE_NAMES.get(size, size)}, {Path(given.model).name if given.model else 'random weights'}"


def _topology(given: argparse.Namespace) -> str:
    where = _places(given)
    return f"{where}, the talker on vLLM" if given.engine == "vllm" else where


def _places(given: argparse.Namespace) -> str:
    if given.paced:
        return "engines that only take their time"
    if given.device == "cpu":
        return "talker and codec on the processor" + (", in one process" if given.colocated else "")
    if given.colocated:
        return "talker and codec in one process on one GPU"
    if given.two_gpus:
        return "talker and codec on a GPU each"
    return "talker and codec as processes on one GPU" + (" under MPS" if given.mps else "")


def _name(given: argparse.Namespace, gpus: Gpus) -> str:
    """Of the result: `h200_1b7_mps`."""
    where = gpus.short_name() if given.device == "cuda" else "cpu"
    shape = "bundled" if given.bundled else Path(given.model).name if given.model else given.size
    variant = "".join(f"_{flag}" for flag in ("colocated", "two_gpus", "mps", "paced") if getattr(given, flag))
    return f"{where}_{shape}{'_vllm' if given.engine == 'vllm' else ''}{variant}"


def _publishable(arguments: Sequence[str]) -> str:
    """The command line without absolute paths and hosts."""
    return "python -m gpu.service " + publishable_command(arguments).removeprefix("syrinx ")


def main() -> int:
    """Measures, writes and prints. Returns the exit status."""
    arguments = sys.argv[1:]
    given = parse(arguments)
    try:
        runs = asyncio.run(measure(given, _publishable(arguments)))
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
