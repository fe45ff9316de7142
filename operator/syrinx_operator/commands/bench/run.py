"""Runs a benchmark: warm-up, then each load point."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from importlib.resources import files

from msgspec import Struct

from syrinx_operator.commands.bench.loadgen import Limit, Script, Send, closed_loop, make_sender, open_loop, poisson
from syrinx_operator.commands.bench.report import Report
from syrinx_operator.commands.bench.stats import Loop, Outcome, Point, summarize
from syrinx_operator.commands.client import SpeechError, connect, voices
from syrinx_operator.local.machine import describe, publishable_pipeline, revision
from syrinx_operator.resource.spec import TTSPipeline


class BenchPlan(Struct, frozen=True, kw_only=True):
    """The load points of a benchmark."""

    concurrency: tuple[int, ...]
    rates: tuple[float, ...]
    limit: Limit
    """Limit of each load point."""
    warmup: int
    """Requests before the first load point, which are not measured."""
    seed: int
    voices: tuple[str, ...]
    """Voices to cycle through. Default: all voices of the server."""


async def bench(
    url: str, plan: BenchPlan, pipeline: TTSPipeline | None, command: str, done: Callable[[Point], None]
) -> Report:
    """Measures each load point at `url` and passes it to `done`. Raises `SpeechError` if the warm-up fails."""
    async with connect(url) as client:
        script = Script(corpus(), plan.voices or tuple(await voices(client)), plan.seed)
        send = make_sender(client, script)
        await _warm_up(send, plan.warmup)
        points = []
        for clients in plan.concurrency:
            outcomes, wall = await closed_loop(send, clients, plan.limit)
            points.append(summarize(Loop.CLOSED, clients, outcomes, wall))
            done(points[-1])
        for rate in plan.rates:
            outcomes, wall = await open_loop(send, poisson(rate, plan.seed, plan.limit))
            points.append(summarize(Loop.OPEN, rate, outcomes, wall))
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
    """Returns 100 sentences of 2 to 27 words, the shortest first."""
    return files("syrinx_operator.commands.bench").joinpath("corpus.txt").read_text("utf-8").split("\n")[:-1]


async def _warm_up(send: Send, count: int) -> None:
    outcomes: list[Outcome] = (await closed_loop(send, 1, Limit(requests=count)))[0] if count else []
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        raise SpeechError(
            failed[0], f"{len(failed)} of {count} warm-up requests failed: {', '.join(sorted(set(failed)))}"
        )
