"""Supervises a stage process: starts it, waits until it is ready, logs its output, restarts and stops it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from syrinx_operator.local.backoff import Backoff
from syrinx_operator.local.events import Event, Observer, describe_exit, exited, missing, ready, stopped
from syrinx_operator.local.files import write_atomically
from syrinx_operator.resource.stage_config import LocalError, StageProcess
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.processes import die_with_parent

PROBE_SECONDS = 0.05
TAIL_LINES = 12
_LINE_BYTES = 64 * 1024


class Announcement(Struct, frozen=True):
    """The line that a stage prints to stdout when its HTTP server is bound."""

    url: str
    admin_url: str
    """URL of its health and metrics."""
    settings_url: str = ""
    """URL of its settings; empty without a token."""


def at_its_ports(config: StageConfig, announced: Announcement) -> StageConfig:
    """Returns the configuration with which a process listens again where it does."""
    ports = {"admin_port": urlsplit(announced.admin_url).port}
    if announced.settings_url:
        ports["settings_port"] = urlsplit(announced.settings_url).port
    if announced.url != announced.admin_url:
        ports["port"] = urlsplit(announced.url).port
    return msgspec.structs.replace(config, **ports)


class Child:
    """A stage process that is restarted until it is stopped.

    A process that never became ready is not restarted; `ready` raises its error.
    """

    def __init__(
        self,
        process: StageProcess,
        *,
        directory: Path,
        environment: Mapping[str, str],
        observe: Observer,
        start_timeout: float,
        is_served: Callable[[Stage], bool] = lambda stage: False,
        command: Sequence[str] | None = None,
    ) -> None:
        """`is_served` returns whether another replica of the stage is ready, so that a restart may wait for longer.

        `command` is followed by the path of the config file. Default: the stage's module.
        """
        self.stage = process.stage
        self.name = process.config.replica
        self.is_ready = False
        self.restarts = 0
        self.url: str | None = None
        self.admin_url: str | None = None
        self.settings_url: str | None = None
        """URLs of its API, of its health and metrics, and of its settings. They do not change on restarts."""
        self.config_file = directory / f"{self.name}.json"
        self._settings_file = directory / f"{self.name}.settings.json"
        self._settings_file.unlink(missing_ok=True)  # Left by an earlier run.
        self.config = msgspec.structs.replace(process.config, settings_file=str(self._settings_file))
        self.pid: int | None = None
        self.drain_seconds = process.config.drain_seconds
        self.is_standby = bool(process.config.standby_of)
        self._log_file = directory / f"{self.name}.log"
        self._environment = dict(environment)
        self._observe = observe
        self._start_timeout = start_timeout
        self._is_served = is_served
        self._command = list(command or (sys.executable, "-m", f"syrinx_stages.{process.stage}"))
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._code = 0
        self._started_at = 0.0
        self._ready_at: float | None = None
        """When the running process became ready."""
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[LocalError | None] | None = None

    def save_settings(self, body: Mapping[str, Any]) -> None:
        """Saves the body of `PUT /settings/STAGE`, which a restarted process applies. Raises `OSError`."""
        write_atomically(self._settings_file, msgspec.json.encode(body))

    def start(self) -> None:
        """Starts the process and its supervision."""
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def ready(self) -> None:
        """Waits until the process is ready. Raises `LocalError` with its last output if it cannot start."""
        assert self._task is not None, "call start() first"
        waiting = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._ready.is_set():
            raise self._task.result() or LocalError(f"{self.name} was stopped before it was ready")

    async def stop(self, grace: float) -> None:
        """Sends SIGTERM, so that the process drains, and SIGKILL after `grace` seconds. Idempotent."""
        if self._task is None or self._stopping.is_set():
            return
        self._stopping.set()
        running, begin = self.pid is not None, time.monotonic()
        if running:
            self._observe(Event("stopping", self.name, "draining"))
            self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._task}, timeout=grace)
        if not done:
            self.kill()
            await asyncio.wait({self._task})
        if running:
            self._observe(stopped(self.name, self._code, time.monotonic() - begin))

    def kill(self) -> None:
        """Kills the process without a restart."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _supervise(self) -> LocalError | None:
        backoff = Backoff()
        with self._log_file.open("w", encoding="utf-8", buffering=1) as log:
            while True:
                self._started_at, self._ready_at = time.monotonic(), None
                self._code = await self._run_once(log)
                if self._stopping.is_set():
                    return None
                if not self._ready.is_set():
                    if self.is_standby:
                        # Nobody waits for it.
                        self._observe(missing(self.name, self._code, self._tail[-1] if self._tail else ""))
                    output = "\n".join(f"  {line}" for line in self._tail) or "  (none)"
                    return LocalError(f"{self.name} could not start ({describe_exit(self._code)}). Output:\n{output}")
                was_ready = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
                delay = backoff.delay(self._code, was_ready, alone=not self._is_served(self.stage))
                self._observe(exited(self.name, self._code, delay))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)
                    return None
                self.restarts += 1

    async def _run_once(self, log: TextIO) -> int:
        """Runs the process once and returns its exit code (negative: the signal that killed it)."""
        self._observe(Event("starting", self.name, "starting"))
        self.config_file.write_bytes(msgspec.json.encode(self.config))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, die_with_parent.__file__, str(os.getpid()), *self._command, str(self.config_file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C must not reach the stages: they are stopped in order.
        )
        assert process.stdout is not None and process.stderr is not None
        self.pid = process.pid
        announced = asyncio.get_running_loop().create_future()
        readers = [
            asyncio.create_task(self._read(process.stdout, log, announced)),
            asyncio.create_task(self._read(process.stderr, log)),
        ]
        probe = asyncio.create_task(self._probe(announced))
        try:
            if self._stopping.is_set():
                self.kill()
            code = await process.wait()
            await asyncio.wait(readers, timeout=1.0)
            return code
        finally:
            self._signal(signal.SIGKILL)
            self.is_ready = False
            self.pid = None
            for task in (probe, *readers):
                task.cancel()

    async def _read(
        self, stream: asyncio.StreamReader, log: TextIO, announced: asyncio.Future[Announcement] | None = None
    ) -> None:
        async for line in _lines(stream):
            if announced is not None and not announced.done() and line.startswith("{"):
                with contextlib.suppress(msgspec.DecodeError):
                    announced.set_result(msgspec.json.decode(line, type=Announcement))
                    continue
            self._tail.append(line)
            log.write(line + "\n")
            self._observe(Event("log", self.name, line))

    async def _probe(self, announced: asyncio.Future[Announcement]) -> None:
        """Waits until the process is ready, and kills it after the timeout."""
        try:
            async with (
                asyncio.timeout(self._start_timeout),
                httpx.AsyncClient(timeout=2.0, trust_env=False, verify=False) as client,
            ):
                urls = await announced
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(f"{urls.admin_url}/readyz")).status_code == httpx.codes.OK:
                            break
                    await asyncio.sleep(PROBE_SECONDS)
        except TimeoutError:
            self._tail.append(f"not ready within {self._start_timeout:g} s")
            self._signal(signal.SIGKILL)
            return
        self.url, self.admin_url, self.settings_url = urls.url, urls.admin_url, urls.settings_url
        self.config = at_its_ports(self.config, urls)
        self.is_ready, self._ready_at = True, time.monotonic()
        self._ready.set()
        self._observe(ready(self.name, urls.url, self._ready_at - self._started_at))


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the lines of a stream. Splits lines that are too long."""
    rest = b""
    while data := await stream.read(_LINE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) >= _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", "replace")
