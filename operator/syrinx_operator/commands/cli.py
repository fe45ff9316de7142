"""The command line: `syrinx COMMAND`, and the same as a plugin of kubectl: `kubectl syrinx COMMAND`."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import structs

from syrinx_operator import __version__
from syrinx_operator.commands import pipelines
from syrinx_operator.commands.bench import overload
from syrinx_operator.commands.bench.load import Limit
from syrinx_operator.commands.bench.overload import OverloadReport
from syrinx_operator.commands.bench.report import Report, ReportError, check_writable, describe, line, load, save
from syrinx_operator.commands.bench.run import bench
from syrinx_operator.commands.client import SpeechError
from syrinx_operator.commands.inspect import logs, rollout, status
from syrinx_operator.commands.inspect.cluster import ClusterError, Manifest, connect, current_namespace
from syrinx_operator.commands.key import KeyOptionsError, generate_key
from syrinx_operator.commands.parser import make_parser
from syrinx_operator.commands.say import SayError, Utterance, say, summary
from syrinx_operator.commands.tune.view import TuneError
from syrinx_operator.commands.up import typed_program, up
from syrinx_operator.local.console import JsonView, PipelineView, make_console
from syrinx_operator.local.machine import publishable_command
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.running import find_running, state_directory
from syrinx_operator.resource.checks.check import InvalidPipeline
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import LocalError

PROGRAM = "syrinx"
INTERRUPTED = 130
_EXPECTED = (ClusterError, InvalidPipeline, KeyOptionsError, LocalError, SayError, SpeechError, ReportError, TuneError)
"""Errors that are reported by their message, without a traceback."""


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Runs a command and returns the exit status: 0, 1 (failed), 2 (usage) or 130 (interrupted)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up like Ctrl-C.
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = make_parser(__version__, program).parse_args(given)
    options.program, options.given = program, given
    commands: dict[str, Callable[[argparse.Namespace], int | None]] = {
        **{"up": _up, "say": _say, "check": _check, "key": _key, "bench": _bench, "tune": _tune},
        **{"status": _status, "logs": _logs, "rollout": _rollout},
    }
    try:
        return commands[options.command](options) or 0
    except _EXPECTED as error:
        print(f"{program} {options.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed our output. Redirect it, so that the flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _check(options: argparse.Namespace) -> int:
    failed = False
    for file in options.files:
        checked = pipelines.check_file(file)
        for problem in (*checked.problems, *checked.ignored, *checked.on_kubernetes, *checked.with_up):
            print(problem)
        failed = failed or bool(checked.problems)
        for pipeline in () if checked.problems else checked.pipelines:
            print(f"{file}: TTSPipeline {pipeline.name} is valid")
    return 1 if failed else 0


def _key(options: argparse.Namespace) -> None:
    limits = {name: getattr(options, name) for name in ("requests_per_second", "burst", "streams")}
    key, entry = generate_key(options.name, **limits)
    print(entry)
    print(f"The key of {options.name}, which is not stored anywhere: {key}", file=sys.stderr)


def _up(options: argparse.Namespace) -> int:
    if options.log_format:
        # The stages inherit it.
        os.environ["LOG_FORMAT"] = options.log_format
    view: JsonView | PipelineView
    if os.environ.get("LOG_FORMAT") == "json":
        view = JsonView(logs=not options.quiet)
    else:
        view = PipelineView(make_console(), logs=not options.quiet)
    pipeline = pipelines.load(options.file, view.note) if options.file else pipelines.default_pipeline(view.note)
    if options.name is not None:
        pipeline = structs.replace(pipeline, metadata=structs.replace(pipeline.metadata, name=options.name))
    program = typed_program(options.program, sys.argv[0])
    return asyncio.run(up(pipeline, view, program=program, host=options.host, port=options.port))


def _say(options: argparse.Namespace) -> None:
    utterance = msgspec.convert(vars(options), Utterance)
    utterance.container  # noqa: B018  Raises before a pipeline is started.

    async def run() -> None:
        async with _gateway(options.url, options.file, reuse=True) as (url, _):
            print(summary(utterance, await say(utterance, url)), file=sys.stderr)

    asyncio.run(run())


def _bench(options: argparse.Namespace) -> None:
    if options.table:
        file = Path(options.table)
        print(
            overload.describe_report(load(file, OverloadReport)) if options.overload else describe(load(file, Report))
        )
        return
    for name in filter(None, (options.json, options.plot)):
        check_writable(Path(name))
    (_measure_overload if options.overload else _measure)(options, publishable_command("syrinx", options.given))


def _measure_overload(options: argparse.Namespace, command: str) -> None:
    console = make_console(stderr=True)

    async def measure() -> OverloadReport:
        async with _gateway(options.url, options.file, reuse=False) as (url, _):
            limits = {"seconds": options.duration, "seed": options.seed}
            return await overload.measure(url, command, **limits, done=console.print)

    report = asyncio.run(measure())
    print(overload.describe_report(report))
    if options.json:
        report = overload.merge(report, Path(options.json))
        save(report, Path(options.json))
    if options.plot:
        from syrinx_operator.commands.bench.plot import plot_overload  # Importing matplotlib takes half a second.

        plot_overload(report, Path(options.plot))


def _measure(options: argparse.Namespace, command: str) -> None:
    console = make_console(stderr=True)

    async def measure() -> Report:
        async with _gateway(options.url, options.file, reuse=False) as (url, pipeline):
            return await bench(
                url,
                pipeline,
                command,
                concurrency=options.concurrency or (() if options.rate else (1, 2, 4, 8)),
                rates=options.rate or (),
                limit=Limit(requests=options.requests, seconds=None if options.requests else options.duration),
                warmup=options.warmup,
                seed=options.seed,
                voices=options.voices or (),
                done=lambda point: console.print(line(point)),
            )

    report = asyncio.run(measure())
    print(describe(report))
    if options.json:
        save(report, Path(options.json))
    if options.plot:
        from syrinx_operator.commands.bench.plot import plot  # Importing matplotlib takes half a second.

        plot(report, Path(options.plot))


def _status(options: argparse.Namespace) -> None:
    async def read() -> Manifest:
        async with connect(options.namespace) as cluster:
            return await cluster.pipeline(options.name)

    print("\n".join(status.lines(asyncio.run(read()), datetime.now(UTC), options.program)))


def _logs(options: argparse.Namespace) -> None:
    which, text = asyncio.run(logs.read(options.name, options.namespace, options.tail))
    print(f"{which}:", file=sys.stderr)
    print(text)


def _rollout(options: argparse.Namespace) -> None:
    print(asyncio.run(rollout.run(options.action, options.name, options.namespace)))


def _tune(options: argparse.Namespace) -> None:
    from syrinx_operator.commands.tune.command import tune  # Only this command needs it.

    others = {name: getattr(options, name) for name in ("plot", "trial", "audit", "what_if")}
    namespace = options.namespace or (None if options.program == PROGRAM else current_namespace())
    tune(options.name, namespace, watching=options.watch, as_json=options.json, **others)


@contextlib.asynccontextmanager
async def _gateway(url: str | None, file: str | None, *, reuse: bool) -> AsyncIterator[tuple[str, TTSPipeline | None]]:
    """Yields the URL of a gateway, and the pipeline if it was started here.

    The gateway is that of `url`, of a new pipeline from `file`, of SYRINX_URL, with `reuse` of a running pipeline, or
    of a new pipeline of the bundled voice, in this order.
    """
    existing = url or (None if file else os.environ.get("SYRINX_URL"))
    if not existing and not file and reuse:
        with contextlib.suppress(LocalError):
            existing = next((running.url for running in find_running(state_directory(os.environ))), None)
    if existing:
        yield existing, None
        return
    view = PipelineView(make_console(stderr=True), logs=False)
    pipeline = pipelines.load(file, None) if file else pipelines.default_pipeline(view.note)
    with view:
        async with LocalPipeline(pipeline, port=0, observe=view) as running:
            yield running.gateway_url, pipeline
