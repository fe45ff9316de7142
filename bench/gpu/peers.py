"""Measures other services beside Syrinx with the same load on the same GPU: `python -m gpu.peers`.

Each service in turn is started if its package is installed, or is one that runs already (`--url nari=http://...`). All
load the same checkpoint, that of `gpu.checkpoint`, and get the same texts, lengths, voices and seeds, in the schema
that each declares:

- Nari forbids unknown fields, so `stream_format` is left out (nari-labs/nari-qwen3-tts,
  `src/nari_qwen3_tts/api/schemas.py@e8c5b2b`). Its server accepts an H100 only (`serve.py`).
- vLLM-Omni streams raw audio with `stream_format: audio` (vllm-project/vllm-omni,
  `vllm_omni/entrypoints/openai/protocol/audio.py@0131cb5`).
- SGLang-Omni streams raw audio for `stream` with `pcm`, and ignores `non_streaming_mode` where it does not declare it
  (sgl-project/sglang-omni, `sglang_omni/serve/protocol.py@042173f`).

These are also the requests of nari-labs/benchmarks (`tts_bench/src/tts_bench/targets.py@a2d65e1`).
"""

import argparse
import asyncio
import contextlib
import datetime
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import httpx
import msgspec
from msgspec import Struct, structs

from gpu import RESULTS, plan
from gpu.monitor import Gpus
from gpu.service import EXPECTED, OTHERS_VOICES, SETTLE_SECONDS, SIZE_NAMES, model_directory
from gpu.system import Setup, System
from syrinx_operator.commands.bench.load import Limit, LoadGenerator, Script
from syrinx_operator.commands.bench.report import errors, markdown, milliseconds
from syrinx_operator.commands.bench.stats import Point, summarize
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import Machine, describe, publishable_command, revision
from syrinx_stages.processes import die_with_parent

SYRINX = "syrinx"
OPEN: Mapping[float, float] = {1: 20, 10: 10, 20: 8}
"""Seconds by requests per second."""
CLOSED: Mapping[int, float] = {1: 8, 8: 8, 32: 8, 64: 8}
"""Seconds by concurrent clients."""
CPU_OPEN, CPU_CLOSED = {1.0: 5.0}, {1: 4.0}
"""On a CPU, where only the benchmark itself is tried."""
WARM_UP = ((1, 2.0), (8, 2.0))
START_SECONDS = 420.0
"""A service that is not ready by then has failed: others compile and capture for minutes."""
MEASURE_SECONDS = 110.0
"""Time for all loads of a service."""
STOP_SECONDS = 30.0
LOG_BYTES = 2000
LIMIT_SECONDS = 560.0


_OWN = ("runaway_guard",)
"""Fields that only Syrinx has."""


class Peer(Struct, frozen=True, kw_only=True):
    """How to find, start and ask a service."""

    name: str
    package: str
    """Its Python package."""
    command: Sequence[str]
    """Starts it, with the placeholders `MODEL` and `PORT`."""
    ready: str
    """Path that returns 200 when it is ready."""
    omitted: Sequence[str] = _OWN
    """Fields of the requests that it does not accept."""

    @property
    def is_installed(self) -> bool:
        """Whether it can be started on this machine."""
        return find_spec(self.package) is not None and shutil.which(self.command[0]) is not None


PEERS = (
    Peer(
        name="nari",
        package="nari_qwen3_tts",
        command=(
            *("nari-qwen3-tts-server", "--model", "MODEL", "--profile", "ttfa", "--local-files-only"),
            *("--host", "127.0.0.1", "--port", "PORT"),
        ),
        ready="/ready",
        omitted=("stream_format", *_OWN),
    ),
    Peer(
        name="vllm-omni",
        package="vllm_omni",
        command=("vllm", "serve", "MODEL", "--omni", "--host", "127.0.0.1", "--port", "PORT"),
        ready="/health",
    ),
    Peer(
        name="sglang-omni",
        package="sglang_omni",
        command=("sgl-omni", "serve", "--model-path", "MODEL", "--port", "PORT"),
        ready="/health",
        omitted=("stream_format", *_OWN),
    ),
)
NAMES = (SYRINX, *(peer.name for peer in PEERS))


class PeerScript(Script, frozen=True):
    """The requests of a benchmark without the fields that a service does not accept."""

    omitted: Sequence[str] = ()

    def body(self, number: int) -> dict[str, object]:
        """Returns the JSON of a request."""
        return {name: value for name, value in Script.body(self, number).items() if name not in self.omitted}


def script_of(name: str, voices: Sequence[str], fixed_lengths: bool) -> PeerScript:
    """Returns the requests for a service; those of all services are the same, as far as it accepts their fields."""
    omitted = next((peer.omitted for peer in PEERS if peer.name == name), ())
    common = plan.make_script(voices, fixed_lengths)
    return PeerScript(common.texts, common.voices, common.seed, common.fields, omitted)


class Measured(Struct, frozen=True, kw_only=True):
    """The measurements of one service."""

    name: str
    started: bool
    """False for one that ran already."""
    failure: str = ""
    """Why it has no more points."""
    points: Sequence[Point] = ()


class PeersRun(Struct, frozen=True, kw_only=True):
    """The result file."""

    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    driver: str | None
    model: str
    complete: bool = False
    services: Sequence[Measured] = ()


class PeerFailed(Exception):
    """A service did not become ready. The message has the end of its log."""


def table(run: PeersRun) -> str:
    """Returns the services side by side: p50 / p95 of the TTFA, underruns and audio seconds per second by load."""
    rows = []
    loads = {(point.loop, point.load): None for service in run.services for point in service.points}
    for loop, load in loads:
        cells = [_cell(service, loop, load) for service in run.services]
        rows.append([f"{load:g} {'req/s' if loop == 'open' else 'clients'}", *cells])
    parts = [markdown(["load", *(service.name for service in run.services)], rows)]
    parts.append("TTFA in ms, p50 / p95; underruns; audio seconds per second; errors, if any.")
    parts += [f"{service.name}: {service.failure}" for service in run.services if service.failure]
    return "\n\n".join(parts)


def _cell(service: Measured, loop: str, load: float) -> str:
    point = next((each for each in service.points if (each.loop, each.load) == (loop, load)), None)
    if point is None:
        return "-"
    underruns = "-" if point.underrun_share is None else f"{point.underrun_share:.1%}"
    shown = f"{milliseconds(point.ttfa, '{:.1f} / {:.1f}')}; {underruns}; {point.audio_seconds_per_second:.1f}"
    return f"{shown}; {errors(point)}" if point.errors else shown


class Bench:
    """Measures services one after the other, and writes the result file after each point."""

    def __init__(self, args: argparse.Namespace, file: Path, run: PeersRun) -> None:
        self._args, self._file, self.run = args, file, run
        self._deadline = time.monotonic() + args.limit
        on_cpu = args.device == "cpu"
        self._open, self._closed = (CPU_OPEN, CPU_CLOSED) if on_cpu else (OPEN, CLOSED)

    async def measure(self, name: str, urls: Sequence[str], voices: Sequence[str], *, started: bool) -> None:
        """Measures a service. Raises one of `EXPECTED`."""
        script = script_of(name, voices, fixed_lengths=not (self._args.bundled or self._args.model))
        points: list[Point] = []
        async with LoadGenerator(urls, script, self._args.generators) as generator:
            for clients, seconds in WARM_UP[: 1 if self._args.device == "cpu" else None]:
                await generator.closed(clients, Limit(seconds=seconds))
            for rate, seconds in self._open.items():
                await asyncio.sleep(SETTLE_SECONDS)
                result = await generator.open(rate, Limit(requests=round(rate * seconds)))
                points.append(summarize("open", rate, result.outcomes, result.wall_seconds))
                self.record(Measured(name=name, started=started, points=points))
            for clients, seconds in self._closed.items():
                await asyncio.sleep(SETTLE_SECONDS)
                result = await generator.closed(clients, Limit(seconds=seconds))
                points.append(summarize("closed", clients, result.outcomes, result.wall_seconds))
                self.record(Measured(name=name, started=started, points=points))

    def record(self, measured: Measured) -> None:
        """Writes the measurements of a service, in place of earlier ones."""
        others = [each for each in self.run.services if each.name != measured.name]
        self.run = structs.replace(self.run, services=[*others, measured])
        self.save()

    def fail(self, name: str, failure: str) -> None:
        """Writes why a service has no more points."""
        known = next((each for each in self.run.services if each.name == name), Measured(name=name, started=True))
        print(f"{name}: {failure}", file=sys.stderr, flush=True)
        self.record(structs.replace(known, failure=failure))

    def save(self, *, complete: bool = False) -> None:
        """Writes the result file."""
        self.run = structs.replace(self.run, complete=complete)
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(self.run), indent=1) + b"\n")

    def start_seconds(self) -> float:
        """Returns how long a service may take to start: less than `START_SECONDS` near the time limit, or 0."""
        left: float = self._deadline - time.monotonic() - MEASURE_SECONDS
        return max(0.0, min(START_SECONDS, left))


@contextlib.asynccontextmanager
async def running(peer: Peer, model: str, seconds: float) -> AsyncIterator[str]:
    """Yields the URL of a peer when it is ready, within `seconds`. Raises `PeerFailed`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [{"MODEL": model, "PORT": port}.get(word, word) for word in peer.command]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, die_with_parent.__file__, str(os.getpid()), *command), stdout=log, stderr=log
        )
        try:
            if not await _is_ready(f"http://127.0.0.1:{port}{peer.ready}", process, seconds):
                log.seek(0)
                raise PeerFailed(f"did not start: {log.read()[-LOG_BYTES:].decode('utf-8', 'replace')}")
            yield f"http://127.0.0.1:{port}"
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _is_ready(url: str, process: asyncio.subprocess.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
        while process.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get(url)).status_code == httpx.codes.OK:
                    return True
            await asyncio.sleep(0.5)
    return False


async def measure_syrinx(bench: Bench, args: argparse.Namespace, model: str | None) -> None:
    """Measures Syrinx as `syrinx up` runs it with only the device set, on one GPU. Raises one of `EXPECTED`."""
    system = System()
    async with system.running(Setup(model=model, device=args.device, variant="defaults")):
        await bench.measure(SYRINX, system.urls, await _voices(args, system.urls[0]), started=True)


async def _voices(args: argparse.Namespace, url: str) -> Sequence[str]:
    """Returns voices that all services of a checkpoint have. Raises `SpeechError`."""
    if not args.bundled:
        return OTHERS_VOICES
    async with SpeechClient(url) as client:
        return await client.voices()


async def measure_all(bench: Bench, args: argparse.Namespace, urls: Mapping[str, str]) -> None:
    """Measures all services that are wanted and available; what fails does not stop the others."""
    async with contextlib.AsyncExitStack() as stack:
        starts = [peer for peer in PEERS if peer.name in args.only and peer.name not in urls and peer.is_installed]
        needs_model = (SYRINX in args.only and SYRINX not in urls) or bool(starts)
        model = model_directory(args, stack) if needs_model else None
        for name, url in urls.items():
            with _recorded(bench, name):
                await bench.measure(name, [url], await _voices(args, url), started=False)
        if SYRINX in args.only and SYRINX not in urls:
            with _recorded(bench, SYRINX):
                await measure_syrinx(bench, args, model)
        for peer in starts:
            with _recorded(bench, peer.name):
                async with running(peer, str(model), bench.start_seconds()) as url:
                    await bench.measure(peer.name, [url], OTHERS_VOICES, started=True)


@contextlib.contextmanager
def _recorded(bench: Bench, name: str) -> Iterator[None]:
    try:
        yield
    except (PeerFailed, *EXPECTED) as error:
        bench.fail(name, str(error) or type(error).__name__)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises SystemExit for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m gpu.peers", description="Measure other services beside Syrinx.")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZE_NAMES, default="1b7", help="real shapes, random weights (default: 1b7)")
    model.add_argument("--model", help="checkpoint directory; the model ends the utterances")
    model.add_argument("--random-model", help="directory written by gpu.checkpoint")
    model.add_argument("--bundled", action="store_true", help="the bundled voice, which only Syrinx has")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of Syrinx")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="services to start (default: all)")
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a service that runs already")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all (default: 560)")
    parser.add_argument("--generators", type=int, default=4, help="worker processes of the load generator (default: 4)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    parser.set_defaults(base=False, variant="defaults")
    args = parser.parse_args(arguments)
    for each in args.url:
        name, _, url = each.partition("=")
        if name not in NAMES or not url.startswith(("http://", "https://")):
            parser.error(f"--url {each}: expected NAME=URL with a NAME of {', '.join(NAMES)}")
    return args


def main() -> int:
    """Runs the benchmark and prints its table; returns the exit status: 1 if a service failed."""
    args, gpus = parse(sys.argv[1:]), Gpus()
    args.out.mkdir(parents=True, exist_ok=True)
    # Without hosts.
    shown = [re.sub("=https?://.*", "=URL", argument) for argument in sys.argv[1:]]
    run = PeersRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=publishable_command("python -m gpu.peers", shown),
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        driver=gpus.driver(),
        model="bundled voice" if args.bundled else Path(args.model).name if args.model else SIZE_NAMES[args.size],
    )
    name = gpus.short_name() if args.device == "cuda" else "cpu"
    bench = Bench(args, args.out / f"{name}_peers.json", run)
    asyncio.run(measure_all(bench, args, dict(each.split("=", 1) for each in args.url)))
    bench.save(complete=True)
    print(table(bench.run))
    return 1 if any(service.failure for service in bench.run.services) else 0


if __name__ == "__main__":
    sys.exit(main())
