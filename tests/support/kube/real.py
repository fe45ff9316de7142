"""A kubelet that runs pods as processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import aiohttp

from support.kube.api import Api
from support.kube.controllers import Controller, is_going
from support.kube.errors import ApiError
from support.kube.networks import Addresses
from support.kube.pods import ContainerState, running, status_of, terminated, waiting
from support.kube.processes import Process, make_programs
from support.kube.store import Object
from support.kube.volumes import Translation, Volume, value_of
from support.virtual import stamp

HASTE = 10.0
"""Factor by which startup and readiness probes run more often than specified; timeouts are unchanged."""
BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Backoff in seconds before a container restarts."""


class RealKubelet(Controller):
    """Runs every pod's containers as processes with their own address."""

    manager = "kubelet"

    def __init__(self, api: Api, addresses: Addresses) -> None:
        super().__init__(api)
        self.addresses = addresses
        self.directory = Path(tempfile.mkdtemp(prefix="kube-"))
        self.programs = make_programs(self.directory / "bin")
        self._pods: dict[str, Pod] = {}
        self.failures: list[BaseException] = []
        """Errors of the kubelet itself."""

    def sync(self) -> None:
        for obj in self.all("pod"):
            uid = obj["metadata"]["uid"]
            if uid not in self._pods:
                self._pods[uid] = Pod(self, obj)
            self._pods[uid].see(obj)
        there = {obj["metadata"]["uid"] for obj in self.all("pod")}
        for uid in [uid for uid in self._pods if uid not in there]:
            self._pods.pop(uid).abandon()

    def kill(self, pod: str) -> None:
        """Sends SIGKILL to the processes of a pod's containers."""
        for running_pod in self._pods.values():
            if running_pod.name == pod:
                for container in running_pod.containers:
                    if container.process:
                        container.process.kill()

    def pids(self, pod: str) -> list[int]:
        return [
            each.process.pid
            for found in self._pods.values()
            if found.name == pod
            for each in found.containers
            if each.process
        ]

    def logs(self, pod: str) -> str:
        """Returns the output of a pod's containers, including removed pods of this name."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob(f"*/{pod}.*.log")))

    async def close(self) -> None:
        for pod in self._pods.values():
            pod.abandon()
        await asyncio.gather(*(pod.task for pod in self._pods.values()), return_exceptions=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.failures:
            raise self.failures[0]


class Pod:
    """The lifecycle of one pod."""

    def __init__(self, kubelet: RealKubelet, obj: Object) -> None:
        self._kubelet = kubelet
        self._terminating = asyncio.Event()
        self._uid: str = obj["metadata"]["uid"]
        self.obj = obj
        self.name: str = obj["metadata"]["name"]
        self._namespace: str = obj["metadata"]["namespace"]
        self.directory = kubelet.directory / self._uid
        self.directory.mkdir()
        self.address = kubelet.addresses.pod()
        self.translation = Translation(self.address, self._service)
        self._volumes = {each["name"]: Volume(each, self.directory) for each in obj["spec"].get("volumes", ())}
        self.containers = [Container(self, spec) for spec in obj["spec"]["containers"]]
        for mount in [mount for each in self.containers for mount in each.spec.get("volumeMounts", ())]:
            self.translation.mount(mount["mountPath"], self._volumes[mount["name"]].directory)
        self.task = asyncio.create_task(self._run(), name=f"pod {self.name}")
        self.task.add_done_callback(self._ended)

    def see(self, obj: Object) -> None:
        """Updates the pod's state and its volumes."""
        self.obj = obj
        if is_going(obj):
            self._terminating.set()
        for volume in self._volumes.values():
            # What was deleted stays mounted.
            with contextlib.suppress(ApiError):
                volume.refresh(self.find, obj, self.translation)

    def abandon(self) -> None:
        """Kills the processes of a pod that was removed from the API."""
        self.task.cancel()

    def find(self, kind: str, name: str) -> Object:
        return self._kubelet.api.get(self._kubelet.kind(kind), self._namespace, name)

    def report(self) -> None:
        found = self._kubelet.api.store.get(self._kubelet.kind("pod"), self._namespace, self.name)
        if found and found["metadata"]["uid"] == self._uid:
            status = status_of(found, self.address, [each.state for each in self.containers])
            self._kubelet.set_status("pod", found, status)

    def warn(self, reason: str, message: str) -> None:
        """Creates a Warning event of the pod."""
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": self._namespace, "name": self.name, "uid": self._uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self.name}."},
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": message,
        }
        self._kubelet.create("event", self._namespace, event)

    def environment(self, container: Object) -> dict[str, str]:
        """Returns the environment of a container."""
        found: dict[str, str] = {}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            found[variable["name"]] = value_of(self.find, self.obj, source) if source else variable["value"]
        found = {name: self.translation.text(value) for name, value in found.items()}
        path = f"{self._kubelet.programs}:/usr/local/bin:/usr/bin:/bin"
        temporary = self.translation.text("/tmp")
        return {"PATH": path, "HOME": temporary, "TMPDIR": temporary, **found, "KUBE_POD_IP": self.address}

    def _service(self, host: str) -> str | None:
        """Returns the address for a Service name, which need not exist yet."""
        name, *rest = host.split(".")
        if host == "localhost" or name.isdigit() or rest[:1] not in ([], [self._namespace]):
            return None
        return self._kubelet.addresses.service(self._namespace, name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        for container in self.containers:
            if container.process:
                container.process.reap()
        if not task.cancelled() and (failure := task.exception()):
            self._kubelet.failures.append(failure)

    async def _run(self) -> None:
        life = asyncio.gather(*(container.run() for container in self.containers))
        terminating = asyncio.create_task(self._terminating.wait())
        try:
            await asyncio.wait([life, terminating], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
        finally:
            life.cancel()
            terminating.cancel()
            await asyncio.gather(life, terminating, return_exceptions=True)
        grace = float(self.obj["metadata"]["deletionGracePeriodSeconds"])
        await asyncio.gather(*(each.stop(grace) for each in self.containers))
        self._kubelet.delete("pod", self.obj, gracePeriodSeconds=0)


class Container:
    """The lifecycle of one container."""

    def __init__(self, pod: Pod, spec: Object) -> None:
        self._pod = pod
        self.spec = spec
        self.process: Process | None = None
        self.state = ContainerState(spec["name"], spec["image"], waiting("ContainerCreating"))
        self._log = pod.directory / f"{pod.name}.{spec['name']}.log"

    async def run(self) -> None:
        """Runs the container again and again."""
        while True:
            await self._run_once()
            delay = BACKOFF[min(self.state.restarts, len(BACKOFF) - 1)]
            message = f"back-off {delay:g}s restarting failed container={self.spec['name']}"
            self.state.state = waiting("CrashLoopBackOff", message)
            self._pod.report()
            await asyncio.sleep(delay)
            self.state.restarts += 1

    async def _run_once(self) -> None:
        since = stamp()
        image = self.spec["image"].rpartition("/")[2].partition(":")[0]
        command = self.spec.get("command") or [f"{image}-server"]
        self._environment = self._pod.environment(self.spec)
        self.process = self._start([*command, *self.spec.get("args", ())])
        self.state.state = running(since)
        self._pod.report()
        watching = asyncio.create_task(self._watch())
        try:
            code = await self.process.ended()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self.state.ready = self.state.started = False
        self.state.state = self.state.last = terminated(code, since)
        self._pod.report()

    def _start(self, words: list[str]) -> Process:
        """Starts a command in the container."""
        command = [self._pod.translation.text(word) for word in words]
        return Process(command, self._environment, self._pod.directory, self._log)

    async def _watch(self) -> None:
        """Runs the startup probe, then readiness and liveness probes."""
        if not await self._starts():
            self.process.kill()
            return
        self.state.started = True
        self.state.ready = "readinessProbe" not in self.spec
        self._pod.report()
        await asyncio.gather(self._readiness(), self._liveness())

    async def _starts(self) -> bool:
        """Returns whether the startup probe succeeds before it has failed too often."""
        if probe := self.spec.get("startupProbe"):
            for _ in range(probe["failureThreshold"]):
                if await self._passes("Startup", probe):
                    return True
                await asyncio.sleep(probe["periodSeconds"] / HASTE)
        return probe is None

    async def _readiness(self) -> None:
        while probe := self.spec.get("readinessProbe"):
            wanted = not self.state.ready
            attempts = probe["successThreshold" if wanted else "failureThreshold"]
            await self._until(wanted, attempts, probe["periodSeconds"] / HASTE, "Readiness", probe)
            self.state.ready = wanted
            self._pod.report()

    async def _liveness(self) -> None:
        if (probe := self.spec.get("livenessProbe")) and self.process:
            await self._until(False, probe["failureThreshold"], probe["periodSeconds"], "Liveness", probe)
            self.process.kill()

    async def _until(self, wanted: bool, attempts: int, period: float, kind: str, probe: Object) -> None:
        """Waits until a number of probes in a row have the desired result."""
        row = 0
        while True:
            row = row + 1 if await self._passes(kind, probe) is wanted else 0
            if row >= attempts:
                return
            await asyncio.sleep(period)

    async def _passes(self, kind: str, probe: Object) -> bool:
        """Returns whether one probe succeeds. One that fails is a Warning event."""
        passes = await self._try(probe)
        if not passes:
            self._pod.warn("Unhealthy", f"{kind} probe failed")
        return passes

    async def _try(self, probe: Object) -> bool:
        """Runs one probe."""
        try:
            async with asyncio.timeout(probe["timeoutSeconds"]):
                if "exec" in probe:
                    return await self._execute(probe["exec"]["command"]) == 0
                get = probe["httpGet"]
                port = next(each["containerPort"] for each in self.spec["ports"] if each["name"] == get["port"])
                url = f"http://{self._pod.address}:{port}{get['path']}"
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return 200 <= answer.status < 400
        except (TimeoutError, OSError, aiohttp.ClientError):
            return False

    async def _execute(self, words: list[str]) -> int:
        """Runs a command in the container; returns its exit status."""
        process = self._start(words)
        try:
            return await process.ended()
        finally:
            process.reap()

    async def stop(self, grace: float) -> None:
        """Runs preStop, sends SIGTERM, and SIGKILL after `grace` seconds."""
        if self.process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                if hook := self.spec.get("lifecycle"):
                    await self._execute(hook["preStop"]["exec"]["command"])
                self.process.terminate()
                await self.process.ended()
        self.process.reap()
