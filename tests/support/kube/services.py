"""Forwards connections to a Service's address to a ready pod."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from support.kube.api import Api
from support.kube.controllers import Controller, is_going, is_ready
from support.kube.store import Object


class ServiceProxy(Controller):
    """Listens on every service's cluster address."""

    manager = "kube-proxy"

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._servers: dict[tuple[str, str, int], asyncio.Server | None] = {}
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    def sync(self) -> None:
        wanted = {
            (obj["metadata"]["namespace"], obj["metadata"]["name"], port["port"]): obj["spec"]["clusterIP"]
            for obj in self.all("service")
            for port in obj["spec"].get("ports", ())
            if obj["spec"].get("clusterIP", "None") != "None"
        }
        for key in [key for key in self._servers if key not in wanted]:
            if server := self._servers.pop(key):
                server.close()
        for key, address in wanted.items():
            if key not in self._servers:
                self._servers[key] = None
                self._do(self._listen(key, address))

    async def close(self) -> None:
        for server in self._servers.values():
            if server:
                server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: object) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, key: tuple[str, str, int], address: str) -> None:
        server = await asyncio.start_server(lambda reader, writer: self._accept(key, reader, writer), address, key[2])
        if key in self._servers:
            self._servers[key] = server
        else:
            server.close()

    def _accept(self, key: tuple[str, str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._do(self._connect(key, reader, writer))

    async def _connect(
        self, key: tuple[str, str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target = self._choose(*key)
        try:
            if target is None:
                return
            there_reader, there_writer = await asyncio.open_connection(*target)
            try:
                await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            finally:
                there_writer.transport.abort()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def _choose(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        service = self.api.store.get(self.kind("service"), namespace, name)
        if service is None:
            return None
        wanted = service["spec"]["selector"].items()
        pods = [pod for pod in self.all("pod", namespace) if wanted <= pod["metadata"]["labels"].items()]
        ready = [pod for pod in pods if is_ready(pod) and not is_going(pod)]
        if not ready:
            return None
        pod = ready[next(self._turn) % len(ready)]
        target = next(each["targetPort"] for each in service["spec"]["ports"] if each["port"] == port)
        return pod["status"]["podIP"], _number(pod, target)


def _number(pod: Object, port: str) -> int:
    """Returns the number of a named port."""
    ports = (each for container in pod["spec"]["containers"] for each in container["ports"])
    return next(int(each["containerPort"]) for each in ports if each["name"] == port)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
