"""The command line's words: sub-commands, options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from syrinx_operator.commands.say import FORMATS

_Number = TypeVar("_Number", int, float)

_TEXT = argparse.RawDescriptionHelpFormatter


def make_parser(version: str) -> argparse.ArgumentParser:
    """The parser of `syrinx`."""
    parser = argparse.ArgumentParser(
        prog="syrinx",
        description="Qwen3-TTS as a pipeline: a TTSPipeline resource becomes a gateway, talkers and codecs that speak.",
        epilog='start here:  syrinx say "The farmer opened the garden gate." -o speech.wav',
    )
    parser.add_argument("--version", action="version", version=f"syrinx {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_up(commands)
    _add_say(commands)
    _add_check(commands)
    _add_bench(commands)
    _add_tune(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_up(commands: _Commands) -> None:
    up = commands.add_parser(
        "up",
        help="run a pipeline on this machine",
        formatter_class=_TEXT,
        description="Runs a TTSPipeline's stages as processes of this machine, Redis included, until Ctrl-C.\n"
        "Ctrl-C finishes what is being spoken; a second one kills. A stage that dies is started again.\n"
        "spec.tuning says whether it tunes itself; `syrinx tune` shows what that does.",
    )
    up.add_argument("file", metavar="FILE", help="YAML file with one TTSPipeline; - reads standard input")
    up.add_argument("--port", type=_port, help="serve on this port instead of the resource's; 0 takes a free one")
    up.add_argument("-q", "--quiet", action="store_true", help="do not show the stages' logs (they are in files too)")


def _add_say(commands: _Commands) -> None:
    say = commands.add_parser(
        "say",
        help="speak a text into a file",
        formatter_class=_TEXT,
        description="Speaks a text into a file and prints time to first audio (TTFA), wall seconds per audio second\n"
        "(RTF) and duration. Speaks through --url, or a pipeline started from --file, or SYRINX_URL,\n"
        "or the pipeline that `syrinx up` runs, or else the bundled voice, started for this one text.",
    )
    say.add_argument("text", metavar="TEXT", help="what to say")
    say.add_argument("-o", "--output", default="speech.wav", metavar="FILE", help="default speech.wav; - is stdout")
    say.add_argument("--format", choices=FORMATS, help="default: by the file's extension")
    say.add_argument("--stream", action="store_true", help="write audio while it is made (wav and pcm)")
    say.add_argument("--voice", help="a speaker of the model; default: its first")
    say.add_argument("--language", help="such as English; default: the model's only one, or found out by it")
    say.add_argument("--instructions", help="how to say it, where the model takes instructions")
    say.add_argument("--seed", type=int, help="the same seed gives the same audio")
    _add_target(say)


def _add_check(commands: _Commands) -> None:
    check = commands.add_parser(
        "check",
        help="validate TTSPipeline resources",
        description="Says everything that is wrong in YAML files, as FILE:LINE:COLUMN: FIELD: what would be accepted. "
        "Exit status 1 if there is anything.",
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="YAML file; - reads standard input")


def _add_bench(commands: _Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="put load on a pipeline and measure what listeners hear",
        formatter_class=_TEXT,
        description="Streams sentences from a pipeline (--url, SYRINX_URL, or one started from --file or with the\n"
        "bundled voice) and measures TTFA, underruns and throughput. Points are measured one after the other.",
        epilog="example:  syrinx bench --concurrency 1,2,4,8 --rate 0.5,1,2 --json cpu.json --plot cpu.png",
    )
    _add_target(bench)
    load = bench.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=_list(int),
        metavar="N[,N...]",
        help="closed loop: so many clients at once (default 1,2,4,8 unless --rate is given)",
    )
    load.add_argument(
        "--rate",
        type=_list(float),
        metavar="R[,R...]",
        help="open loop: so many requests a second on average, at random times (Poisson)",
    )
    length = load.add_mutually_exclusive_group()
    length.add_argument("--duration", type=_positive(float), default=30.0, metavar="S", help="of a point; default 30")
    length.add_argument("--requests", type=_positive(int), metavar="N", help="of a point, instead of a duration")
    load.add_argument(
        "--warmup", type=_count, default=3, metavar="N", help="requests before the first point; default 3"
    )
    load.add_argument("--seed", type=int, default=0, help="of arrivals, texts and voices; default 0")
    load.add_argument(
        "--voices", type=lambda text: tuple(text.split(",")), metavar="V[,V...]", help="to go round; default: all"
    )
    results = bench.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write everything that was measured")
    results.add_argument("--plot", metavar="FILE.png", help="draw TTFA and throughput over load")
    results.add_argument("--table", metavar="FILE.json", help="measure nothing; print a result as a Markdown table")


def _add_tune(commands: _Commands) -> None:
    tune = commands.add_parser(
        "tune",
        help="show what tuning does with a pipeline",
        formatter_class=_TEXT,
        description="Shows what tuning does: the knobs, the objectives, the trial under way and the last decisions.\n"
        "Of the pipeline that `syrinx up` runs here, or with --namespace of one on the Kubernetes cluster\n"
        "that KUBECONFIG names. It reads only: what tuning may do stands in the resource, under spec.tuning.",
        epilog="examples:  syrinx tune --watch\n"
        "           syrinx tune --plot trial.png --trial 3\n"
        "           syrinx tune -n speech demo\n"
        "           kubectl logs deploy/syrinx-operator > log; syrinx tune -n speech demo --audit log --plot t.png",
    )
    tune.add_argument("name", metavar="NAME", nargs="?", help="the pipeline; default: the one that was started last")
    tune.add_argument("-n", "--namespace", metavar="NS", help="read the pipeline NAME of this Kubernetes namespace")
    how = tune.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="go on until Ctrl-C; without a terminal, a line a change")
    how.add_argument("--json", action="store_true", help="print the tuner's state as JSON")
    how.add_argument("--plot", metavar="FILE.png", help="draw the trials: both arms over time, and the knobs")
    tune.add_argument("--trial", type=_positive(int), metavar="N", help="with --plot: this trial alone")
    tune.add_argument(
        "--audit", metavar="FILE", help="with --plot: read decisions from the operator's log; - is standard input"
    )


def _add_target(command: argparse.ArgumentParser) -> None:
    target = command.add_mutually_exclusive_group()
    target.add_argument("--url", help="a gateway that runs, such as http://127.0.0.1:8000")
    target.add_argument("--file", metavar="FILE", help="start this TTSPipeline for the purpose")


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected 0 to 65535")
    return number


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from 0")
    return number


def _positive(kind: type[_Number]) -> Callable[[str], _Number]:
    def parse(text: str) -> _Number:
        try:
            number = kind(text)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected {'an integer' if kind is int else 'a number'} above 0"
            )
        return number

    return parse


def _list(kind: type[_Number]) -> Callable[[str], tuple[_Number, ...]]:
    return lambda text: tuple(_positive(kind)(part) for part in text.split(","))
