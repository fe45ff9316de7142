"""A kubelet that runs pods as processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from pathlib import Path

from support.kube import probes
from support.kube.api import Api
from support.kube.controllers import Controller, is_going
from support.kube.networks import Addresses
from support.kube.pods import ContainerState, running, status_of, terminated, waiting
from support.kube.processes import NoCommand, Process, command_of, make_programs
from support.kube.store import Object
from support.kube.volumes import NotMounted, Translation, Volume, value_of
from support.virtual import stamp
from syrinx_stages.runtime.clock import monotonic

HASTE = 10.0
"""Factor by which startup and readiness probes run more often than specified; timeouts are unchanged."""
BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Backoff in seconds before a container restarts."""
RETRY = 0.05
"""Seconds between checks for missing volumes."""


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
            if obj["spec"].get("nodeName") and uid not in self._pods:
                self._pods[uid] = Pod(self, obj)
            if uid in self._pods:
                self._pods[uid].see(obj)
        there = {obj["metadata"]["uid"] for obj in self.all("pod")}
        for uid in [uid for uid in self._pods if uid not in there]:
            self._pods.pop(uid).abandon()

    def kill(self, pod: str) -> None:
        """Sends SIGKILL to the processes of a pod's containers."""
        for running_pod in self._pods.values():
            if running_pod.name == pod:
                running_pod.kill()

    def pids(self, pod: str) -> list[int]:
        return [pid for each in self._pods.values() if each.name == pod for pid in each.pids()]

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
        self.obj = obj
        self.name: str = obj["metadata"]["name"]
        self._namespace: str = obj["metadata"]["namespace"]
        self.directory = kubelet.directory / obj["metadata"]["uid"]
        self.directory.mkdir()
        self.address = kubelet.addresses.pod()
        self.translation = Translation(self.address, self._service)
        self._volumes: list[Volume] = []
        self._init = [Container(self, spec) for spec in obj["spec"].get("initContainers", ())]
        self._containers = [Container(self, spec) for spec in obj["spec"]["containers"]]
        self._initialized = not self._init
        self.task = asyncio.create_task(self._run(), name=f"pod {self.name}")
        self.task.add_done_callback(self._ended)

    def see(self, obj: Object) -> None:
        """Updates the pod's state and its volumes."""
        self.obj = obj
        if is_going(obj):
            self._terminating.set()
        for volume in self._volumes:
            with contextlib.suppress(NotMounted):
                volume.refresh(self.find, obj, self.translation)

    def abandon(self) -> None:
        """Kills the processes of a pod that was removed from the API."""
        self.task.cancel()

    def kill(self) -> None:
        for each in self._containers:
            if each.process:
                each.process.kill()

    def pids(self) -> list[int]:
        return [each.process.pid for each in self._containers if each.process]

    def find(self, kind: str, name: str) -> Object | None:
        return self._kubelet.api.store.get(self._kubelet.kind(kind), self._namespace, name)

    def report(self) -> None:
        found = self.find("pod", self.name)
        if found is None or found["metadata"]["uid"] != self.obj["metadata"]["uid"]:
            return
        states, init = [each.state for each in self._containers], [each.state for each in self._init]
        status = status_of(found, self.address, states, init, self._initialized)
        self._kubelet.set_status("pod", found, status)

    def environment(self, container: Object) -> dict[str, str]:
        """Returns the environment of a container. Raises NotMounted."""
        found: dict[str, str] = {}
        for variable in container.get("env", ()):
            value: str | None = variable.get("value", "")
            if "valueFrom" in variable:
                value = value_of(self.find, self.obj | {"status": {"podIP": self.address}}, variable["valueFrom"])
            if value is not None:
                found[variable["name"]] = expand(value, found)
        found = {name: self.translation.text(value) for name, value in found.items()}
        path = f"{self._kubelet.programs}:/usr/local/bin:/usr/bin:/bin"
        temporary = self.translation.text("/tmp")
        return {"PATH": path, "HOME": temporary, "TMPDIR": temporary, **found, "KUBE_POD_IP": self.address}

    def command(self, words: list[str], environment: dict[str, str]) -> list[str]:
        return [self.translation.text(expand(word, environment)) for word in words]

    def _service(self, host: str) -> str | None:
        """Returns the address for a Service name, which need not exist yet."""
        name, *rest = host.split(".")
        namespaces = self._kubelet.all("namespace")
        known = not rest or rest[0] in {namespace["metadata"]["name"] for namespace in namespaces}
        if not known or host == "localhost" or name.isdigit():
            return None
        return self._kubelet.addresses.service(rest[0] if rest else self._namespace, name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        for container in (*self._init, *self._containers):
            if container.process:
                container.process.reap()
        if not task.cancelled() and task.exception():
            self._kubelet.failures.append(task.exception())

    async def _run(self) -> None:
        life = asyncio.create_task(self._live())
        terminating = asyncio.create_task(self._terminating.wait())
        try:
            await asyncio.wait([life, terminating], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                await life
                await terminating
            grace = self.obj["metadata"].get("deletionGracePeriodSeconds", 0)
            await asyncio.gather(*(each.stop(float(grace)) for each in self._containers))
        finally:
            for task in (life, terminating):
                task.cancel()
            await asyncio.gather(life, terminating, return_exceptions=True)
        found = self.find("pod", self.name)
        if found and found["metadata"]["uid"] == self.obj["metadata"]["uid"]:
            self._kubelet.delete("pod", found, gracePeriodSeconds=0)

    async def _live(self) -> None:
        self.report()
        await self._mount()
        for container in self._init:
            await container.run(once=True)
        self._initialized = True
        self.report()
        await asyncio.gather(*(container.run() for container in self._containers))

    async def _mount(self) -> None:
        claims = self._kubelet.directory / "claims"
        volumes = {
            source["name"]: Volume(source, self.directory, claims) for source in self.obj["spec"].get("volumes", ())
        }
        for container in (*self._init, *self._containers):
            for mount in container.spec.get("volumeMounts", ()):
                directory = volumes[mount["name"]].directory / mount.get("subPath", "")
                self.translation.mount(mount["mountPath"], directory)
        for volume in volumes.values():
            while True:
                try:
                    volume.refresh(self.find, self.obj, self.translation)
                    break
                except NotMounted:
                    await asyncio.sleep(RETRY)
        self._volumes = list(volumes.values())


class Container:
    """The lifecycle of one container."""

    def __init__(self, pod: Pod, spec: Object) -> None:
        self._pod = pod
        self.spec = spec
        self.name: str = spec["name"]
        self.process: Process | None = None
        self.state = ContainerState(self.name, spec["image"], waiting("ContainerCreating"))
        self._log = pod.directory / f"{pod.name}.{self.name}.log"
        self._stopping = False
        self._environment: dict[str, str] = {}

    async def run(self, *, once: bool = False) -> None:
        """Runs the container repeatedly; with `once` until it succeeds."""
        while True:
            code = await self._run_once()
            if self._stopping:
                await asyncio.Event().wait()
            if code == 0 and once:
                return
            delay = BACKOFF[min(self.state.restarts, len(BACKOFF) - 1)]
            self.state.state = waiting(
                "CrashLoopBackOff", f"back-off {delay:g}s restarting failed container={self.name}"
            )
            self._pod.report()
            await asyncio.sleep(delay)
            self.state.restarts += 1

    async def _run_once(self) -> int:
        command = await self._prepared()
        since = stamp()
        self.process = Process(command, self._environment, self._pod.directory, self._log)
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
        return code

    async def _prepared(self) -> list[str]:
        while True:
            try:
                self._environment = self._pod.environment(self.spec)
                return self._pod.command(command_of(self.spec), self._environment)
            except (NotMounted, NoCommand) as error:
                self.state.state = waiting("CreateContainerConfigError", str(error))
                self._pod.report()
                await asyncio.sleep(RETRY)

    async def _watch(self) -> None:
        """Runs the startup probe, then readiness and liveness probes."""
        if probe := self.spec.get("startupProbe"):
            attempts = round(probe["failureThreshold"] * HASTE)
            if not await self._started(probe, attempts):
                self._fail("startup")
                return
        self.state.started = True
        self.state.ready = "readinessProbe" not in self.spec
        self._pod.report()
        await asyncio.gather(self._readiness(), self._liveness())

    async def _started(self, probe: Object, attempts: int) -> bool:
        for _ in range(attempts):
            if await self._probe(probe):
                return True
            await asyncio.sleep(probe["periodSeconds"] / HASTE)
        return False

    async def _readiness(self) -> None:
        probe = self.spec.get("readinessProbe")
        if probe is None:
            return
        period = probe["periodSeconds"] / HASTE
        await asyncio.sleep(probe.get("initialDelaySeconds", 0) / HASTE)
        while True:
            wanted = not self.state.ready
            attempts = probe["successThreshold" if wanted else "failureThreshold"]
            await probes.until(wanted, attempts, period, lambda: self._probe(probe))
            self.state.ready = wanted
            self._pod.report()

    async def _liveness(self) -> None:
        probe = self.spec.get("livenessProbe")
        if probe is not None:
            await asyncio.sleep(probe.get("initialDelaySeconds", 0))
            await probes.until(False, probe["failureThreshold"], probe["periodSeconds"], lambda: self._probe(probe))
            self._fail("liveness")

    def _fail(self, which: str) -> None:
        with self._log.open("a") as log:
            log.write(f"kubelet: {which} probe failed, container {self.name} is restarted\n")
        if self.process:
            self.process.kill()

    async def _probe(self, probe: Object) -> bool:
        return await probes.passes(probe, self.spec, self._pod.address, self._execute)

    async def _execute(self, words: list[str], seconds: float) -> int:
        """Runs a command in the container."""
        command = self._pod.command(words, self._environment)
        process = Process(command, self._environment, self._pod.directory, self._log)
        try:
            async with asyncio.timeout(seconds):
                return await process.ended()
        except TimeoutError:
            return 124
        finally:
            process.reap()

    async def stop(self, grace: float) -> None:
        """Runs preStop, sends SIGTERM, and SIGKILL after `grace` seconds."""
        self._stopping = True
        process = self.process
        if process is None:
            return
        end = monotonic() + grace
        ended = asyncio.create_task(process.ended())
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + grace):
                await self._pre_stop(max(0.0, end - monotonic()))
                process.terminate()
                await ended
        except TimeoutError:
            process.kill()
        finally:
            ended.cancel()
            process.reap()

    async def _pre_stop(self, seconds: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            await self._execute(hook["exec"]["command"], seconds)
        elif "sleep" in hook:
            await asyncio.sleep(min(seconds, hook["sleep"]["seconds"]))


def expand(text: str, environment: dict[str, str]) -> str:
    """Expands `$(NAME)` if the variable exists; `$$(NAME)` becomes `$(NAME)`."""

    def replaced(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return environment.get(match[1], match[0])

    return re.sub(r"\$?\$\(([A-Za-z_][A-Za-z0-9_]*)\)", replaced, text)
