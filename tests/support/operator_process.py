"""Runs the operator as a real process against the emulated cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import sys
from typing import Any

import httpx

from support.http_client import HTTP
from support.operator import SECONDS, Answer, RunningOperator
from syrinx_operator.local import die_with_parent

_NUMBERS = itertools.count(1)


class OperatorProcess(RunningOperator):
    """`kopf run` as in the operator's image."""

    def __init__(self, *arguments: Any, **environment: str) -> None:
        super().__init__(*arguments, **{"SYRINX_PORT": "0", **environment})
        self._log = self.directory / f"{self.name}-{next(_NUMBERS)}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def code(self) -> int | None:
        return self.running.returncode

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        """The port that its log says. Raises httpx.ConnectError before it does."""
        if found := re.search(r"/readyz on port (\d+)", self.log):
            return int(found[1])
        raise httpx.ConnectError("the operator does not listen yet")

    async def start(self) -> None:
        command = ("-m", "kopf", "run", "--standalone", "-m", "syrinx_operator.main", *self.scope)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        kubeconfig = {"KUBECONFIG": str(self.cluster.kubeconfig(self.directory / "kubeconfig"))}
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, *command,
                env={**inherited, **kubeconfig, **self.environment}, stdout=log, stderr=log,
            )  # fmt: skip

    async def stop(self) -> None:
        if self.code is None:
            self.running.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(SECONDS):
                    await self.running.wait()
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
