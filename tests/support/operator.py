"""Runs the operator as a real process against the emulated cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from support.http_client import HTTP
from support.kube import KubeCluster
from syrinx_operator.local import die_with_parent

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "ttspipelines.syrinx.dev.yaml"
START_SECONDS = 60.0
SECONDS = 60.0
"""Timeout for any step on a busy machine."""

MANAGED = "app.kubernetes.io/managed-by=syrinx-operator"
OBJECTS = (
    "statefulset",
    "deployment",
    "service",
    "configmap",
    "serviceaccount",
    "secret",
    "persistentvolumeclaim",
    "poddisruptionbudget",
    "networkpolicy",
)


def _service_port() -> int:
    """Returns a free port below those that the system gives to outgoing connections before the operator binds it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


class OperatorProcess:
    """`kopf run` as in the operator's image, with short periods. Leaving `async with` sends SIGTERM."""

    def __init__(
        self, cluster: KubeCluster, directory: Path, name: str, scope: tuple[str, ...], **environment: str
    ) -> None:
        self.cluster = cluster
        self.scope = scope
        self.name = name
        self.port = _service_port()
        self.log = directory / f"{name}-{time.monotonic_ns()}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "KUBECONFIG": str(cluster.kubeconfig(directory / "kubeconfig")),
            "POD_NAME": name,
            "SYRINX_PORT": str(self.port),
            "SYRINX_RESYNC_SECONDS": "1",
            "SYRINX_RELIST_SECONDS": "3",
            "SYRINX_MAX_BACKOFF_SECONDS": "4",
            "SYRINX_STAGE_ACCESS": "direct",
            "SYRINX_STAGES_IMAGE": "syrinx/stages:1",
            **environment,
        }

    async def __aenter__(self) -> Self:
        command = ("-m", "kopf", "run", "--standalone", "-m", "syrinx_operator.main", *self.scope)
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, die_with_parent.__file__, str(os.getpid()), sys.executable, *command,
                env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def ready(self) -> Self:
        """Waits until the operator is ready."""
        await self.until(lambda: self.get("/readyz").status_code == 200, "the operator is ready")
        return self

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Waits until `holds()` is true; `what` names it in the error."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.running.returncode is None, f"the operator ended with {self.running.returncode}\n{self.output}"
            try:
                if await asyncio.to_thread(holds):
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"not within {START_SECONDS:g} s: {what}\n{self.output}"
            await asyncio.sleep(0.05)

    def get(self, path: str) -> httpx.Response:
        return HTTP.get(f"http://127.0.0.1:{self.port}{path}")

    async def metrics(self) -> str:
        return (await asyncio.to_thread(self.get, "/metrics")).text

    async def reconciled(self, count: int) -> None:
        """Waits until the operator has finished this many more reconciles."""
        before = self.reconciles()
        await self.until(lambda: self.reconciles() >= before + count, f"{count} reconciles")

    def reconciles(self) -> float:
        """Returns how many reconciles the operator has finished."""
        samples = re.findall(r"^syrinx_operator_reconciles_total{.*} (.*)$", self.get("/metrics").text, re.MULTILINE)
        return sum(map(float, samples))

    async def kill(self) -> None:
        """Sends SIGKILL and waits for the process to end."""
        if self.running.returncode is None:
            self.running.send_signal(signal.SIGKILL)
        await self.running.wait()

    async def stop(self) -> None:
        """Sends SIGTERM and waits for the process to end."""
        if self.running.returncode is None:
            self.running.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self.running.wait()
            except TimeoutError:
                await self.kill()
                raise AssertionError(f"the operator did not stop\n{self.output}") from None

    @property
    def output(self) -> str:
        return self.log.read_text()[-6000:]


class Harness:
    """Helpers to act on the cluster and to wait for conditions."""

    def __init__(self, cluster: KubeCluster, directory: Path) -> None:
        self.cluster = cluster
        self._directory = directory
        self._processes: list[OperatorProcess] = []

    def operator(
        self, name: str = "operator-0", scope: tuple[str, ...] = ("-n", "default"), **environment: str
    ) -> OperatorProcess:
        """Returns a process to enter; the same name holds the same Leases."""
        process = OperatorProcess(self.cluster, self._directory, name, scope, **environment)
        self._processes.append(process)
        return process

    def apply(self, name: str = "demo", **spec: Any) -> dict[str, Any]:
        """Applies a pipeline like `kubectl apply --server-side`."""
        return self.cluster.apply(
            {
                "apiVersion": "syrinx.dev/v1beta1",
                "kind": "TTSPipeline",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    async def wait(self, holds: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
        try:
            return await self.cluster.wait(holds, seconds, what)
        except AssertionError as error:
            logs = "\n".join(f"--- {each.name}\n{each.output}" for each in self._processes[-2:])
            raise AssertionError(f"{error}\n{logs}") from None

    async def settled(self, name: str = "demo", seconds: float = SECONDS) -> None:
        """Waits until the newest spec is applied and the pipeline is Ready."""

        def holds() -> bool:
            pipeline = self.cluster.get("ttspipeline", name)
            observed = pipeline["status"]["observedGeneration"] == pipeline["metadata"]["generation"]
            return observed and self.condition("Ready", name)["status"] == "True"

        await self.wait(holds, f"{name} is ready", seconds)

    def condition(self, kind: str, name: str = "demo") -> dict[str, Any]:
        conditions = self.cluster.get("ttspipeline", name)["status"]["conditions"]
        return next(condition for condition in conditions if condition["type"] == kind)

    def objects(self) -> dict[str, dict[str, Any]]:
        """Returns all objects of pipelines by kind and name, without fields that differ in each run."""
        return {
            f"{kind}/{each['metadata']['name']}": _stable_fields(each)
            for kind in OBJECTS
            for each in self.cluster.list(kind, MANAGED)
        }

    def live(self) -> list[dict[str, Any]]:
        """Returns all objects of pipelines."""
        return [each for kind in OBJECTS for each in self.cluster.list(kind, MANAGED)]

    def lease(self) -> dict[str, Any]:
        """Returns the spec of the operators' Lease."""
        return self.cluster.get("lease", "syrinx-operator", "default")["spec"]

    def writes(self) -> list[str]:
        """Returns the operators' writes without those of Leases."""
        written = (each for each in self.cluster.writes if each.agent.startswith("syrinx-operator/"))
        return [f"{each.method} {each.path}" for each in written if "/leases" not in each.path]

    async def quiet(self, operator: OperatorProcess) -> None:
        """Waits until three reconciles in a row have written nothing."""
        deadline = time.monotonic() + SECONDS
        while True:
            writes = len(self.writes())
            await operator.reconciled(3)
            if len(self.writes()) == writes:
                return
            assert time.monotonic() < deadline, f"it keeps writing:  {self.writes()[-20:]}"

    def talkers(self) -> list[dict[str, Any]]:
        """Returns the talkers' pods."""
        return self.cluster.list("pod", "syrinx.dev/component=talker")

    def events(self) -> list[dict[str, Any]]:
        return self.cluster.list("event")


def _stable_fields(live: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: live["metadata"].get(key) for key in ("name", "labels")}
    metadata["owners"] = [reference["name"] for reference in live["metadata"].get("ownerReferences", ())]
    return {"kind": live["kind"], "metadata": metadata, "keys": sorted(live.get("data", {}))}
