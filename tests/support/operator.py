"""Runs the operator against the emulated cluster: in the test's own event loop, whose clock may be virtual."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import kopf
import msgspec
from kubernetes.aio import client

from support.inline import Inline
from support.kube import KubeCluster
from support.virtual import Program, now
from syrinx_operator.cluster.config import options
from syrinx_operator.cluster.operator import Operator
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.runtime.clock import monotonic

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "ttspipelines.syrinx.dev.yaml"
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
SHORT_PERIODS = {
    "SYRINX_RESYNC_SECONDS": "1",
    "SYRINX_RELIST_SECONDS": "3",
    "SYRINX_MAX_BACKOFF_SECONDS": "4",
    "SYRINX_STAGE_ACCESS": "direct",
    "SYRINX_STAGES_IMAGE": "syrinx/stages:1",
}


class Answer(NamedTuple):
    """An answer of the operator's port."""

    status_code: int
    text: str


class RunningOperator(ABC):
    """An operator with short periods. Leaving `async with` stops it as SIGTERM does."""

    def __init__(
        self, cluster: KubeCluster, directory: Path, name: str, scope: tuple[str, ...], **environment: str
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        self.name = name
        self.scope = scope
        self.environment = {**SHORT_PERIODS, "POD_NAME": name, **environment}

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None:
        """Stops it as SIGTERM does, and waits until it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """Ends it as SIGKILL does."""

    @property
    @abstractmethod
    def code(self) -> int | None:
        """Its exit status; None while it runs."""

    @property
    @abstractmethod
    def log(self) -> str: ...

    @abstractmethod
    def get(self, path: str) -> Answer:
        """Returns what its port answers. Raises httpx.TransportError."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def output(self) -> str:
        """The end of the log."""
        return self.log[-6000:]

    async def ready(self) -> Self:
        """Waits until the operator is ready."""
        await self.until(lambda: self.get("/readyz").status_code == 200, "the operator is ready")
        return self

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Waits until `holds()` is true; `what` names it in the error."""
        deadline = monotonic() + SECONDS
        while True:
            assert self.code is None, f"the operator ended with {self.code}\n{self.output}"
            with contextlib.suppress(httpx.TransportError):
                if holds():
                    return
            assert monotonic() < deadline, f"not within {SECONDS:g} s: {what}\n{self.output}"
            await asyncio.sleep(0.05)

    def metrics(self) -> str:
        return self.get("/metrics").text

    async def reconciled(self, count: int) -> None:
        """Waits until the operator has finished this many more reconciles."""
        before = self.reconciles()
        await self.until(lambda: self.reconciles() >= before + count, f"{count} reconciles")

    def reconciles(self) -> float:
        """Returns how many reconciles the operator has finished."""
        samples = re.findall(r"^syrinx_operator_reconciles_total{.*} (.*)$", self.metrics(), re.MULTILINE)
        return sum(map(float, samples))


async def lives(operator: RunningOperator, seconds: float) -> None:
    """Waits, and checks that it runs and is healthy all the time."""
    end = monotonic() + seconds
    while monotonic() < end:
        assert operator.code is None, operator.output
        health = operator.get("/healthz")
        assert health.status_code == 200, health.text
        await asyncio.sleep(0.3)


class OperatorInLoop(RunningOperator):
    """The operator without kopf, as a program in the running event loop."""

    def __init__(self, *arguments: Any, **environment: str) -> None:
        super().__init__(*arguments, SYRINX_PORT="0", **environment)
        namespaces = None if "-A" in self.scope else tuple(self.scope[1::2])
        self._operator = Operator(
            options(self.environment),
            namespaces,
            configuration=self._configuration,
            now=now,
            tuner=Tuner(pool=Inline),
        )
        self._program = Program(self.name)
        self._lines: list[str] = []
        self._cleanup = contextlib.ExitStack()
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        return self._code

    @property
    def log(self) -> str:
        return "\n".join(self._lines)

    async def start(self) -> None:
        self._cleanup.enter_context(_logged(self._program, self._lines))
        await self._program.run(self._operator.start(kopf.OperatorSettings()))

    async def stop(self) -> None:
        if self._code is None:
            async with asyncio.timeout(SECONDS):
                await self._program.run(self._operator.stop())
            self._end(0)

    async def kill(self) -> None:
        await self._program.kill()
        self._end(-9)

    def _end(self, code: int) -> None:
        self._code = code
        self._cleanup.close()

    def get(self, path: str) -> Answer:
        if self._code is not None:
            raise httpx.ConnectError("the operator has ended")
        if path == "/metrics":
            return Answer(200, self._operator.metrics().decode())
        health = {"/healthz": self._operator.health, "/readyz": self._operator.readiness}[path]()
        return Answer(200 if health.ok else 503, f"{health.text}\n")

    async def _configuration(self) -> client.Configuration:
        found = client.Configuration()
        found.host = self.cluster.url
        found.api_key = {"BearerToken": "Bearer operator"}
        return found


@contextlib.contextmanager
def _logged(program: Program, lines: list[str]) -> Iterator[None]:
    """Adds what a program logs to `lines`, from INFO on."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if program.is_running():
                lines.append(f"{record.levelname} {record.name}: {self.format(record)}")

    handler = Handler()
    loggers = [logging.getLogger(name) for name in ("syrinx_operator", "syrinx.tuning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


class Harness:
    """Helpers to act on the cluster and to wait for conditions."""

    def __init__(self, cluster: KubeCluster, directory: Path, kind: type[RunningOperator] = OperatorInLoop) -> None:
        self.cluster = cluster
        self._directory = directory
        self._kind = kind
        self._operators: list[RunningOperator] = []

    def operator(
        self, name: str = "operator-0", scope: tuple[str, ...] = ("-n", "default"), **environment: str
    ) -> RunningOperator:
        """Returns an operator to enter; the same name holds the same Leases."""
        operator = self._kind(self.cluster, self._directory, name, scope, **environment)
        self._operators.append(operator)
        return operator

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
            logs = "\n".join(f"--- {each.name}\n{each.output}" for each in self._operators[-2:])
            raise AssertionError(f"{error}\n{logs}") from None

    async def settled(self, name: str = "demo", seconds: float = SECONDS) -> None:
        """Waits until the newest spec is applied and the pipeline is Ready."""

        def holds() -> bool:
            pipeline = self.cluster.get("ttspipeline", name)
            observed = pipeline["status"]["observedGeneration"] == pipeline["metadata"]["generation"]
            return observed and self.condition("Ready", name)["status"] == "True"

        await self.wait(holds, f"{name} is ready", seconds)

    def condition(self, kind: str, name: str = "demo") -> dict[str, Any]:
        """Returns a condition of a pipeline. Raises LookupError if it has none of this type yet."""
        conditions = self.cluster.get("ttspipeline", name)["status"]["conditions"]
        found: dict[str, Any] = {each["type"]: each for each in conditions}[kind]
        return found

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

    async def quiet(self, operator: RunningOperator) -> None:
        """Waits until three reconciles in a row have written nothing."""
        deadline = monotonic() + SECONDS
        while True:
            writes = len(self.writes())
            await operator.reconciled(3)
            if len(self.writes()) == writes:
                return
            assert monotonic() < deadline, f"it keeps writing:  {self.writes()[-20:]}"

    def talkers(self) -> list[dict[str, Any]]:
        """Returns the talkers' pods."""
        return self.cluster.list("pod", "syrinx.dev/component=talker")

    def uids(self) -> dict[str, str]:
        """Returns the UIDs of all pods by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.cluster.list("pod")}

    def reasons(self) -> set[str]:
        """Returns the reasons of all Events."""
        return {event["reason"] for event in self.cluster.list("event")}

    def messages(self, reason: str) -> list[str]:
        """Returns the messages of the Events with a reason."""
        return [event["message"] for event in self.cluster.list("event") if event["reason"] == reason]

    def write_state(self, state: State) -> None:
        """Writes a tuner's state to the record of `demo`."""
        data = {"tuning.json": msgspec.json.encode(state).decode()}
        self.cluster.patch("configmap", "demo-tuning", {"data": data}, manager="syrinx-operator")


def _stable_fields(live: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: live["metadata"].get(key) for key in ("name", "labels")}
    metadata["owners"] = [reference["name"] for reference in live["metadata"].get("ownerReferences", ())]
    return {"kind": live["kind"], "metadata": metadata, "keys": sorted(live.get("data", {}))}
