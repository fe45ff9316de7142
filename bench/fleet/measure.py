"""Runs the operator against the emulated cluster, and measures it while all pipelines are idle."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from fleet.seed import ENVIRONMENT
from syrinx_stages.connector.server import free_port
from syrinx_stages.processes import die_with_parent

QUIET_SECONDS = 20.0
"""Seconds without a write after which the pipelines are idle."""
WRITES = ("POST", "PATCH", "DELETE")


class Idle(Struct, frozen=True):
    """The operator with idle pipelines."""

    requests: dict[str, int]
    """Requests to the API server, by verb and kind."""
    secret_reads: int
    """Reads of Secrets before the measurement. They recur after minutes only."""
    seconds: float
    cpu_seconds: float
    rss_mb: float


class Cluster:
    """The process with the emulated cluster."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, *command: Any) -> Any:
        """Sends a command and returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, command)).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        """Returns the next answer."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the emulated cluster has ended")
        return json.loads(line)


async def measure(pipelines: int, namespaces: int, seconds: float) -> tuple[float, Idle]:
    """Returns the seconds until the operator reports all as ready, and the operator while they are idle."""
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        async with _cluster(kubeconfig) as cluster:
            await cluster.ask("create", pipelines, namespaces)
            print(f"{pipelines} pipelines and their pods are created", flush=True)
            started = time.monotonic()
            async with _operator(kubeconfig, Path(directory) / "log") as operator:
                await _until_ready(cluster, operator, pipelines)
                ready_seconds = time.monotonic() - started
                await _until_quiet(cluster)
                return ready_seconds, await _idle(cluster, operator.pid, seconds)


async def _until_ready(cluster: Cluster, operator: asyncio.subprocess.Process, pipelines: int) -> None:
    ready = -1
    while ready < pipelines:
        if operator.returncode is not None:
            raise RuntimeError("the operator has ended")
        await asyncio.sleep(2.0)
        if (found := await cluster.ask("ready")) != ready:
            ready = found
            print(f"{ready} pipelines are ready", flush=True)


async def _until_quiet(cluster: Cluster) -> None:
    writes, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        await asyncio.sleep(2.0)
        requests = await cluster.ask("requests")
        found = sum(count for name, count in requests.items() if name.startswith(WRITES))
        if found != writes:
            writes, since = found, time.monotonic()


async def _idle(cluster: Cluster, pid: int, seconds: float) -> Idle:
    requests, cpu, started = Counter(await cluster.ask("requests")), _cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    passed, used = time.monotonic() - started, _cpu_seconds(pid) - cpu
    after = Counter(await cluster.ask("requests"))
    return Idle(dict(sorted((after - requests).items())), requests["GET secrets"], passed, used, _rss_mb(pid))


@contextlib.asynccontextmanager
async def _cluster(kubeconfig: Path) -> AsyncIterator[Cluster]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fleet.cluster", str(kubeconfig), stdin=pipe, stdout=pipe, limit=2**20
    )
    try:
        cluster = Cluster(process)
        await cluster.answer()
        yield cluster
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _operator(kubeconfig: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ("-m", "kopf", "run", "--standalone", "-m", "syrinx_operator.main", "--all-namespaces")
    environment = os.environ | ENVIRONMENT | {"KUBECONFIG": str(kubeconfig), "SYRINX_PORT": str(free_port())}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, *command,
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    except BaseException:
        print(await asyncio.to_thread(log.read_text), file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _cpu_seconds(pid: int) -> float:
    # The name in parentheses may contain spaces; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
