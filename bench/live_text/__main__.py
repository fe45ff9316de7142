"""`python -m live_text`: measures text that streams in, and writes results/live.{json,md}.

Run it in the project's root with PYTHONPATH=bench:tests:examples/agents.
"""

import argparse
import asyncio
import datetime
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from live_text.draws import Piece, cut, texts, written
from live_text.report import Report, page
from live_text.service import Heard, Service, running
from syrinx_operator.commands.bench.load import corpus
from syrinx_operator.commands.bench.report import save
from syrinx_operator.commands.bench.stats import spread
from syrinx_operator.local.machine import describe, publishable_command, revision
from syrinx_stages.contract.stages import Stage

RESULTS = Path(__file__).parents[1] / "results"
CUTS = 5
"""Ways to write each text: every second time as an LLM."""
COMPANY = 3
"""Texts that are spoken at the same time, to compare their audio."""
SLOW = 8.0
"""Factor of an LLM's times, so that the utterance is not over before a replica is killed."""
SPOKEN_SECONDS = 0.5
"""At most, before a cancellation."""


async def cuts(service: Service, drawn: Sequence[str]) -> list[bool]:
    """Returns for each way to write a text whether the audio is that of the whole one."""
    company = asyncio.Semaphore(COMPANY)

    async def of_text(text: str) -> list[bool]:
        async with company:
            generator, whole = random.Random(f"cuts {text}"), await service.speak([Piece(0.0, text)])
            ways = [(written if number % 2 else cut)(text, generator) for number in range(CUTS)]
            return [(await service.speak(pieces)).pcm == whole.pcm for pieces in ways]

    return [equal for found in await asyncio.gather(*map(of_text, drawn)) for equal in found]


async def pairs(service: Service, drawn: Sequence[str]) -> list[tuple[Heard, Heard]]:
    """Returns what is heard of each sentence as a whole request, and then while an LLM writes it."""
    ways = [written(text, random.Random(f"pairs {number} {text}")) for number, text in enumerate(drawn)]
    return [(await service.whole(text), await service.speak(pieces)) for text, pieces in zip(drawn, ways, strict=True)]


async def kills(service: Service, stage: Stage, drawn: Sequence[str]) -> int:
    """Returns for how many texts the audio is exact after the loss of a replica of a stage."""
    exact = 0
    for text in drawn:
        generator, whole = random.Random(f"kills {stage} {text}"), await service.speak([Piece(0.0, text)])
        pieces = written(text, generator, SLOW)
        at = generator.randrange(3 * len(pieces) // 4)
        exact += (await service.speak(pieces, stage, at)).pcm == whole.pcm
        await service.recovered()
    return exact


async def run(arguments: argparse.Namespace, command: str) -> Report:
    """Makes all measurements."""
    seed, drawn = arguments.seed, texts(arguments.seed, arguments.texts)
    async with running() as service:
        equal = await cuts(service, drawn)
        heard = await pairs(service, random.Random(seed).choices(corpus()[-50:], k=2 * len(drawn)))
        generator = random.Random(f"cancels {seed}")
        cancels = [await service.cancel(text, generator.uniform(0, SPOKEN_SECONDS)) for text in drawn]
        exact = {str(stage): await kills(service, stage, drawn[: len(drawn) // 4]) for stage in Stage}
    equal += [one.pcm == other.pcm for one, other in heard]
    whole, live, cancel = (
        spread([each.ttfa for each, _ in heard]),
        spread([each.ttfa for _, each in heard]),
        spread(cancels),
    )
    assert whole and live and cancel
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=revision(),
        command=command,
        machine=describe(),
        seed=seed,
        cuts=len(equal),
        cuts_equal=sum(equal),
        ttfa_over_whole=round(live.p50 / whole.p50, 3),
        ttfa={"request with the whole text": whole, "first word": live},
        cancel_ms_p95=round(1000 * cancel.p95, 2),
        cancel=cancel,
        kills=len(exact) * (len(drawn) // 4),
        kills_exact=sum(exact.values()),
        kills_exact_by_stage=exact,
    )


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m live_text", description=__doc__)
    parser.add_argument("--texts", type=int, default=40, help="a quarter also for kills of each stage (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (default: 1)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    command = publishable_command("PYTHONPATH=bench:tests:examples/agents python -m live_text", sys.argv[1:])
    report = asyncio.run(run(arguments, command))
    save(report, arguments.results / "live.json")
    (arguments.results / "live.md").write_text(page(report), encoding="utf-8")
    print(page(report))


if __name__ == "__main__":
    main()
