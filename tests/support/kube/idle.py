"""A kubelet without processes: pods become ready, and their admin and settings ports respond like a stage's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from support.kube.api import Api
from support.kube.controllers import Controller, is_going, is_over
from support.kube.networks import Addresses
from support.kube.pods import ContainerState, running, status_of
from support.kube.store import Object
from support.kube.volumes import value_of
from support.virtual import stamp
from syrinx_stages.contract.settings import TOKEN_HEADER, TOKEN_VARIABLE
from syrinx_stages.runtime.clock import monotonic


class IdleKubelet(Controller):
    """Makes every pod ready immediately."""

    manager = "kubelet"

    def __init__(self, api: Api, addresses: Addresses) -> None:
        super().__init__(api)
        self._addresses = addresses
        self.admins = Admins(self)
        self.failures: list[BaseException] = []

    def sync(self) -> None:
        for pod in self.all("pod"):
            if is_going(pod):
                self.delete("pod", pod, gracePeriodSeconds=0)
            elif pod["spec"].get("nodeName") and not is_over(pod):
                self._tell(pod)
        self.admins.follow(self.all("pod"))

    def _tell(self, pod: Object) -> None:
        status = pod.get("status", {})
        containers = [self._container(container, status) for container in pod["spec"]["containers"]]
        address = status.get("podIP") or self._addresses.pod()
        self.set_status("pod", pod, status_of(pod, address, containers, [], initialized=True))

    @staticmethod
    def _container(container: Object, status: Object) -> ContainerState:
        previous = next((old for old in status.get("containerStatuses", ()) if old["name"] == container["name"]), {})
        since = previous.get("state", {}).get("running", {}).get("startedAt", stamp())
        return ContainerState(container["name"], container["image"], running(since), ready=True, started=True)

    async def close(self) -> None:
        await self.admins.close()

    def token(self, pod: Object) -> str | None:
        """Returns the token in the environment of a stage."""

        def find(kind: str, name: str) -> Object | None:
            return self.api.store.get(self.kind(kind), pod["metadata"]["namespace"], name)

        environment = {each["name"]: each for each in pod["spec"]["containers"][0].get("env", ())}
        variable = environment.get(TOKEN_VARIABLE)
        return value_of(find, pod, variable["valueFrom"]) if variable else None

    def mounted_settings(self, pod: Object) -> dict[str, Any]:
        """Returns the settings that a stage reads at its start."""
        for volume in pod["spec"].get("volumes", ()):
            name = volume.get("configMap", {}).get("name", "")
            found = self.api.store.get(self.kind("configmap"), pod["metadata"]["namespace"], name) if name else None
            if found and "settings.json" in found.get("data", {}):
                settings: dict[str, Any] = json.loads(found["data"]["settings.json"])
                return settings
        return {"generation": 0, "settings": {}}


class Live:
    """Live settings with overrides that expire, like a stage's."""

    def __init__(self, generation: int, settings: dict[str, Any]) -> None:
        self.generation = generation
        self.base = settings
        self._limited: dict[str, Any] = {}
        self._until = 0.0

    def put(self, asked: dict[str, Any]) -> str:
        """Returns why a body is rejected; empty if it is accepted."""
        limited = "seconds" in asked
        if asked["generation"] < self.generation or (limited and asked["generation"] > self.generation):
            return f"generation {asked['generation']} is not that of the base, {self.generation}"
        if limited:
            self._limited, self._until = asked["settings"], monotonic() + asked["seconds"]
        else:
            self.generation, self.base, self._until = asked["generation"], asked["settings"], 0.0
        return ""

    def report(self) -> dict[str, Any]:
        left = self._until - monotonic()
        report = {"generation": self.generation, "base": self.base, "settings": self.base}
        return report if left <= 0 else report | {"settings": self.base | self._limited, "seconds": left}


class Admins:
    """The ports of idle pods: health, metrics set by a test, and live settings; the latter with a token."""

    def __init__(self, kubelet: IdleKubelet) -> None:
        self._kubelet = kubelet
        self._runners: dict[str, tuple[web.AppRunner, ...]] = {}
        self._live: dict[str, Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics: Callable[[str], str] = lambda pod: "ok\n"
        """Response to /metrics by pod name."""
        self.puts: list[tuple[str, dict[str, Any]]] = []
        """Accepted settings with the pod's name, oldest first."""

    def report(self, pod: str) -> dict[str, Any]:
        """Returns a pod's response to /settings."""
        return next(live.report() for uid, live in self._live.items() if uid.endswith(f"/{pod}"))

    def follow(self, pods: list[Object]) -> None:
        """Serves the ports of exactly these pods."""
        wanted = {f"{pod['metadata']['uid']}/{pod['metadata']['name']}": pod for pod in pods if _port(pod, "admin")}
        for uid in self._runners.keys() - wanted.keys():
            for runner in self._runners.pop(uid):
                self._later(runner.cleanup())
        for uid, pod in wanted.items():
            if uid not in self._runners:
                applications = self._applications(uid, pod)
                self._runners[uid] = tuple(web.AppRunner(application) for application in applications.values())
                for runner, port in zip(self._runners[uid], applications, strict=True):
                    self._later(self._start(runner, pod["status"]["podIP"], port))

    async def close(self) -> None:
        self.follow([])
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def _later(self, work: Any) -> None:
        with contextlib.suppress(RuntimeError):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()):
            self._kubelet.failures.append(failure)

    @staticmethod
    async def _start(runner: web.AppRunner, address: str, port: int) -> None:
        await runner.setup()
        await web.TCPSite(runner, address, port).start()

    def _applications(self, uid: str, pod: Object) -> dict[int, web.Application]:
        """Returns what a pod serves, by port."""
        name = pod["metadata"]["name"]

        async def ok(request: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def metrics(request: web.Request) -> web.Response:
            return web.Response(text=self.metrics(name))

        admin = web.Application()
        admin.router.add_get("/metrics", metrics)
        for path in ("/healthz", "/readyz"):
            admin.router.add_get(path, ok)
        if port := _port(pod, "settings"):
            settings = web.Application()
            self._add_settings(settings, uid, pod)
            return {_port(pod, "admin"): admin, port: settings}
        return {_port(pod, "admin"): admin}

    def _add_settings(self, application: web.Application, uid: str, pod: Object) -> None:
        name, token = pod["metadata"]["name"], self._kubelet.token(pod)

        def is_authorized(request: web.Request) -> bool:
            return request.headers.get(TOKEN_HEADER) == token

        async def get(request: web.Request) -> web.Response:
            if not is_authorized(request):
                return web.Response(status=401)
            return web.json_response(self._live_of(uid, pod).report())

        async def put(request: web.Request) -> web.Response:
            if not is_authorized(request):
                return web.Response(status=401)
            asked = await request.json()
            if refusal := self._live_of(uid, pod).put(asked):
                return web.json_response({"error": {"message": refusal}}, status=409)
            self.puts.append((name, asked))
            return web.json_response(self._live_of(uid, pod).report())

        application.router.add_get("/settings/{stage}", get)
        application.router.add_put("/settings/{stage}", put)

    def _live_of(self, uid: str, pod: Object) -> Live:
        if uid not in self._live:
            mounted = self._kubelet.mounted_settings(pod)
            self._live[uid] = Live(mounted["generation"], mounted["settings"])
        return self._live[uid]


def _port(pod: Object, name: str) -> int:
    """Returns the number of a port of a running pod; 0 if it has none of that name."""
    if not pod.get("status", {}).get("podIP"):
        return 0
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    return next((port["containerPort"] for port in ports if port.get("name") == name), 0)
