"""A bench run: warm-up, then one point after the other, then the report."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from importlib.resources import files

from msgspec import Struct

from syrinx_operator.commands.bench.loadgen import Limit, Script, Speak, closed_loop, open_loop, poisson, speaker
from syrinx_operator.commands.bench.report import Report
from syrinx_operator.commands.bench.stats import Loop, Outcome, Point, summarise
from syrinx_operator.commands.client import SpeechError, connect, voices
from syrinx_operator.local.machine import describe, publishable_pipeline, revision
from syrinx_operator.resource.spec import TTSPipeline


class BenchPlan(Struct, frozen=True, kw_only=True):
    """What to measure."""

    concurrency: tuple[int, ...]
    rates: tuple[float, ...]
    limit: Limit
    """Of each point."""
    warmup: int
    """Requests before the first point, not counted."""
    seed: int
    voices: tuple[str, ...]
    """To go round; empty takes all that the server has."""


async def bench(
    url: str, plan: BenchPlan, pipeline: TTSPipeline | None, command: str, done: Callable[[Point], None]
) -> Report:
    """Measures every point of the plan at `url`, telling `done` of each. Raises `SpeechError` if nothing speaks."""
    async with connect(url) as client:
        script = Script(corpus(), plan.voices or tuple(await voices(client)), plan.seed)
        speak = speaker(client, script)
        await _warm_up(speak, plan.warmup)
        points = []
        for clients in plan.concurrency:
            outcomes, wall = await closed_loop(speak, clients, plan.limit)
            points.append(summarise(Loop.CLOSED, clients, outcomes, wall))
            done(points[-1])
        for rate in plan.rates:
            outcomes, wall = await open_loop(speak, poisson(rate, plan.seed, plan.limit))
            points.append(summarise(Loop.OPEN, rate, outcomes, wall))
            done(points[-1])
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        pipeline=None if pipeline is None else publishable_pipeline(pipeline),
        seed=plan.seed,
        texts=len(script.texts),
        voices=list(script.voices),
        points=points,
    )


def corpus() -> list[str]:
    """A hundred sentences of 2 to 27 words, shortest first."""
    return files("syrinx_operator.commands.bench").joinpath("corpus.txt").read_text("utf-8").split("\n")[:-1]


async def _warm_up(speak: Speak, count: int) -> None:
    outcomes: list[Outcome] = (await closed_loop(speak, 1, Limit(requests=count)))[0] if count else []
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        raise SpeechError(
            failed[0], f"{len(failed)} of {count} warm-up requests failed: {', '.join(sorted(set(failed)))}"
        )
