"""A `syrinx up` process with tuning, under steady load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from syrinx_operator.commands.bench.load import Limit, Script, corpus, make_sender, open_loop, poisson
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_operator.local import tuning_files
from syrinx_operator.local.running import find_running
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.state.tuning_status import State

START_SECONDS = 120.0
VOICE = "us"


class Up:
    """A `syrinx up` process with its own state directory."""

    def __init__(self, root: Path, pipeline: TTSPipeline) -> None:
        self.root = root
        self.directory = root / "syrinx" / pipeline.name
        self.log = root / "up.log"
        self._name = pipeline.name
        self._file = root / "pipeline.yaml"
        root.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(msgspec.yaml.encode(pipeline))
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_STATE_HOME": str(self.root), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "syrinx_operator", "up", str(self._file), "--port", "0", "-q"]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    @property
    def url(self) -> str:
        """URL of the gateway. Waits until it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := [each for each in find_running(self.root / "syrinx") if each.name == self._name]):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found[0].url

    @property
    def memory(self) -> tuning_files.TuningMemory | None:
        return tuning_files.load(self.directory)

    @property
    def state(self) -> State:
        memory = self.memory
        return memory.state if memory else State()

    async def until(self, condition: Callable[[State], object], what: str, seconds: float) -> State:
        """Returns the state as soon as the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition(state := self.state):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"waited {seconds} s until {what}: {self.log.read_text()}\n{state}"
            await asyncio.sleep(0.1)
        return state

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.asynccontextmanager
async def load(url: str, rate: float, seed: int, script: Script | None = None) -> AsyncIterator[list[Outcome]]:
    """Sends `rate` requests per second as a Poisson process: by default of the corpus. Yields the outcomes so far."""
    async with SpeechClient(url) as client:
        speak, outcomes = make_sender(client, script or Script(corpus(), (VOICE,), seed)), []

        async def record(number: int, due: float) -> Outcome:
            outcomes.append(await speak(number, due))
            return outcomes[-1]

        sending = asyncio.create_task(open_loop(record, poisson(rate, seed, Limit(seconds=3600))))
        try:
            yield outcomes
        finally:
            sending.cancel()
            await asyncio.wait({sending})


async def pcm(url: str, text: str, seed: int) -> bytes | None:
    """Returns the audio of a request, or None if it was refused."""
    body = {"input": text, "voice": VOICE, "response_format": "pcm", "stream": True, "seed": seed}
    try:
        async with SpeechClient(url) as client, client.speech(body) as pieces:
            return b"".join([piece async for piece in pieces])
    except SpeechError as error:
        if error.kind == "http 503":
            return None
        raise
