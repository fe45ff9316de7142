"""Runs the operator, and commands, as real processes against the emulated cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx

from support.http_client import HTTP
from support.kube import KubeCluster
from support.operator import SECONDS, Answer, RunningOperator
from support.virtual import VirtualLoop
from syrinx_stages.processes import die_with_parent

_STARTS = itertools.count()


async def run(cluster: KubeCluster, directory: Path, *command: str | Path, **environment: str) -> tuple[int, str]:
    """Runs a command with the cluster's kubeconfig; returns its exit status and output."""
    loop = asyncio.get_running_loop()
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kubeconfig = str(cluster.kubeconfig(directory / "kubeconfig"))
    with loop.real() if isinstance(loop, VirtualLoop) else contextlib.nullcontext():
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "PATH": programs, "KUBECONFIG": kubeconfig, **environment},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def served_port(log: Path) -> int:
    """Returns the port of an operator's probes, which its log names. Raises httpx.ConnectError before it is bound."""
    if found := re.search(r"/readyz on port (\d+)", log.read_text()):
        return int(found[1])
    raise httpx.ConnectError("the operator does not serve yet")


class OperatorProcess(RunningOperator):
    """`kopf run` as in the operator's image."""

    def __init__(self, *arguments: Any, **environment: str) -> None:
        super().__init__(*arguments, **{"SYRINX_PORT": "0", **environment})
        self._log = self.directory / f"{self.name}-{next(_STARTS)}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def port(self) -> int:
        return served_port(self._log)

    @property
    def code(self) -> int | None:
        return self.running.returncode

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def start(self) -> None:
        command = ("-m", "kopf", "run", "--standalone", "-m", "syrinx_operator.main", *self.scope)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        kubeconfig = {"KUBECONFIG": str(self.cluster.kubeconfig(self.directory / "kubeconfig"))}
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, *command,
                env={**inherited, **kubeconfig, **self.environment}, stdout=log, stderr=log,
            )  # fmt: skip

    async def ended(self) -> None:
        """Waits until it has ended by itself."""
        async with asyncio.timeout(SECONDS):
            await self.running.wait()

    async def stop(self) -> None:
        if self.code is None:
            self.running.send_signal(signal.SIGTERM)
            try:
                await self.ended()
            except TimeoutError:
                await self.kill()
                raise AssertionError(f"the operator did not stop\n{self.output}") from None

    async def kill(self) -> None:
        if self.code is None:
            self.running.send_signal(signal.SIGKILL)
        await self.running.wait()

    def get(self, path: str) -> Answer:
        answer = HTTP.get(f"http://127.0.0.1:{self.port}{path}")
        return Answer(answer.status_code, answer.text)
