"""Measures what each technique is worth: `python -m gpu.worth`, the same load with one of them switched off at a time.

The engines come first, in a process of their own; then the service as `syrinx up` runs it with only the device set, on
one GPU, with all techniques and then without each of `SERVICE`, the most important first. Every effect is written when
it is measured. What the time limit leaves out is measured by another call with `--only`, which keeps the rest if
machine and revision are the same.
"""

import argparse
import asyncio
import contextlib
import datetime
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import structs

from gpu import RESULTS, plan
from gpu.ablation import AUDIO, TECHNIQUES, Effect, WorthRun, tables
from gpu.monitor import Gpus
from gpu.service import EXPECTED, SETTLE_SECONDS, SIZE_NAMES, model_directory
from gpu.switched import Switch
from gpu.system import Setup, System
from syrinx_operator.commands.bench.load import Limit, LoadGenerator
from syrinx_operator.commands.bench.stats import Loop, Point, summarize
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import describe, publishable_command, revision

Load = tuple[Loop, int]
"""Concurrent clients, or listeners."""
LISTENERS: Load = ("live", 600)
"""More than rows, and fewer than any card of the results can serve."""
SERVICE: Mapping[Switch, Sequence[Load]] = {
    "queued-step": (("closed", 1), ("closed", 8), ("closed", 32)),
    "deadline-order": (LISTENERS,),
    "change-feed": (("closed", 64), LISTENERS),
    "codec-batching": (("closed", 8), ("closed", 32), ("closed", 64)),
    "captured-shapes": (("closed", 1), ("closed", 8), ("closed", 32)),
}
"""The loads of each technique that is measured in a service. The engines also show the last two."""
NOTHING = "nothing"
ENGINES = ("queued-step", "predictor-graph", "one-replay", "device-state", "codec-batching", "captured-shapes")
WARM_UP = ((1, 1.0), (8, 1.0), (64, 2.0))
CLOSED_SECONDS, RAMP_UP_SECONDS, HOLD_SECONDS = 5.0, 4.0, 8.0
CPU_LOAD = 2
"""The largest load on a CPU, where only the benchmark itself is tried."""
FAILED = "failed requests, %"
LIMIT_SECONDS = 540.0
ENGINE_SECONDS = 240.0
"""Time for the engines."""
SWITCH_SECONDS = 90.0
"""A technique that would be switched off later than this before the limit is skipped."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises SystemExit for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m gpu.worth", description="Measure what each technique is worth.")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZE_NAMES, default="1b7", help="real shapes, random weights (default: 1b7)")
    model.add_argument("--random-model", help="directory written by gpu.checkpoint")
    model.add_argument("--bundled", action="store_true", help="the bundled voice; only for the service")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="on a CPU, only the service runs")
    parser.add_argument("--part", choices=("engines", "service"), help="measure only these (default: both)")
    parser.add_argument("--only", nargs="+", choices=list(TECHNIQUES), help="techniques to measure (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all (default: 540)")
    parser.add_argument("--generators", type=int, default=4, help="worker processes of the load generator (default: 4)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    parser.set_defaults(model=None, base=False, variant="defaults")
    args = parser.parse_args(arguments)
    if args.bundled:
        args.part = "service"
    return args


class Results:
    """The result file, which is written whenever something was measured."""

    def __init__(self, file: Path, run: WorthRun) -> None:
        """Continues an earlier file of the same machine and revision."""
        self._file, self.run = file, run
        if file.exists():
            earlier = msgspec.json.decode(file.read_bytes(), type=WorthRun)
            same = ("gpu", "driver", "machine", "revision", "model")
            if all(getattr(earlier, name) == getattr(run, name) for name in same):
                self.run = structs.replace(run, effects=earlier.effects)

    def add(self, effects: Iterable[Effect]) -> None:
        """Adds effects, which replace earlier ones of the same load."""
        for effect in effects:
            key = (effect.technique, effect.load, effect.figure)
            kept = [each for each in self.run.effects if (each.technique, each.load, each.figure) != key]
            self.run = structs.replace(self.run, effects=[*kept, effect])
            print(f"{effect.technique}, {effect.load}: {effect.on:.4g}, without {effect.off:.4g} {effect.figure}")
        self._write()

    def close(self, skipped: Sequence[str]) -> None:
        """Marks the run as complete, unless techniques were skipped."""
        self.run = structs.replace(self.run, complete=not skipped, skipped=skipped)
        self._write()

    def _write(self) -> None:
        sys.stdout.flush()
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(self.run), indent=1) + b"\n")


def measure_engines(args: argparse.Namespace, results: Results) -> None:
    """Measures the engines on this machine's GPU."""
    import torch

    from gpu import ablated_engines, codec, talker
    from gpu.checkpoint import RandomCheckpoint, write_configs

    with TemporaryDirectory() as directory:
        write_configs(Path(directory), args.size)
        checkpoint = RandomCheckpoint(args.random_model or directory, "cuda", torch.bfloat16)
        rig = talker.Rig(checkpoint, ablated_engines.TALKER_BATCHES)
        rig.engine.warm_up()
        for effect in ablated_engines.talker_effects(rig):
            results.add([effect])
    del rig
    torch.cuda.empty_cache()
    decoders = codec.Rig(codec.random_decoder(), torch.float16, max(ablated_engines.CODEC_BATCHES))
    decoders.engine.warm_up()
    decoders.open_all()
    for effect in ablated_engines.codec_effects(decoders):
        results.add([effect])


def effects_of(technique: str, load: Load, on: Point, off: Point) -> list[Effect]:
    """Returns the figures of a load point with and without a technique that both have."""
    loop, amount = load
    named = f"{amount} listeners" if loop == "live" else f"{amount} clients"
    figures = {name: (_figures(loop, on).get(name), _figures(loop, off).get(name)) for name in _figures(loop, on)}
    return [
        Effect(technique=technique, load=named, figure=figure, on=with_it, off=without)
        for figure, (with_it, without) in figures.items()
        if with_it is not None and without is not None and (figure != FAILED or with_it or without)
    ]


def _figures(loop: Loop, point: Point) -> dict[str, float | None]:
    ttfa = None if point.ttfa is None else 1000 * point.ttfa.p95
    underruns = None if point.underrun_share is None else 100 * point.underrun_share
    failed = 100 * sum(point.errors.values()) / max(1, point.requests)
    first = {"underruns, %": underruns} if loop == "live" else {AUDIO: point.audio_seconds_per_second}
    return {**first, "TTFA p95, ms": ttfa, FAILED: failed}


class Service:
    """Measures the service with a technique switched off, or with all of them."""

    def __init__(self, args: argparse.Namespace, setup: Setup) -> None:
        self._args, self._setup = args, setup

    def loads(self, switches: Iterable[Switch]) -> list[Load]:
        """Returns the loads of some techniques, each once: at most `CPU_LOAD` on a CPU."""
        most = CPU_LOAD if self._setup.device == "cpu" else sys.maxsize
        return list({(loop, min(amount, most)): None for each in switches for loop, amount in SERVICE[each]})

    async def measure(self, switched_off: Switch | None, loads: Sequence[Load]) -> dict[Load, Point]:
        """Returns the points of all loads. Raises one of `EXPECTED`."""
        setup = structs.replace(self._setup, switched_off=switched_off)
        async with self._generator(setup) as generator:
            for clients, seconds in WARM_UP:
                if clients <= max(amount for _, amount in loads):
                    await generator.closed(clients, Limit(seconds=seconds))
            return {load: await self._point(generator, *load) for load in loads}

    @contextlib.asynccontextmanager
    async def _generator(self, setup: Setup) -> AsyncIterator[LoadGenerator]:
        system = System()
        async with system.running(setup):
            async with SpeechClient(system.urls[0]) as client:
                script = plan.make_script(await client.voices(), not self._args.bundled)
            async with LoadGenerator(system.urls, script, self._args.generators) as generator:
                yield generator

    async def _point(self, generator: LoadGenerator, loop: Loop, amount: int) -> Point:
        await asyncio.sleep(SETTLE_SECONDS)
        if loop == "live":
            result = await generator.live(amount, RAMP_UP_SECONDS, HOLD_SECONDS)
        else:
            result = await generator.closed(amount, Limit(seconds=CLOSED_SECONDS))
        return summarize(loop, amount, result.outcomes, result.wall_seconds)


async def measure_service(
    args: argparse.Namespace, results: Results, switches: Sequence[Switch], deadline: float
) -> list[Switch]:
    """Measures the service without each technique, and with all of them again to show the noise.

    Returns the techniques for which there was no time.
    """
    async with contextlib.AsyncExitStack() as stack:
        service = Service(args, Setup(model=model_directory(args, stack), device=args.device, variant="defaults"))
        on = await service.measure(None, service.loads(switches))
        for index, switch in enumerate(switches):
            if time.monotonic() > deadline - SWITCH_SECONDS:
                return list(switches[index:])
            off = await service.measure(switch, service.loads([switch]))
            for load, point in off.items():
                results.add(effects_of(switch, load, on[load], point))
        if time.monotonic() < deadline - SWITCH_SECONDS:
            for load, point in (await service.measure(None, list(on))).items():
                results.add(effects_of(NOTHING, load, on[load], point))
    return []


def _new_run(args: argparse.Namespace, command: str, gpus: Gpus) -> WorthRun:
    return WorthRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        driver=gpus.driver(),
        model="bundled voice" if args.bundled else f"{SIZE_NAMES[args.size]}, random weights",
    )


def run_engines(arguments: Sequence[str], limit: float) -> bool:
    """Measures the engines in a process of its own, which frees the GPU. Returns whether it could."""
    command = [sys.executable, "-m", "gpu.worth", *arguments, "--part", "engines"]
    try:
        return subprocess.run(command, check=False, timeout=limit).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Runs the benchmark and prints its tables; returns the exit status."""
    args, deadline = parse(sys.argv[1:]), time.monotonic()
    deadline += args.limit
    gpus = Gpus()
    args.out.mkdir(parents=True, exist_ok=True)
    name = gpus.short_name() if args.device == "cuda" else "cpu"
    file = args.out / f"{name}_worth.json"
    command = publishable_command("python -m gpu.worth", sys.argv[1:])
    wanted = args.only or list(TECHNIQUES)
    skipped: list[str] = []
    if args.part == "engines":
        measure_engines(args, Results(file, _new_run(args, command, gpus)))
        return 0
    by_engine = any(each in ENGINES for each in wanted) and args.device == "cuda" and args.part is None
    if by_engine and not run_engines(sys.argv[1:], min(ENGINE_SECONDS, args.limit)):
        skipped += [each for each in wanted if each in ENGINES and each not in SERVICE]
    results = Results(file, _new_run(args, command, gpus))
    try:
        switches = [each for each in SERVICE if each in wanted]
        skipped += asyncio.run(measure_service(args, results, switches, deadline)) if switches else []
    except EXPECTED as error:
        print(f"gpu.worth: {error}", file=sys.stderr)
        return 1
    results.close(skipped)
    print(tables(results.run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
