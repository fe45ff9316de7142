"""The command line of the service benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from gpu import RESULTS, plan
from gpu.checkpoint import SIZES
from gpu.plan import Plan, Ramp
from gpu.system import Setup


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises SystemExit for invalid arguments."""
    defaults = Setup(model=None, device="cuda")
    parser = argparse.ArgumentParser(prog="python -m gpu.service", description="Measure the service end to end.")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZES, default="1b7", help="real shapes, random weights (default: 1b7)")
    model.add_argument("--model", help="checkpoint directory; the model ends the utterances")
    model.add_argument("--random-model", help="directory written by gpu.checkpoint")
    model.add_argument("--bundled", action="store_true", help="the bundled voice")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="engine of the talker")
    topology = parser.add_mutually_exclusive_group()
    topology.add_argument("--colocated", action="store_true", help="run talker and codec in one process")
    topology.add_argument("--two-gpus", action="store_true", help="run the talker on GPU 0 and the codec on GPU 1")
    topology.add_argument("--mps", action="store_true", help="run both under CUDA's multi-process service")
    topology.add_argument("--paced", action="store_true", help="simulate the engines' timing, without a GPU")
    parser.add_argument(
        "--voices", type=_names, default=(), help="voices to cycle through (default: all of the service)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter load points: two minutes")
    parser.add_argument(
        "--only", type=_names, default=plan.LOOPS, help="loops to run, of open,closed,live (default: all)"
    )
    parser.add_argument("--rates", type=_numbers, default=(), help="requests per second, such as 1,20,80")
    parser.add_argument("--concurrency", type=_counts, default=(), help="concurrent clients, such as 1,4,64")
    parser.add_argument("--ramp", type=_counts, help="chunk ramp of points with few streams, such as 2,2,4,8,12")
    parser.add_argument("--busy-ramp", type=_counts, help="chunk ramp of points with many streams")
    parser.add_argument("--live-start", type=int, help="number of listeners that the search starts with")
    parser.add_argument("--gateways", type=int, default=defaults.gateways)
    parser.add_argument("--generators", type=int, default=4, help="worker processes of the load generator (default: 4)")
    parser.add_argument("--talker-rows", type=int, default=defaults.talker_rows)
    parser.add_argument("--codec-rows", type=int, default=defaults.codec_rows)
    parser.add_argument(
        "--resident", type=int, default=defaults.resident, help="maximum number of streams resident in a stage"
    )
    parser.add_argument(
        "--lead-limit",
        dest="lead_limit_seconds",
        metavar="SECONDS",
        type=float,
        default=defaults.lead_limit_seconds,
        help="seconds that a stream may run ahead of playback",
    )
    parser.add_argument("--capture-rows", type=_counts, default=defaults.capture_rows)
    parser.add_argument("--capture-frames", type=_counts, default=defaults.capture_frames)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    parser.add_argument("--name", help="name of the result, NAME_service.json (default: from GPU and size)")
    args = parser.parse_args(arguments)
    if set(args.only) - set(plan.LOOPS):
        parser.error(f"--only: choose from {', '.join(plan.LOOPS)}")
    if args.engine == "vllm" and (args.paced or args.colocated):
        parser.error("--engine vllm cannot be combined with --paced or --colocated")
    if args.paced:
        args.device = "cpu"
    return args


def plan_of(args: argparse.Namespace) -> Plan:
    """Returns the plan for the arguments."""
    base = plan.CPU if args.device == "cpu" and not args.paced else plan.QUICK if args.quick else plan.FULL
    selected = plan.select(base, args.only, args.rates, args.concurrency)
    if args.ramp:
        selected = structs.replace(selected, early_ramp=args.ramp)
    if args.busy_ramp:
        selected = structs.replace(selected, busy_ramp=args.busy_ramp)
    if args.live_start and selected.live:
        selected = structs.replace(selected, live=structs.replace(selected.live, start=args.live_start))
    return selected


def setup_of(args: argparse.Namespace, model: str | None) -> Setup:
    """Returns the setup for the arguments."""
    return Setup(model=model, **{name: getattr(args, name) for name in Setup.__struct_fields__ if name != "model"})


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


def _counts(text: str) -> Ramp:
    return tuple(int(part) for part in _names(text))
