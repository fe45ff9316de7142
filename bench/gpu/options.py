"""The command line of the service benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from gpu import plan
from gpu.checkpoint import SIZES
from gpu.plan import Plan, Ramp
from gpu.system import Setup

RESULTS = Path(__file__).parents[1] / "results"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Raises SystemExit for what it does not understand."""
    usual = Setup(model=None, device="cuda")
    parser = argparse.ArgumentParser(prog="python -m gpu.service", description="Measure the service end to end.")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZES, default="1b7", help="real shapes, random weights (default: 1b7)")
    model.add_argument("--model", help="a checkpoint's directory; utterances end where it ends them")
    model.add_argument("--random-model", help="a directory that gpu.checkpoint wrote before")
    model.add_argument("--bundled", action="store_true", help="the bundled voice")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="the talker's")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--colocated", action="store_true", help="talker and codec in one process")
    where.add_argument("--two-gpus", action="store_true", help="the talker on GPU 0, the codec on GPU 1")
    where.add_argument("--mps", action="store_true", help="both under CUDA's multi-process service")
    where.add_argument("--paced", action="store_true", help="engines that only take their time: the service alone")
    parser.add_argument("--voices", type=_names, default=(), help="to go round (default: all that the service has)")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter points: two minutes")
    parser.add_argument("--only", type=_names, default=plan.LOOPS, help="of open,closed,live")
    parser.add_argument("--rates", type=_numbers, default=(), help="requests a second, as 1,20,80")
    parser.add_argument("--concurrency", type=_counts, default=(), help="clients at once, as 1,4,64")
    parser.add_argument("--ramp", type=_counts, help="chunk ramp of points with few streams, as 2,2,4,8,12")
    parser.add_argument("--busy-ramp", type=_counts, help="chunk ramp of points with many")
    parser.add_argument("--live-start", type=int, help="listeners that the search begins with")
    parser.add_argument("--gateways", type=int, default=usual.gateways)
    parser.add_argument("--generators", type=int, default=4, help="processes of the load generator")
    parser.add_argument("--talker-rows", type=int, default=usual.talker_rows)
    parser.add_argument("--codec-rows", type=int, default=usual.codec_rows)
    parser.add_argument("--resident", type=int, default=usual.resident, help="streams that stages hold state of")
    parser.add_argument("--lead-limit", type=float, default=usual.lead_limit_seconds, help="seconds")
    parser.add_argument("--capture-rows", type=_counts, default=usual.capture_rows)
    parser.add_argument("--capture-frames", type=_counts, default=usual.capture_frames)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the result goes (default: bench/results)")
    parser.add_argument("--name", help="of the result: NAME_service.json (default: the GPU and the size)")
    given = parser.parse_args(arguments)
    if set(given.only) - set(plan.LOOPS):
        parser.error(f"--only: of {', '.join(plan.LOOPS)}")
    if given.engine == "vllm" and (given.paced or given.colocated):
        parser.error("--engine vllm: it has a process of its own, and takes the time that it takes")
    if given.paced:
        given.device = "cpu"
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """What is to be measured."""
    base = plan.CPU if given.device == "cpu" and not given.paced else plan.QUICK if given.quick else plan.FULL
    chosen = plan.only(base, given.only, given.rates, given.concurrency)
    if given.ramp:
        chosen = structs.replace(chosen, early_ramp=given.ramp)
    if given.busy_ramp:
        chosen = structs.replace(chosen, busy_ramp=given.busy_ramp)
    if given.live_start and chosen.live:
        chosen = structs.replace(chosen, live=structs.replace(chosen.live, start=given.live_start))
    return chosen


def setup_of(given: argparse.Namespace, model: str | None) -> Setup:
    """How the service is set up."""
    return Setup(
        model=model,
        device=given.device,
        engine=given.engine,
        colocated=given.colocated,
        two_gpus=given.two_gpus,
        mps=given.mps,
        paced=given.paced,
        gateways=given.gateways,
        talker_rows=given.talker_rows,
        codec_rows=given.codec_rows,
        resident=given.resident,
        lead_limit_seconds=given.lead_limit,
        capture_rows=given.capture_rows,
        capture_frames=given.capture_frames,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


def _counts(text: str) -> Ramp:
    return tuple(int(part) for part in _names(text))
