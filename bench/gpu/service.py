"""Benchmarks the service end to end on this machine: `python -m gpu.service`; by default with random weights.

Measures open loops (Poisson), closed loops, bursts, and the maximum number of listeners without gaps. The file is
written after every point, so that an interrupted run keeps its points.
"""

import argparse
import asyncio
import contextlib
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import msgspec
from msgspec import structs

from gpu import RESULTS, SIZE_NAMES, plan, results
from gpu.monitor import Gpus, monitor
from gpu.plan import LOOPS, Plan
from gpu.references import KEPT, keep_voice, reference
from gpu.results import ServicePoint, ServiceRun
from gpu.system import Setup, System
from syrinx_operator.commands.bench.load import GeneratorError, Limit, LoadGenerator, LoadResult, corpus
from syrinx_operator.commands.bench.report import points_table
from syrinx_operator.commands.bench.stats import Loop, Point, summarize
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.gpus import visible_gpus
from syrinx_operator.local.machine import describe, publishable_command, revision
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.connector.server import RedisServerError
from syrinx_stages.model.config import CheckpointError, read_model_config

EXPECTED = (LocalError, RedisServerError, CheckpointError, GeneratorError, SpeechError, httpx.HTTPError, OSError)
"""Errors that are printed without a traceback."""
SETTLE_SECONDS = 0.5
"""Pause between two points."""
OTHERS_VOICES = ("ryan", "vivian")
"""Voices of every CustomVoice checkpoint: other services may not list theirs."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises SystemExit for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m gpu.service", description="Measure the service end to end.")
    models = add_models(parser)
    models.add_argument("--model", help="checkpoint directory; the model ends the utterances")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="engine of the talker")
    system = parser.add_mutually_exclusive_group()
    system.add_argument("--paced", action="store_true", help="simulate the engines' timing, without a GPU: gpu.paced")
    system.add_argument("--url", help="measure this running service, for example another one of the same model")
    parser.add_argument("--gpus", type=int, help="number of GPUs (default: all visible ones; with --paced: 1)")
    parser.add_argument("--cells", type=int, default=1, help="number of Redis servers (default: 1)")
    parser.add_argument("--quiet", action="store_true", help="silence each utterance's first frame, as a voice begins")
    parser.add_argument(
        "--base",
        action="store_true",
        help="clone voices of 6 s: one that is uploaded and kept, then another one in each request",
    )
    parser.add_argument("--checks", choices=("on", "off"), help="of segments (default: on, but for random weights)")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter load points: two minutes")
    parser.add_argument(
        "--only", type=_names, help="loops to run, of open,closed,live,burst (default: all; open with --base)"
    )
    parser.add_argument("--rates", type=_numbers, default=(), help="requests per second, such as 1,20,80")
    parser.add_argument("--concurrency", type=_numbers, default=(), help="concurrent clients, such as 1,4,64")
    parser.add_argument("--live-start", type=int, default=0, help="number of listeners that the search starts with")
    parser.add_argument("--repeat", type=int, default=1, help="searches for the maximum of listeners (default: 1)")
    parser.add_argument("--generators", type=int, default=4, help="worker processes of the load generator (default: 4)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    parser.add_argument("--name", help="name of the result, NAME_service.json (default: from GPU and size)")
    args = parser.parse_args(arguments)
    args.only = args.only or (("open",) if args.base else LOOPS)
    args.rates = args.rates or (plan.BASE_RATES if args.base else ())
    if args.base and (args.bundled or args.paced):
        parser.error("--base cannot be combined with --bundled or --paced")
    if set(args.only) - set(LOOPS):
        parser.error(f"--only: choose from {', '.join(LOOPS)}")
    if args.paced and (args.engine == "vllm" or args.device == "cpu"):
        parser.error("--paced cannot be combined with --engine vllm or --device cpu")
    if args.quiet and (args.url or args.paced):
        parser.error("--quiet cannot be combined with --url or --paced")
    if args.repeat < 1:
        parser.error("--repeat must be at least 1")
    return args


def add_models(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Adds the options for a model and its device. Returns the group, of which one option may be given."""
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--size", choices=SIZE_NAMES, default="1b7", help="real shapes, random weights (default: 1b7)")
    models.add_argument("--random-model", help="directory written by gpu.checkpoint")
    models.add_argument("--bundled", action="store_true", help="the bundled voice")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return models


def gpus_of(args: argparse.Namespace) -> int:
    """Returns the number of GPUs that the service uses."""
    if args.gpus or args.paced or args.url or args.device == "cpu":
        return int(args.gpus or 1)
    return max(1, len(visible_gpus()))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


def plan_of(args: argparse.Namespace, gpus: int = 1) -> Plan:
    """Returns the plan for the arguments and a number of GPUs."""
    base = plan.CPU if args.device == "cpu" else plan.QUICK if args.quick else plan.FULL
    return base.select(args.only, args.rates, args.concurrency, args.live_start, gpus, args.repeat)


@dataclass
class Bench:
    """A run in progress; `system` is None for a service that runs already."""

    run: ServiceRun
    file: Path
    generator: LoadGenerator
    gpus: Gpus
    system: System | None
    voice: Literal["", "kept", "new"] = ""
    """Of the requests of `generator`, see `ServicePoint`."""
    search: int = 0
    """Number of the search for the maximum of listeners."""

    async def measure(self, loads: Plan) -> None:
        """Measures all points of a plan. Raises `GeneratorError` if all warm-up requests fail."""
        generator = self.generator
        for clients, seconds in loads.warm_up:
            outcomes = (await generator.closed(clients, Limit(seconds=seconds))).outcomes
            if all(outcome.error for outcome in outcomes):
                raise GeneratorError(f"all warm-up requests failed: {outcomes[0].error if outcomes else 'no response'}")
        for rate, seconds in loads.open.items():
            await self._point("open", rate, seconds, generator.open(rate, Limit(requests=round(rate * seconds))))
        for count, seconds in loads.closed.items():
            await self._point("closed", count, seconds, generator.closed(int(count), Limit(seconds=seconds)))
        for count, bursts in loads.bursts:
            times = [number * plan.BURST_SECONDS for number in range(bursts)]
            load = generator.bursts(count, times)
            await self._point("burst", count, bursts * plan.BURST_SECONDS, load)
        await self._search_listeners(loads)

    async def _search_listeners(self, loads: Plan) -> None:
        """Searches the maximum number of listeners without a gap, as often as the plan says."""
        if loads.live is None:
            return
        start, limit = loads.live
        for self.search in range(loads.repeat):
            levels = plan.search_max(start, limit) if self.search == 0 else plan.search_near(start, limit)
            level = next(levels)
            try:
                while True:
                    load = self.generator.live(level, loads.ramp_up, loads.hold)
                    level = levels.send(plan.is_gap_free(await self._point("live", level, loads.hold, load)))
            except StopIteration as end:
                start = end.value or start

    async def measure_new_voices(self, rates: Mapping[float, float], generator: LoadGenerator) -> None:
        """Measures open loops whose requests have another reference each: at most as many as there are texts."""
        self.generator, self.voice = generator, "new"
        for rate, seconds in rates.items():
            limit = Limit(requests=min(round(rate * seconds), len(corpus())))
            await self._point("open", rate, seconds, generator.open(rate, limit))

    async def _point(self, loop: Loop, amount: float, seconds: float, load: Awaitable[LoadResult]) -> Point:
        await asyncio.sleep(SETTLE_SECONDS)
        processes = (self.system.pids, self.system.admin_urls) if self.system else ({}, {})
        async with monitor(self.gpus, *processes) as usage:
            result = await load
        point = ServicePoint(
            load=loop,
            amount=amount,
            seconds=seconds,
            stats=summarize(loop, amount, result.outcomes, result.wall_seconds),
            voice=self.voice,
            search=self.search,
            usage=usage[0],
            generator=result.generator,
        )
        self.run.points.append(point)
        self.save()
        print("; ".join(f"{name} {cell(point)}" for name, cell in results.COLUMNS.items()), file=sys.stderr, flush=True)
        return point.stats

    def save(self, *, complete: bool = False, failure: str = "") -> None:
        """Writes the result file. Raises `OSError`."""
        deaths = [] if self.system is None else self.system.deaths
        self.run = structs.replace(self.run, complete=complete, failure=failure, deaths=deaths)
        write_atomically(self.file, msgspec.json.format(msgspec.json.encode(self.run), indent=1) + b"\n")


async def measure(args: argparse.Namespace, command: str) -> ServiceRun:
    """Measures a service. Raises one of `EXPECTED`; measured points are written before."""
    args.out.mkdir(parents=True, exist_ok=True)
    gpus = Gpus()
    async with contextlib.AsyncExitStack() as stack:
        model = None if args.url else model_directory(args, stack)
        setup = Setup(
            model=model,
            device=args.device,
            engine=args.engine,
            paced=args.paced,
            gpus=gpus_of(args),
            cells=args.cells,
            quiet=args.quiet,
        )
        run = _new_run(args, setup, command, gpus)
        system, urls, voices = None, [args.url], list(OTHERS_VOICES)
        if not args.url:
            system = System()
            await stack.enter_async_context(system.running(setup))
            urls = system.urls
            async with SpeechClient(urls[0]) as client:
                voices = await client.voices()
        if args.base:
            await asyncio.to_thread(keep_voice, urls[0])
            voices = [KEPT]
        script = plan.make_script(voices, run.random_weights, run.seed, checks=run.checks)
        generator = await stack.enter_async_context(LoadGenerator(urls, script, args.generators))
        bench = Bench(run, args.out / f"{args.name or _name(args, gpus)}_service.json", generator, gpus, system)
        bench.voice = "kept" if args.base else ""
        loads = plan_of(args, setup.gpus)
        try:
            await bench.measure(loads)
            if args.base:
                # A hundred references that no request before has had.
                script = plan.make_script((), run.random_weights, run.seed, [reference(n) for n in range(1, 101)])
                async with LoadGenerator(urls, script, args.generators) as generator:
                    await bench.measure_new_voices(loads.open, generator)
        except Exception as error:
            bench.save(failure=f"{type(error).__name__}: {error}")
            raise
        bench.save(complete=True)
        return bench.run


def model_directory(args: argparse.Namespace, stack: contextlib.AsyncExitStack) -> str | None:
    """Returns the checkpoint directory; None for the bundled voice. By default generates random weights."""
    if args.bundled:
        return None
    if args.model or args.random_model:
        return str(args.model or args.random_model)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="syrinx-bench-model-"))) / args.size
    # In a process of its own, which frees the GPU's memory.
    parts = [option for option, given in (("--configs", args.paced), ("--base", args.base)) if given]
    subprocess.run([sys.executable, "-m", "gpu.checkpoint", str(directory), "--size", args.size, *parts], check=True)
    return str(directory)


def _new_run(args: argparse.Namespace, setup: Setup, command: str, gpus: Gpus) -> ServiceRun:
    random_weights = not args.bundled and not args.model
    size = read_model_config(Path(setup.model)).tts_model_size if setup.model else args.size
    shape = SIZE_NAMES.get(size, size) + (" Base" if args.base else "")
    model = f"{shape}, {Path(args.model).name if args.model else 'random weights'}"
    return ServiceRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        driver=gpus.driver(),
        system=args.name or "other" if args.url else "syrinx",
        topology="its own" if args.url else setup.topology,
        model="bundled voice" if args.bundled else model,
        random_weights=random_weights,
        checks=None if args.checks is None else args.checks == "on",
        seed=0,
        utterance_seconds=round(plan.MEAN_SECONDS, 3) if random_weights else None,
    )


def _name(args: argparse.Namespace, machine: Gpus) -> str:
    device = "cpu" if args.paced or args.device == "cpu" else machine.short_name()
    shape = "bundled" if args.bundled else Path(args.model).name if args.model else args.size
    engine = "_vllm" if args.engine == "vllm" else ""
    system = "other" if args.url else "paced" if args.paced else "defaults"
    # The plain name is that of a machine with one GPU.
    gpus = gpus_of(args)
    cards = f"_{gpus}_gpus" if gpus > 1 else "_1_gpu" if args.gpus else ""
    cells = f"_{args.cells}_cells" if args.cells > 1 else ""
    quiet = "_quiet" if args.quiet else ""
    base = "_base" if args.base else ""
    return f"{device}_{shape}{engine}_{system}{cards}{cells}{quiet}{base}"


def main() -> int:
    """Runs the benchmark and prints its tables; returns the exit status."""
    args = parse(sys.argv[1:])
    command = publishable_command("python -m gpu.service", sys.argv[1:])
    try:
        run = asyncio.run(measure(args, command))
    except EXPECTED as error:
        print(f"gpu.service: {error}", file=sys.stderr)
        return 1
    print(f"{run.system}, {run.model}, {run.topology}; {run.gpu or run.machine.cpu}\n")
    print(points_table(run.points, results.COLUMNS), results.stages_table(run.points), sep="\n\n", end="\n\n")
    print(results.TEXTS["points"], results.TEXTS["stages"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
