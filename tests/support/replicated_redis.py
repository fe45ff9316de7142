"""The managed Redis with replicas: the plan's containers as processes on this machine, each pod with its address."""

import asyncio
import base64
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from support.cluster_plan import owner_of, pipeline, planned, pod_template
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.plan.connector.replicated_redis import password_secret
from syrinx_operator.resource.resolve import RedisForm
from syrinx_stages.connector.server import find_redis_server
from syrinx_stages.contract.stages import Stage
from syrinx_stages.processes import die_with_parent

PASSWORD = "password"
SYSTEM_PASSWORD = "system"
DEADLINE = 40.0
Manifest = dict[str, Any]


class Pod:
    """A server and its sentinel, which are restarted by the test alone."""

    def __init__(self, template: Manifest, name: str, address: str, folder: Path, translate: dict[str, str]) -> None:
        self.name, self.address = name, address
        self._containers = {each["name"]: each for each in template["spec"]["containers"]}
        self._volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        self._folder = folder
        self._acl = folder / "acl"
        self._translate = translate
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.client = redis.asyncio.Redis(
            host=address, password=PASSWORD, socket_timeout=0.5, protocol=2, retry=Retry(NoBackoff(), 0)
        )
        """A client with the rights of a stage."""

    async def start(self) -> None:
        """Creates the pod. Only a volume of a claim keeps its data."""
        for volume in self._volumes:
            shutil.rmtree(self._folder / volume, ignore_errors=True)
        # Once for a pod, as the kubelet does: a server that starts may read the files at any time.
        for key, value in password_secret(owner_of(pipeline()), PASSWORD, SYSTEM_PASSWORD)["data"].items():
            self._acl.mkdir(exist_ok=True)
            (self._acl / key).write_bytes(base64.b64decode(value))
        for name in self._containers:
            await self.start_container(name)

    async def start_container(self, name: str) -> None:
        """Starts a container."""
        container = self._containers[name]
        # The only thing that differs from a pod is that its address is not the only one.
        command = [*container["command"], *container["args"], "--bind", self.address]
        self.processes[name] = await self._execute(container, command, log=f"{name}.log")

    async def probe(self, container: str, kind: str) -> bool:
        """Runs a probe and returns whether it succeeds."""
        return await self._succeeds(container, self._containers[container][kind]["exec"]["command"])

    async def has_started(self) -> None:
        """Runs the startup probes, which wait until the containers are ready."""
        async with asyncio.timeout(DEADLINE):
            assert await self.probe("redis", "startupProbe") and await self.probe("sentinel", "startupProbe")

    async def is_ready(self) -> bool:
        """Returns whether both containers are ready."""
        return await self.probe("redis", "readinessProbe") and await self.probe("sentinel", "readinessProbe")

    async def accepts_writes(self) -> bool:
        """Returns whether the server accepts a write."""
        try:
            return bool(await self.client.set("{demo:1:0}:writable", 1))
        except (redis.RedisError, OSError):
            return False

    async def named_primary(self) -> str:
        """Returns the address that the sentinel names; empty if it names none or does not reply."""
        sentinel = redis.asyncio.Redis(host=self.address, port=names.SENTINEL_PORT, socket_timeout=0.5, protocol=2)
        with contextlib.suppress(redis.RedisError, OSError):
            async with sentinel:
                reply = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", names.PRIMARY)
                return reply[0].decode() if reply else ""
        return ""

    async def stop(self) -> None:
        """Ends the pod gracefully: the hook and the signal to each container, which do not wait for each other."""
        await asyncio.gather(*(self._stop_container(name) for name in self._containers))

    async def kill(self, *containers: str) -> None:
        """Kills containers, by default all."""
        for process in [self.processes[name] for name in containers or self._containers]:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _stop_container(self, name: str) -> None:
        hook = self._containers[name].get("lifecycle", {}).get("preStop")
        if hook is not None:
            await self._succeeds(name, hook["exec"]["command"])
        self.processes[name].terminate()
        await self.processes[name].wait()

    async def _succeeds(self, container: str, command: list[str]) -> bool:
        # A probe or hook connects to the loopback address of its pod.
        command = [part.replace(" -p ", f" -h {self.address} -p ") if " -h " not in part else part for part in command]
        process = await self._execute(self._containers[container], command, log="hooks.log")
        return await process.wait() == 0

    async def _execute(self, container: Manifest, command: list[str], log: str) -> asyncio.subprocess.Process:
        mounts = [each for each in container["volumeMounts"] if each["mountPath"] != names.REDIS_DIRECTORY]
        paths = {mount["mountPath"]: self._folder / mount["name"] for mount in mounts}
        for path in paths.values():
            path.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": f"{find_redis_server().parent}:{os.environ['PATH']}",
            "TMPDIR": str(paths["/tmp"]),
            "REDISCLI_AUTH": SYSTEM_PASSWORD,
            **{each["name"]: each["value"] for each in container["env"] if "value" in each},
        }
        translations = {names.REDIS_DIRECTORY: str(self._acl), "/data": str(paths["/data"]), **self._translate}
        for old, new in {"$(POD_NAME)": self.name, **translations}.items():
            command = [part.replace(old, new) for part in command]
            environment = {name: value.replace(old, new) for name, value in environment.items()}
        with (self._folder / log).open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, die_with_parent.__file__, str(os.getpid())),
                *command,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )


class ReplicatedRedis:
    """Three pods, as the plan of a pipeline has them."""

    def __init__(self, folder: Path, edits: dict[str, str], **connector: Any) -> None:
        """`edits` are replaced in the containers' commands."""
        subject = pipeline({"connector": {"managed": True, "replicas": 3, **connector}})
        plan = planned(subject)
        template = pod_template(plan, subject, RedisForm.REPLICATED)
        network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        hosts = names.redis_hosts(subject.name)
        addresses = {host: f"{network}.{number}" for number, host in enumerate(hosts, 1)}
        self.pods = []
        for host, address in addresses.items():
            name = host.partition(".")[0]
            (folder / name).mkdir()
            self.pods.append(Pod(template, name, address, folder / name, {**addresses, **edits}))
        (talker,) = pod_template(plan, subject, Stage.TALKER)["spec"]["containers"]
        self.url = next(each["value"] for each in talker["env"] if each["name"] == "REDIS_URL")
        """The value of `REDIS_URL`, without the password."""
        for host, address in addresses.items():
            self.url = self.url.replace(host, address)

    async def start(self) -> None:
        """Starts all pods, and returns once they are ready."""
        for pod in self.pods:
            await pod.start()
        await asyncio.gather(*(pod.has_started() for pod in self.pods))
        await self.until_ready()

    async def until_ready(self) -> None:
        """Returns once all pods are ready, and all agree on the primary."""
        await until(self._are_ready)

    async def primary(self) -> Pod:
        """Returns the pod that accepts writes, once there is exactly one and all sentinels name it."""
        found: Pod = await until(self._agreed)
        return found

    async def writable(self) -> list[Pod]:
        """Returns the pods that accept writes at this moment."""
        accepted = await asyncio.gather(*(pod.accepts_writes() for pod in self.pods))
        return [pod for pod, accepts in zip(self.pods, accepted, strict=True) if accepts]

    async def _are_ready(self) -> bool:
        return all([await pod.is_ready() for pod in self.pods])

    async def _agreed(self) -> Pod | None:
        named = {name for name in await asyncio.gather(*(pod.named_primary() for pod in self.pods)) if name}
        accepting = await self.writable()
        return accepting[0] if len(accepting) == 1 and named == {accepting[0].address} else None


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = DEADLINE) -> Any:
    """Returns the result of `condition` once it is true. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := await condition()):
        assert time.monotonic() < deadline, condition
        await asyncio.sleep(0.05)
    return result


@contextlib.asynccontextmanager
async def replicated_redis(
    folder: Path, edits: dict[str, str] | None = None, **connector: Any
) -> AsyncIterator[ReplicatedRedis]:
    """Yields the pods, of which none is started."""
    servers = ReplicatedRedis(folder, edits or {}, **connector)
    try:
        yield servers
    finally:
        for pod in servers.pods:
            if pod.processes:
                await pod.kill(*pod.processes)
            await pod.client.aclose()
