"""One run: the pipeline starts, requests are recorded without faults, then load and faults run together."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec import Struct

from soak.faults import draw
from soak.inject import Injector, group, targets
from soak.load import Load, Outcome, Utterance, utterances
from soak.measure import Injected
from soak.pipeline import Pipeline
from soak.servers import Layout, Servers
from syrinx_operator.local.events import Event


class Plan(Struct, frozen=True):
    """The parameters of a run."""

    minutes: float = 20.0
    """Duration of the faults."""
    seed: int = 1
    layout: Layout = Layout.SENTINEL
    interval: float = 5.0
    """Seconds between faults."""
    groups: tuple[str, ...] = ()
    """The stages, and `primary` and `replica` of Redis, that faults are injected into; all if empty."""
    listeners: int = 3
    """Live listeners."""
    downloads: int = 1
    """Clients that download files."""
    utterances: int = 12
    """Number of different requests."""
    sentences: int = 5
    """Sentences in a request."""


class Result(Struct, frozen=True):
    """What happened in a run."""

    outcomes: Sequence[Outcome]
    injected: Sequence[Injected]
    utterances: Sequence[Utterance]


async def run(plan: Plan, directory: Path) -> Result:
    """Runs the soak; `directory` is for configurations and logs. Raises `LocalError` if the pipeline cannot start."""
    servers = Servers(plan.layout, directory)
    pipeline = Pipeline(servers, directory)
    async with servers.running(), pipeline.running(_print_event), Load(pipeline.gateways) as load:
        _print("recording the requests without faults")
        requests = utterances(plan.seed, plan.utterances, plan.sentences)
        recorded = await load.record(requests)
        injector = Injector(pipeline, servers)
        try:
            async with _clients(load, plan):
                await _inject(injector, plan, pipeline)
        finally:
            injector.resume()
    return Result(load.outcomes, injector.injected, recorded)


@contextlib.asynccontextmanager
async def _clients(load: Load, plan: Plan) -> AsyncIterator[None]:
    """Runs the clients. At the end each finishes its request."""
    stop = asyncio.Event()
    kinds = [True] * plan.listeners + [False] * plan.downloads
    async with asyncio.TaskGroup() as group:
        for number, live in enumerate(kinds):
            group.create_task(load.run_client(f"client-{number}", plan.seed, live, stop))
        try:
            yield
        finally:
            stop.set()


async def _inject(injector: Injector, plan: Plan, pipeline: Pipeline) -> None:
    """Injects a fault at every interval, and waits until the last one has ended."""
    selected = [
        each for each in targets(pipeline, plan.layout) if not plan.groups or group(each.name, pipeline) in plan.groups
    ]
    faults = draw(plan.seed, selected)
    begin = time.monotonic()
    due = begin
    while (due := due + plan.interval) < begin + 60 * plan.minutes:
        await asyncio.sleep(due - time.monotonic())
        fault = await injector.next(faults)
        _print("no fault is possible now" if fault is None else str(fault))
    await injector.end_all()


def _print_event(event: Event) -> None:
    if event.kind in ("ready", "exited", "stopped"):
        _print(f"{event.name} {event.text}")


def _print(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
