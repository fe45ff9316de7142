"""The argument parser of `syrinx`."""

import argparse
import contextlib
import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from syrinx_operator.commands.inspect.rollout import ACTIONS
from syrinx_operator.commands.say import FORMATS
from syrinx_operator.resource.spec import Metadata
from syrinx_stages.contract import logs

_Number = TypeVar("_Number", int, float)
_Command = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, summary and description, and options of `ArgumentParser`."""


def make_parser(version: str, program: str) -> argparse.ArgumentParser:
    """Returns the parser. `program` is how the user runs it: `syrinx`, or `kubectl syrinx` for the plugin."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Runs Qwen3-TTS pipelines: a gateway, talkers and codecs, described by a TTSPipeline resource.",
        epilog='example:  syrinx say "The farmer opened the garden gate." -o speech.wav',
    )
    parser.add_argument("--version", action="version", version=f"syrinx {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, description: str, **options: Any) -> argparse.ArgumentParser:
        options |= {"help": summary, "description": description}
        return commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    _add_up(command)
    _add_say(command)
    _add_check(command)
    _add_key(command)
    _add_bench(command)
    _add_status(command, program)
    _add_logs(command, program)
    _add_rollout(command, program)
    _add_tune(command, program)
    return parser


def _add_up(command: _Command) -> None:
    parser = command(
        "up",
        "run a pipeline locally",
        "Runs the stages of a TTSPipeline and Redis as local processes until Ctrl-C.\n"
        "The first Ctrl-C drains active streams, the second kills. Stages that exit are restarted.\n"
        "spec.tuning enables automatic tuning; `syrinx tune` shows its state.",
    )
    file_help = "YAML file with one TTSPipeline; - reads standard input; without it, the bundled voice on all cores"
    parser.add_argument("file", metavar="FILE", nargs="?", help=file_help)
    host_help = "address of the API, for example 0.0.0.0 (all); default: 127.0.0.1, which only this machine reaches"
    parser.add_argument("--host", metavar="ADDRESS", help=host_help)
    parser.add_argument(
        "--port",
        type=_checked(int, range(65_536).__contains__, " is not a port; expected 0 to 65535"),
        help="port of the API instead of spec.gateway.port; 0 selects a free port",
    )
    parser.add_argument("--name", type=_name, help="name instead of metadata.name, to run a pipeline more than once")
    format_help = "format of the output and of the stages' logs; default: LOG_FORMAT, or text"
    parser.add_argument("--log-format", choices=logs.FORMATS, help=format_help)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="do not print the stages' logs (they are also in files)"
    )


def _add_say(command: _Command) -> None:
    parser = command(
        "say",
        "synthesize a text to a file",
        "Synthesizes a text to a file and prints time to first audio (TTFA), real-time factor (RTF) and\n"
        "duration. Uses the gateway at --url, a new pipeline from --file, the gateway at SYRINX_URL,\n"
        "the pipeline of `syrinx up`, or a new pipeline with the bundled voice, in this order.\n"
        "SYRINX_API_KEY is the API key. SSL_CERT_FILE names the file of a private CA of an https:// gateway.",
    )
    parser.add_argument("text", metavar="TEXT", help="text to synthesize")
    parser.add_argument("-o", "--output", default="speech.wav", metavar="FILE", help="default speech.wav; - is stdout")
    parser.add_argument("--format", type=str.lower, choices=FORMATS, help="default: by the file's extension")
    parser.add_argument("--stream", action="store_true", help="write audio while it is generated (wav and pcm)")
    parser.add_argument("--voice", help="speaker of the model; default: the first")
    parser.add_argument("--language", help="for example English; default: the model's only language, or auto-detected")
    parser.add_argument("--instructions", help="style instructions, if the model supports them")
    parser.add_argument("--seed", type=int, help="random seed; the same seed gives the same audio")
    _add_target(parser)


def _add_check(command: _Command) -> None:
    parser = command(
        "check",
        "validate TTSPipeline resources",
        "Prints all problems of YAML files as FILE:LINE:COLUMN: FIELD: MESSAGE, also those of the files on this\n"
        "machine that `syrinx up` would read. The exit status is 1 if there are problems; those on Kubernetes or with\n"
        "`syrinx up` only do not count.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="YAML file; - reads standard input")


def _add_key(command: _Command) -> None:
    parser = command(
        "key",
        "generate an API key",
        "Generates an API key for spec.gateway.apiKeys. Prints its entry for the file of keys, which has only the\n"
        "hash of the key, and on standard error the key itself. Limits hold for each gateway, and for all keys of\n"
        "a name together.",
        epilog="example:  syrinx key alice --requests-per-second 5 --streams 4 >> keys.jsonl",
    )
    parser.add_argument("name", metavar="NAME", help="name of the client in metrics and logs")
    rate_help = "requests a second on average; default: no limit"
    parser.add_argument("--requests-per-second", type=_positive(float), metavar="R", help=rate_help)
    burst_help = "requests at once after a pause; default: those of one second"
    parser.add_argument("--burst", type=_positive(int), metavar="N", help=burst_help)
    streams_help = "requests in progress at the same time; default: no limit"
    parser.add_argument("--streams", type=_positive(int), metavar="N", help=streams_help)


def _add_bench(command: _Command) -> None:
    parser = command(
        "bench",
        "measure latency and throughput under load",
        "Streams sentences from a pipeline (--url, SYRINX_URL, or a new pipeline from --file or with the\n"
        "bundled voice) and measures TTFA, underruns and throughput at each load point in turn.\n"
        "SYRINX_API_KEY and SSL_CERT_FILE are used as by `syrinx say`.",
        epilog="example:  syrinx bench --concurrency 1,2,4,8 --rate 0.5,1,2 --json cpu.json --plot cpu.png",
    )
    _add_target(parser)
    _add_load(parser.add_argument_group("load"))
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write the report as JSON")
    results.add_argument("--plot", metavar="FILE.png", help="plot TTFA and throughput over load")
    results.add_argument("--table", metavar="FILE.json", help="print a JSON report as a Markdown table")


def _add_status(command: _Command, program: str) -> None:
    parser = command(
        "status",
        "show a pipeline on Kubernetes, and why it is not ready",
        "Shows whether a pipeline on the Kubernetes cluster of KUBECONFIG is ready, what is wrong, its replicas,\n"
        "roll-out, latency and tuning.",
        epilog=f"example:  {program} status -n speech demo",
    )
    _add_pipeline(parser)


def _add_logs(command: _Command, program: str) -> None:
    parser = command(
        "logs",
        "print the log that explains a pipeline's state",
        "Prints the end of one log of a pipeline on Kubernetes: that of the container which failed, is not ready or\n"
        "restarts often, the first in the order Redis, talker, codec, gateway; or else that of a gateway.",
        epilog=f"example:  {program} logs -n speech demo --tail 200",
    )
    _add_pipeline(parser)
    parser.add_argument("--tail", type=_positive(int), default=100, metavar="N", help="lines; default 100")


def _add_rollout(command: _Command, program: str) -> None:
    parser = command(
        "rollout",
        "show or command the canary of a pipeline on Kubernetes",
        "Shows the canary of a new version (spec.rollout.canary), or gives the operator a command about it:\n"
        + "\n".join(f"  {action:8} {text}" for action, text in ACTIONS.items()),
        epilog=f"example:  {program} rollout status -n speech demo",
    )
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    _add_pipeline(parser)


def _add_tune(command: _Command, program: str) -> None:
    parser = command(
        "tune",
        "show the state of automatic tuning",
        "Shows the tuned settings, the objectives, the running trial, the learned engine times, the forecast and the\n"
        "last decisions of the pipeline of `syrinx up`, or with --namespace of a pipeline on the Kubernetes cluster\n"
        "of KUBECONFIG. --what-if answers a question about capacity from what was learned.\n"
        "This command is read-only; spec.tuning of the resource configures tuning.",
        epilog="examples:  syrinx tune --watch\n"
        "           syrinx tune --plot trial.png --trial 3\n"
        "           syrinx tune -n speech demo\n"
        "           syrinx tune --what-if rate=40,mix=Base:1,CustomVoice:3,talkers=2\n"
        "           kubectl logs deploy/syrinx-operator > log; syrinx tune -n speech demo --audit log --plot t.png",
    )
    tune_name_help = "name of the pipeline; default: the one started last, or the only one of the namespace"
    parser.add_argument("name", metavar="NAME", nargs="?", help=tune_name_help)
    tune_help = "Kubernetes namespace of the pipeline"
    tune_help += "" if program == "syrinx" else "; default: that of kubectl's current context"
    parser.add_argument("-n", "--namespace", metavar="NS", help=tune_help)
    how = parser.add_mutually_exclusive_group()
    watch_help = "update until Ctrl-C; without a terminal, print a line per change"
    how.add_argument("--watch", action="store_true", help=watch_help)
    how.add_argument("--json", action="store_true", help="print the tuner's state as JSON")
    how.add_argument("--plot", metavar="FILE.png", help="plot the trials: both arms over time, and the settings")
    what_if_help = (
        "how well a load would be served: rate=R (requests/s), mix=TYPE:SHARE,... (task types), frames=F (mean frames "
        "of a request), burst=B (mean requests of an arrival), reference=F (frames of a clone's reference), talkers=N, "
        "codecs=N; only rate is required"
    )
    how.add_argument("--what-if", metavar="KEY=VALUE,...", help=what_if_help)
    parser.add_argument("--trial", type=_positive(int), metavar="N", help="with --plot: only this trial")
    audit_help = "with --plot: read decisions from the operator's log; - reads standard input"
    parser.add_argument("--audit", metavar="FILE", help=audit_help)


def _add_pipeline(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="name of the pipeline; default: the only one")
    namespace_help = "Kubernetes namespace; default: that of kubectl's current context"
    command.add_argument("-n", "--namespace", metavar="NS", help=namespace_help)


def _add_target(command: argparse.ArgumentParser) -> None:
    target = command.add_mutually_exclusive_group()
    target.add_argument("--url", help="URL of a running gateway, for example http://127.0.0.1:8000")
    target.add_argument("--file", metavar="FILE", help="start a pipeline from this file")


def _add_load(load: argparse._ArgumentGroup) -> None:
    def add(group: argparse._ArgumentGroup, option: str, metavar: str, text: str, **options: Any) -> None:
        group.add_argument(option, metavar=metavar, help=text, **options)

    closed = "closed loop: number of concurrent clients (default 1,2,4,8 unless --rate is given)"
    add(load, "--concurrency", "N[,N...]", closed, type=_list(int))
    add(load, "--rate", "R[,R...]", "open loop: requests per second on average (Poisson arrivals)", type=_list(float))
    overload = "instead: find the capacity, then load the pipeline with 0.5 to 10 times as much for --duration each"
    load.add_argument("--overload", action="store_true", help=overload)
    length = load.add_mutually_exclusive_group()
    add(length, "--duration", "S", "seconds per load point; default 30", type=_positive(float), default=30.0)
    add(length, "--requests", "N", "requests per load point, instead of a duration", type=_positive(int))
    add(
        load,
        "--warmup",
        "N",
        "requests before the first load point; default 3",
        type=_checked(int, lambda number: number >= 0, ": expected an integer from 0"),
        default=3,
    )
    load.add_argument("--seed", type=int, default=0, help="random seed of arrivals, texts and voices; default 0")
    add(load, "--voices", "V[,V...]", "voices to cycle through; default: all", type=lambda text: tuple(text.split(",")))


def _checked(kind: type[_Number], accepts: Callable[[_Number], bool], problem: str) -> Callable[[str], _Number]:
    """Returns a parser of accepted numbers. `problem` follows the text in the error message."""

    def parse(text: str) -> _Number:
        with contextlib.suppress(ValueError):
            if accepts(number := kind(text)):
                return number
        raise argparse.ArgumentTypeError(f"{text!r}{problem}")

    return parse


def _positive(kind: type[_Number]) -> Callable[[str], _Number]:
    noun = "an integer" if kind is int else "a number"
    return _checked(kind, lambda number: 0 < number < math.inf, f": expected {noun} above 0")


def _name(text: str) -> str:
    """Parses the name of a pipeline."""
    try:
        return msgspec.convert({"name": text}, Metadata).name
    except msgspec.ValidationError:
        accepted = "up to 40 lower-case letters, digits and '-', starting with a letter"
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; expected {accepted}") from None


def _list(kind: type[_Number]) -> Callable[[str], tuple[_Number, ...]]:
    return lambda text: tuple(_positive(kind)(part) for part in text.split(","))
