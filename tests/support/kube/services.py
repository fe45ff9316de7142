"""Forwards connections to a Service's address to a ready pod."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from functools import partial

from support.kube.api import Api
from support.kube.controllers import Controller, is_going, is_ready
from support.kube.store import Object

Key = tuple[str, str, int]
"""Namespace, name and port of a Service."""


class ServiceProxy(Controller):
    """Listens on every service's cluster address."""

    manager = "kube-proxy"

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._servers: dict[Key, asyncio.Task[None]] = {}
        self._turn = itertools.count()

    def sync(self) -> None:
        wanted = {
            (obj["metadata"]["namespace"], obj["metadata"]["name"], port["port"]): obj["spec"]["clusterIP"]
            for obj in self.all("service")
            for port in obj["spec"]["ports"]
            if obj["spec"]["clusterIP"] != "None"
        }
        for key in self._servers.keys() - wanted.keys():
            self._servers.pop(key).cancel()
        for key in wanted.keys() - self._servers.keys():
            self._servers[key] = asyncio.create_task(self._serve(key, wanted[key]))

    async def close(self) -> None:
        for task in self._servers.values():
            task.cancel()
        await asyncio.gather(*self._servers.values(), return_exceptions=True)

    async def _serve(self, key: Key, address: str) -> None:
        async with await asyncio.start_server(partial(self._connect, key), address, key[2]) as server:
            await server.serve_forever()

    async def _connect(self, key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, LookupError):
            there_reader, there_writer = await asyncio.open_connection(*self._choose(*key))
            try:
                await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            finally:
                there_writer.transport.abort()
        writer.transport.abort()

    def _choose(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Returns the address of a ready pod. Raises LookupError if there is none."""
        spec = self.api.get(self.kind("service"), namespace, name)["spec"]
        wanted = spec["selector"].items()
        pods = [pod for pod in self.all("pod", namespace) if wanted <= pod["metadata"]["labels"].items()]
        ready = [pod for pod in pods if is_ready(pod) and not is_going(pod)]
        if not ready:
            raise LookupError("no pod is ready")
        pod = ready[next(self._turn) % len(ready)]
        target = next(each["targetPort"] for each in spec["ports"] if each["port"] == port)
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
