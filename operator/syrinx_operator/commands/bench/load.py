"""The load generator: closed loop (fixed number of clients), open loop (fixed arrival times), bursts and listeners."""

import asyncio
import gc
import itertools
import math
import os
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Self

import numpy as np
from msgspec import Struct, structs

from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.commands.bench.stats import Outcome, PlaybackRecorder
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_stages.processes import die_with_parent

PAUSE_AFTER_ERROR = 0.5
"""Seconds that a client or listener waits after a failed request."""

AWAKE_SECONDS = 0.006
"""Busy-wait before a request is due, because timers of some machines are milliseconds late."""

Send = Callable[[int, float], Coroutine[Any, Any, Outcome]]
"""Sends request number n (from 0) that is due at this time of the event loop."""

RATE_PER_WORKER = 10
"""Requests per second of an open loop per worker."""
LEAD_SECONDS = 0.3
"""From sending the tasks to the workers' common start."""
_HEADER_BYTES = 8

Load = Callable[[Send], Awaitable[tuple[list[Outcome], float]]]
Task = Callable[[], Coroutine[Any, Any, "LoadResult"]]


class Limit(Struct, frozen=True):
    """The end of a load point: after a number of requests, or of seconds."""

    requests: int | None = None
    seconds: float | None = None

    def reached(self, sent: int, elapsed: float) -> bool:
        """Returns whether no further request is sent after `sent` requests and `elapsed` seconds."""
        return (self.requests is not None and sent >= self.requests) or (
            self.seconds is not None and elapsed >= self.seconds
        )


class Script(Struct, frozen=True):
    """The requests of a benchmark. Request n is the same in all runs with the same seed."""

    texts: Sequence[str]
    voices: Sequence[str]
    seed: int
    fields: Sequence[dict[str, object]] = ()
    """Additional fields of the requests of each text."""

    def body(self, number: int) -> dict[str, object]:
        """Returns the JSON of a request. Cycles through voices, and through texts in a random order."""
        turn, index = divmod(number, len(self.texts))
        text = random.Random(f"{self.seed}:{turn}").sample(range(len(self.texts)), len(self.texts))[index]
        body: dict[str, object] = {
            "input": self.texts[text],
            "response_format": "pcm",
            "stream": True,
            "stream_format": "audio",
            "seed": self.seed + number,
        }
        if self.voices:
            body["voice"] = self.voices[number % len(self.voices)]
        return body | (self.fields[text] if self.fields else {})


def corpus() -> list[str]:
    """Returns 100 sentences of 2 to 27 words, the shortest first."""
    return files("syrinx_operator.commands.bench").joinpath("corpus.txt").read_text("utf-8").split("\n")[:-1]


def make_sender(client: SpeechClient, script: Script) -> Send:
    """Returns a function that sends a request of the script and measures its playback."""

    async def send(number: int, due: float) -> Outcome:
        recorder = PlaybackRecorder()
        try:
            async with client.speech(script.body(number)) as pieces:
                async for piece in pieces:
                    recorder.add(monotonic() - due, piece)
        except SpeechError as error:
            return Outcome(error=error.kind, due=due, seconds=monotonic() - due)
        playback = recorder.playback()
        return Outcome(playback, None if playback else "no audio", due, monotonic() - due)

    return send


def poisson(rate: float, seed: int, limit: Limit) -> list[float]:
    """Returns arrival times in seconds from the start: a Poisson process of `rate` per second up to the limit."""
    generator = random.Random(f"{seed}:{rate}")
    times: list[float] = []
    at = generator.expovariate(rate)
    while not limit.reached(len(times), at):
        times.append(at)
        at += generator.expovariate(rate)
    return times


async def closed_loop(send: Send, clients: int, limit: Limit) -> tuple[list[Outcome], float]:
    """Each client sends its next request when the last one has ended. Returns outcomes and wall time in seconds."""
    outcomes: list[Outcome] = []
    begin = monotonic()
    sent = 0

    async def one_client() -> None:
        nonlocal sent
        while not limit.reached(sent, monotonic() - begin):
            number, sent = sent, sent + 1
            outcome = await send(number, monotonic())
            outcomes.append(outcome)
            if outcome.error is not None:
                await asyncio.sleep(PAUSE_AFTER_ERROR)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one_client())
    return outcomes, monotonic() - begin


async def open_loop(send: Send, arrivals: Sequence[float], awake: float = AWAKE_SECONDS) -> tuple[list[Outcome], float]:
    """Sends each request when it is due, independently of other requests. Returns outcomes and wall time in seconds.

    Latency counts from the due time, so that a delay of the load generator is not hidden. `awake`: seconds of busy-wait
    before each request; 0 leaves the CPU to a pipeline on the same cores.
    """
    begin = monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, at in enumerate(arrivals):
            await _sleep_until(begin + at, awake)
            tasks.append(group.create_task(send(number, begin + at)))
    return [task.result() for task in tasks], monotonic() - begin


async def _sleep_until(due: float, awake: float) -> None:
    await asyncio.sleep(due - awake - monotonic())
    while awake and monotonic() < due:  # noqa: ASYNC110  A busy-wait on purpose.
        await asyncio.sleep(0)


async def live_loop(
    send: Send, starts: Sequence[float], count_from: float, seconds: float
) -> tuple[list[Outcome], float]:
    """Runs listeners that play one utterance after the other in real time. Returns outcomes and wall time in seconds.

    A listener starts at each of `starts`; no utterance is requested after `seconds`. Utterances requested before
    `count_from` are not among the outcomes, because not all listeners have started. All in seconds from the start.
    """
    outcomes: list[Outcome] = []
    numbers = itertools.count()
    begin = monotonic()
    end = begin + seconds

    async def listen(start: float) -> None:
        await asyncio.sleep(begin + start - monotonic())
        while (due := monotonic()) < end:
            outcome = await send(next(numbers), due)
            if due - begin >= count_from:
                outcomes.append(outcome)
            playing = PAUSE_AFTER_ERROR
            if outcome.playback is not None:
                playing = due + outcome.playback.playback_end - monotonic()
            await asyncio.sleep(min(max(0.0, playing), max(0.0, end - monotonic())))

    async with asyncio.TaskGroup() as group:
        for start in starts:
            group.create_task(listen(start))
    return outcomes, monotonic() - begin


class GeneratorError(Exception):
    """A worker has died, or no request of the warm-up succeeded."""


class GeneratorStats(Struct, frozen=True):
    """Shows whether the generator kept up, because it must not be the bottleneck."""

    processes: int
    cpu_share: float
    """CPU use of the busiest worker, as a share of one core."""
    late_p99_ms: float
    """How late requests were sent; of the worker with the longest delays."""


class LoadResult(Struct, frozen=True):
    """The result of a load."""

    outcomes: list[Outcome]
    wall_seconds: float
    generator: GeneratorStats


class LoadGenerator:
    """Loads the gateways at `urls` from this process, or with more than one worker from as many processes.

    Use as `async with`. All loads raise `GeneratorError` if a worker dies.
    """

    def __init__(self, urls: Sequence[str], script: Script, workers: int = 1) -> None:
        self._urls = urls
        self._script = script
        self._count = workers
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        module = (sys.executable, "-c", f"from {__name__} import main; main()")
        pipe = asyncio.subprocess.PIPE
        for _ in range(self._count if self._count > 1 else 0):
            command = (sys.executable, die_with_parent.__file__, str(os.getpid()), *module)
            self._processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def open(self, rate: float, limit: Limit, awake: float = AWAKE_SECONDS) -> LoadResult:
        """Runs Poisson arrivals of `rate` requests per second. `awake`: see `open_loop`."""
        arrivals = poisson(rate, self._script.seed, limit)
        # Low rates use few workers, so that connections are reused before they expire.
        workers = min(self._count, math.ceil(rate / RATE_PER_WORKER))
        return await self._run(
            [partial(open_loop, arrivals=arrivals[index::workers], awake=awake) for index in range(workers)]
        )

    async def closed(self, clients: int, limit: Limit) -> LoadResult:
        """Runs a fixed number of clients."""
        workers = min(self._count, clients)

        def share(index: int) -> Limit:
            return structs.replace(limit, requests=limit.requests and len(range(index, limit.requests, workers)))

        parts = [len(range(index, clients, workers)) for index in range(workers)]
        return await self._run(
            [partial(closed_loop, clients=part, limit=share(index)) for index, part in enumerate(parts)]
        )

    async def bursts(self, requests: int, times: Sequence[float]) -> LoadResult:
        """Sends this number of requests at once at each of `times`, in seconds from the start."""
        arrivals = [at for at in times for _ in range(requests)]
        workers = min(self._count, requests)
        return await self._run([partial(open_loop, arrivals=arrivals[index::workers]) for index in range(workers)])

    async def live(self, listeners: int, ramp_up: float, hold: float) -> LoadResult:
        """Runs listeners that start within `ramp_up` seconds and stay for `hold` more."""
        rng = random.Random(f"{self._script.seed}:{listeners}")
        starts = [rng.uniform(0, ramp_up) for _ in range(listeners)]
        workers = min(self._count, listeners)
        live = partial(live_loop, count_from=ramp_up, seconds=ramp_up + hold)
        result = await self._run([partial(live, starts=starts[index::workers]) for index in range(workers)])
        return structs.replace(result, wall_seconds=result.wall_seconds - ramp_up)

    async def _run(self, loads: Sequence[Load]) -> LoadResult:
        # The event loops of all processes of a machine have the same clock.
        start = monotonic() + (LEAD_SECONDS if self._processes else 0.0)
        urls = itertools.cycle(self._urls)
        tasks = [
            partial(_run_task, next(urls), self._script, index, len(loads), start, load)
            for index, load in enumerate(loads)
        ]
        if not self._processes:
            return await tasks[0]()
        results = await asyncio.gather(*map(_run_in, self._processes, tasks))
        stats = [result.generator for result in results]
        cpu_share, late = max(each.cpu_share for each in stats), max(each.late_p99_ms for each in stats)
        return LoadResult(
            outcomes=[outcome for result in results for outcome in result.outcomes],
            wall_seconds=max(result.wall_seconds for result in results),
            generator=GeneratorStats(len(stats), cpu_share, late),
        )


async def _run_in(process: asyncio.subprocess.Process, task: Task) -> LoadResult:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(pickle.dumps(task))
    try:
        size = int.from_bytes(await process.stdout.readexactly(_HEADER_BYTES))
        result: LoadResult = pickle.loads(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        raise GeneratorError(f"a worker of the load generator exited with status {await process.wait()}") from None
    return result


async def _run_task(url: str, script: Script, first: int, stride: int, start: float, load: Load) -> LoadResult:
    """Runs a worker's share of a load: requests first, first + stride, ..., which no other worker sends."""
    delays = [0.0]
    async with SpeechClient(url) as client:
        sender = make_sender(client, script)

        async def send(number: int, due: float) -> Outcome:
            delays.append(max(0.0, monotonic() - due))
            return await sender(first + number * stride, due)

        await asyncio.sleep(start - monotonic())
        cpu = time.process_time()
        outcomes, wall = await load(send)
        cpu_share = (time.process_time() - cpu) / wall
    return LoadResult(outcomes, wall, GeneratorStats(1, cpu_share, 1000 * float(np.quantile(delays, 0.99))))


def main() -> None:
    """Runs a worker process: reads pickled tasks from stdin and writes results to stdout, until it is killed."""
    while True:
        task: Task = pickle.load(sys.stdin.buffer)
        gc.collect()
        gc.disable()  # A collection would delay all listeners at once.
        result = pickle.dumps(asyncio.run(task()))
        gc.enable()
        sys.stdout.buffer.write(len(result).to_bytes(_HEADER_BYTES) + result)
        sys.stdout.buffer.flush()
