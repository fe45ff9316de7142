"""Runs a benchmark: warm-up, then each load point."""

import datetime
from collections.abc import Callable, Sequence

from syrinx_operator.commands.bench.load import Limit, LoadGenerator, Script, corpus
from syrinx_operator.commands.bench.report import Report
from syrinx_operator.commands.bench.stats import Loop, Point, summarize
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_operator.local.machine import describe, publishable_pipeline, revision
from syrinx_operator.resource.spec import TTSPipeline


async def bench(
    url: str,
    pipeline: TTSPipeline | None,
    command: str,
    *,
    concurrency: Sequence[int],
    rates: Sequence[float],
    limit: Limit,
    warmup: int,
    seed: int,
    voices: Sequence[str],
    done: Callable[[Point], None],
) -> Report:
    """Measures each load point at `url` and passes it to `done`. Raises `SpeechError` if the warm-up fails.

    `limit` ends each load point. `warmup` requests are sent before the first. Without `voices`, all are used.
    """
    async with SpeechClient(url) as client:
        script = Script(corpus(), voices or await client.voices(), seed)
    loads: list[tuple[Loop, float]] = [*(("closed", clients) for clients in concurrency), *(("open", r) for r in rates)]
    points = []
    async with LoadGenerator([url], script) as generator:
        if warmup:
            warm = await generator.closed(1, Limit(requests=warmup))
            if failed := [outcome.error for outcome in warm.outcomes if outcome.error is not None]:
                kinds = ", ".join(sorted(set(failed)))
                raise SpeechError(failed[0], f"{len(failed)} of {warmup} warm-up requests failed: {kinds}")
        for loop, load in loads:
            measure = generator.closed(int(load), limit) if loop == "closed" else generator.open(load, limit)
            result = await measure
            points.append(summarize(loop, load, result.outcomes, result.wall_seconds))
            done(points[-1])
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        revision=revision(),
        machine=describe(),
        pipeline=None if pipeline is None else publishable_pipeline(pipeline),
        seed=seed,
        texts=len(script.texts),
        voices=list(script.voices),
        points=points,
    )
