"""Sends requests: closed loop (so many clients) and open loop (so many a second, come what may)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
from msgspec import Struct

from syrinx_operator.commands.bench.playback import PlaybackRecorder
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.client import SpeechError, speech

PAUSE_AFTER_ERROR = 0.5
"""Seconds a closed-loop client waits after a failure, so that refusals do not become a storm."""

Speak = Callable[[int, float], Awaitable[Outcome]]
"""Sends request number n (from 0), which was due at this `time.monotonic()`."""


class Limit(Struct, frozen=True):
    """When a point has sent its last request: after so many requests, or so many seconds."""

    requests: int | None = None
    seconds: float | None = None

    def reached(self, sent: int, elapsed: float) -> bool:
        """Whether request number `sent` (from 0), `elapsed` seconds after the start, is one too many."""
        return (self.requests is not None and sent >= self.requests) or (
            self.seconds is not None and elapsed >= self.seconds
        )


class Script(Struct, frozen=True):
    """What is said: request n is the same in every run with the same seed."""

    texts: Sequence[str]
    voices: Sequence[str]
    seed: int

    def body(self, number: int) -> dict[str, object]:
        """The request's JSON. Voices go round; texts come in a seeded order, each as often as any other."""
        turn, place = divmod(number, len(self.texts))
        order = random.Random(f"{self.seed}:{turn}").sample(range(len(self.texts)), len(self.texts))
        body: dict[str, object] = {
            "input": self.texts[order[place]],
            "response_format": "pcm",
            "stream": True,
            "stream_format": "audio",
            "seed": self.seed + number,
        }
        if self.voices:
            body["voice"] = self.voices[number % len(self.voices)]
        return body


def speaker(client: httpx.AsyncClient, script: Script) -> Speak:
    """Sends the script's requests and listens to the answers."""

    async def speak(number: int, due: float) -> Outcome:
        recorder = PlaybackRecorder()
        try:
            async with speech(client, script.body(number)) as pieces:
                async for piece in pieces:
                    recorder.add(time.monotonic() - due, piece)
        except SpeechError as error:
            return Outcome(error=error.kind)
        return Outcome(playback=recorder.playback()) if recorder.has_audio else Outcome(error="no audio")

    return speak


def poisson(rate: float, seed: int, limit: Limit) -> list[float]:
    """When requests are sent, in seconds from the start: a Poisson process of `rate` a second up to the limit."""
    chance = random.Random(f"{seed}:{rate}")
    times: list[float] = []
    at = chance.expovariate(rate)
    while not limit.reached(len(times), at):
        times.append(at)
        at += chance.expovariate(rate)
    return times


async def closed_loop(speak: Speak, clients: int, limit: Limit) -> tuple[list[Outcome], float]:
    """Every client sends its next request when its last has ended. Returns outcomes and wall seconds."""
    outcomes: list[Outcome] = []
    begin = time.monotonic()
    sent = 0

    async def one_client() -> None:
        nonlocal sent
        while not limit.reached(sent, time.monotonic() - begin):
            number, sent = sent, sent + 1
            outcome = await speak(number, time.monotonic())
            outcomes.append(outcome)
            if outcome.error is not None:
                await asyncio.sleep(PAUSE_AFTER_ERROR)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one_client())
    return outcomes, time.monotonic() - begin


async def open_loop(speak: Speak, arrivals: Sequence[float]) -> tuple[list[Outcome], float]:
    """Sends each request when it is due and counts from then, whatever became of the others.

    A request that this machine sent late was late for its recorder too. Returns outcomes and wall seconds.
    """
    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, at in enumerate(arrivals):
            await asyncio.sleep(begin + at - time.monotonic())
            tasks.append(group.create_task(_speak(speak, number, begin + at)))
    return [task.result() for task in tasks], time.monotonic() - begin


async def _speak(speak: Speak, number: int, due: float) -> Outcome:
    return await speak(number, due)
