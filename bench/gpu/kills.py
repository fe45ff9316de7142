"""Measures what listeners hear when the only talker and codec are killed: `python -m gpu.kills`.

Listeners play one utterance after the other in real time. Then one of the processes gets SIGKILL, once the talker and
once the codec. By default as `syrinx up` runs them; `--standby on` and `off` compare.
"""

import argparse
import asyncio
import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpu import RESULTS, plan
from gpu.monitor import Gpus
from gpu.results import Kill, KillsRun
from gpu.service import EXPECTED, add_models, model_directory
from gpu.system import Setup, System
from syrinx_operator.commands.bench.load import LoadGenerator, LoadResult
from syrinx_operator.commands.client import SpeechClient
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import describe, publishable_command, revision

RAMP_UP_SECONDS, BEFORE_SECONDS, AFTER_SECONDS = 10.0, 5.0, 25.0
"""Until all listeners have started, from then to the kill, and from the kill until no further utterance begins."""
VICTIMS = ("talker-0", "codec-0")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises SystemExit for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m gpu.kills", description="Measure kill -9 of talker and codec.")
    add_models(parser)
    parser.add_argument("--paced", action="store_true", help="simulate the engines' timing, without a GPU: gpu.paced")
    parser.add_argument("--standby", choices=("on", "off"), help="default: as syrinx up decides for this GPU")
    parser.add_argument("--listeners", type=int, default=100, help="number of listeners (default: 100)")
    parser.add_argument("--generators", type=int, default=4, help="worker processes of the load generator (default: 4)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    args = parser.parse_args(arguments)
    args.model, args.base = None, False
    return args


async def measure(args: argparse.Namespace) -> list[Kill]:
    """Measures each kill. Raises one of `gpu.service.EXPECTED`."""
    async with contextlib.AsyncExitStack() as stack:
        model, system = model_directory(args, stack), System()
        standby = None if args.standby is None else args.standby == "on"
        setup = Setup(model=model, device=args.device, paced=args.paced, standby=standby)
        await stack.enter_async_context(system.running(setup))
        async with SpeechClient(system.urls[0]) as client:
            voices = await client.voices()
        script = plan.make_script(voices, fixed_lengths=not args.bundled)
        generator = await stack.enter_async_context(LoadGenerator(system.urls, script, args.generators))
        return [await kill(system, generator, args.listeners, victim) for victim in VICTIMS]


async def kill(system: System, generator: LoadGenerator, listeners: int, victim: str) -> Kill:
    """Kills a process in front of listeners."""
    hearing = asyncio.create_task(generator.live(listeners, RAMP_UP_SECONDS, BEFORE_SECONDS + AFTER_SECONDS))
    await asyncio.sleep(RAMP_UP_SECONDS + BEFORE_SECONDS)
    pid, start = system.pids[victim], time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while not system.is_ready_again(victim, pid):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    away = time.monotonic() - start
    return _heard(victim, await hearing, away)


def _heard(victim: str, result: LoadResult, away: float) -> Kill:
    refused = sum(each.error == "http 503" for each in result.outcomes)
    played = [each.playback for each in result.outcomes if each.playback is not None and each.error is None]
    return Kill(
        killed=victim,
        utterances=len(result.outcomes),
        refused=refused,
        failed=len(result.outcomes) - len(played) - refused,
        longest_stall=max((each.longest_underrun for each in played), default=0.0),
        longest_wait=max((each.first_playable for each in played), default=0.0),
        away=away,
    )


def main() -> int:
    """Measures, prints and writes the results; returns the exit status."""
    args, gpus = parse(sys.argv[1:]), Gpus()
    try:
        kills = asyncio.run(measure(args))
    except EXPECTED as error:
        print(f"gpu.kills: {error}", file=sys.stderr)
        return 1
    print(*kills, sep="\n")
    run = KillsRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=publishable_command("python -m gpu.kills", sys.argv[1:]),
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        listeners=args.listeners,
        kills=kills,
    )
    device = "cpu" if args.paced or args.device == "cpu" else gpus.short_name()
    without = "_without_standby" if args.standby == "off" else ""
    data = msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    write_atomically(args.out / f"{device}_kills{without}.json", data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
