"""Measures how well the bundled voice is understood under load: `python -m gpu.speech`, also while stages are killed.

Held-out sentences are spoken at several numbers of concurrent requests, by the service as `syrinx up` runs it with only
the device set, and once more while codec and talker are killed. A speech recognizer says which sentences it hears.
Needs the extra `training`, and the checkout on the PYTHONPATH.
"""

import argparse
import asyncio
import datetime
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import msgspec

from gpu import RESULTS
from gpu.monitor import Gpus
from gpu.results import SpeechRun, Spoken, speech_table
from gpu.system import Setup, System
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import describe, publishable_command, revision
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.connector.server import RedisServerError
from training.data.corpus import held_out
from training.judging.intelligibility import Recognizer

CONCURRENCY = (1, 32, 128)
KILL_CONCURRENCY = 32
KILLS = {"codec-0": 0.3, "talker-0": 0.6}
"""The processes that are killed, and the share of the requests after which they are."""
REQUESTS_PER_CLIENT = 2
TIMEOUT_SECONDS = 300.0
"""For a response, the restart of a killed stage included."""


class Speakers:
    """Clients that speak the sentences in turn, several times over if there are many clients."""

    def __init__(self, url: str, sentences: Sequence[str], concurrency: int) -> None:
        self._url, self._sentences, self._concurrency = url, sentences, concurrency
        self._turn = asyncio.Semaphore(concurrency)
        self._rounds = math.ceil(REQUESTS_PER_CLIENT * concurrency / len(sentences))
        self._completed = 0
        self.on_completed: Callable[[float], None] = lambda share: None
        """Called with the share of the requests that is completed."""

    async def speak(self) -> list[bytes | None]:
        """Returns the PCM of all requests; None for an incomplete response."""
        limits = httpx.Limits(max_connections=self._concurrency)
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False, limits=limits) as http:
            rounds = [self._one(http, text, seed) for seed in range(self._rounds) for text in self._sentences]
            return await asyncio.gather(*rounds)

    async def _one(self, http: httpx.AsyncClient, sentence: str, seed: int) -> bytes | None:
        async with self._turn:
            response = await self._response(http, {"input": sentence, "voice": "us", "seed": seed})
        self._completed += 1
        self.on_completed(self._completed / self._rounds / len(self._sentences))
        return response.content if response is not None and response.is_success else None

    async def _response(self, http: httpx.AsyncClient, body: dict[str, object]) -> httpx.Response | None:
        """Repeats a refused request, as clients do, for at most `TIMEOUT_SECONDS`."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while True:
                    response = await http.post(f"{self._url}/v1/audio/speech", json={**body, "response_format": "pcm"})
                    if response.status_code != 503:
                        return response
                    await asyncio.sleep(float(response.headers.get("Retry-After", 1)))
        except (httpx.HTTPError, TimeoutError):
            return None


def understood(
    recognizer: Recognizer, audio: Sequence[bytes | None], concurrency: int, killed: Sequence[str]
) -> Spoken:
    """Recognizes the sentences, which were spoken in order."""
    sentences = recognizer.sentences
    heard = [pcm is not None and recognizer.recognize(pcm) for pcm in audio]
    right = sum(text == sentences[index % len(sentences)] for index, text in enumerate(heard))
    return Spoken(
        concurrency=concurrency,
        requests=len(audio),
        incomplete=audio.count(None),
        identified=right / len(audio),
        killed=killed,
    )


def _kill_at(system: System, shares: Mapping[str, float], killed: list[str]) -> Callable[[float], None]:
    """Returns a function that kills each process once this share of the requests is completed."""

    def kill(completed: float) -> None:
        for name, share in shares.items():
            if completed >= share and name not in killed:
                os.kill(system.pids[name], signal.SIGKILL)
                killed.append(name)

    return kill


async def measure(setup: Setup, concurrency: Sequence[int], kill: int, sentences: int) -> list[Spoken]:
    """Measures each load, and that of `kill` clients with kills. Raises `LocalError` or `RedisServerError`."""
    texts = [sentence.text for sentence in held_out("templates")][:sentences]
    recognizer, system, loads = Recognizer(texts), System(), []
    async with system.running(setup):
        for count, shares in (*((count, {}) for count in concurrency), (kill, KILLS)):
            speakers, killed = Speakers(system.urls[0], texts, count), list[str]()
            speakers.on_completed = _kill_at(system, shares, killed)
            audio = await speakers.speak()
            loads.append(understood(recognizer, audio, count, killed))
    return loads


def main() -> int:
    """Runs the benchmark. Returns 1 if it failed or a response was incomplete."""
    parser = argparse.ArgumentParser(prog="python -m gpu.speech", description="Measure how well speech is understood.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY, help="(default: 1 32 128)")
    parser.add_argument("--kill", type=int, default=KILL_CONCURRENCY, help="clients during the kills (default: 32)")
    parser.add_argument("--sentences", type=int, default=50, help="number of sentences, at most 50 (default)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result (default: bench/results)")
    args = parser.parse_args()
    if min(*args.concurrency, args.kill, args.sentences) < 1:
        parser.error("--concurrency, --kill and --sentences must be at least 1")
    try:
        loads = asyncio.run(measure(Setup(model=None, device=args.device), args.concurrency, args.kill, args.sentences))
    except (LocalError, RedisServerError) as error:
        print(f"gpu.speech: {error}", file=sys.stderr)
        return 1
    gpus = Gpus()
    run = SpeechRun(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=publishable_command("python -m gpu.speech", sys.argv[1:]),
        revision=revision(),
        machine=describe(),
        gpu=", ".join(gpus.names()) or None,
        loads=loads,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(
        args.out / f"{gpus.short_name()}_speech.json", msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    )
    print(speech_table(loads))
    return 1 if any(load.incomplete for load in loads) else 0


if __name__ == "__main__":
    sys.exit(main())
