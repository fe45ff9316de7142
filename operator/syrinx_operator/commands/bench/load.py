"""Loads on a gateway: closed loop (fixed number of clients), open loop (fixed arrival times), and live listeners."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from msgspec import Struct

from syrinx_operator.commands.bench.playback import PlaybackRecorder
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.client import SpeechClient, SpeechError

PAUSE_AFTER_ERROR = 0.5
"""Seconds that a client or listener waits after a failed request."""

AWAKE_SECONDS = 0.006
"""Busy-wait before a request is due, because timers of some machines are milliseconds late."""

Send = Callable[[int, float], Awaitable[Outcome]]
"""Sends request number n (from 0) that is due at this `time.monotonic()`."""


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
                    recorder.add(time.monotonic() - due, piece)
        except SpeechError as error:
            return Outcome(error=error.kind)
        return Outcome(playback=recorder.playback()) if recorder.has_audio else Outcome(error="no audio")

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
    begin = time.monotonic()
    sent = 0

    async def one_client() -> None:
        nonlocal sent
        while not limit.reached(sent, time.monotonic() - begin):
            number, sent = sent, sent + 1
            outcome = await send(number, time.monotonic())
            outcomes.append(outcome)
            if outcome.error is not None:
                await asyncio.sleep(PAUSE_AFTER_ERROR)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one_client())
    return outcomes, time.monotonic() - begin


async def open_loop(send: Send, arrivals: Sequence[float]) -> tuple[list[Outcome], float]:
    """Sends each request when it is due, independently of other requests. Returns outcomes and wall time in seconds.

    Latency counts from the due time, so that a delay of the load generator is not hidden.
    """
    begin = time.monotonic()

    async def one_request(number: int, due: float) -> Outcome:
        return await send(number, due)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, at in enumerate(arrivals):
            await _sleep_until(begin + at)
            tasks.append(group.create_task(one_request(number, begin + at)))
    return [task.result() for task in tasks], time.monotonic() - begin


async def _sleep_until(due: float) -> None:
    await asyncio.sleep(due - AWAKE_SECONDS - time.monotonic())
    while time.monotonic() < due:  # noqa: ASYNC110  A busy-wait on purpose.
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
    begin = time.monotonic()
    end = begin + seconds

    async def listen(start: float) -> None:
        await asyncio.sleep(begin + start - time.monotonic())
        while (due := time.monotonic()) < end:
            outcome = await send(next(numbers), due)
            if due - begin >= count_from:
                outcomes.append(outcome)
            playing = PAUSE_AFTER_ERROR
            if outcome.playback is not None:
                playing = due + outcome.playback.playback_end - time.monotonic()
            await asyncio.sleep(min(max(0.0, playing), max(0.0, end - time.monotonic())))

    async with asyncio.TaskGroup() as group:
        for start in starts:
            group.create_task(listen(start))
    return outcomes, time.monotonic() - begin
