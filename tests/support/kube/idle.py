"""A kubelet without processes: pods become ready, and their admin ports respond like a stage's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from support.kube.api import Api
from support.kube.apply import now
from support.kube.controllers import Controller, is_going, is_over
from support.kube.networks import Addresses
from support.kube.pods import ContainerState, running, status_of, waiting
from support.kube.store import Object


class IdleKubelet(Controller):
    """Makes every pod ready immediately, except those that a test holds, breaks or keeps."""

    manager = "kubelet"

    def __init__(self, api: Api, addresses: Addresses) -> None:
        super().__init__(api)
        self._addresses = addresses
        self._held: dict[str, str] = {}
        self._broken: dict[str, tuple[str, str]] = {}
        self._kept: set[str] = set()
        self._restarts: dict[str, int] = {}
        self.admins = Admins(self)
        self.failures: list[BaseException] = []

    def hold(self, pods: str) -> None:
        """Makes pods whose names match a regular expression run without becoming ready."""
        self._held[pods] = "held"
        self.sync()

    def break_image(
        self, image: str, reason: str = "ImagePullBackOff", message: str = "Back-off pulling image"
    ) -> None:
        """Makes containers with a matching image fail to start."""
        self._broken[image] = (reason, message)
        self.sync()

    def keep(self, pods: str) -> None:
        """Keeps matching pods terminating when they are deleted, as on a lost node."""
        self._kept.add(pods)

    def release(self, what: str | None = None) -> None:
        """Ends `hold`, `break_image` and `keep` for an expression, or for all."""
        for group in (self._held, self._broken):
            for expression in list(group):
                if what in (None, expression):
                    del group[expression]
        self._kept = {expression for expression in self._kept if what not in (None, expression)}
        self.sync()

    def restart(self, pod: str) -> None:
        """Restarts a pod's containers, which drops live settings."""
        self._restarts[pod] = self._restarts.get(pod, 0) + 1
        self.admins.forget(pod)
        self.sync()

    def sync(self) -> None:
        for pod in self.all("pod"):
            name = pod["metadata"]["name"]
            if is_going(pod):
                if not any(re.fullmatch(expression, name) for expression in self._kept):
                    self.delete("pod", pod, gracePeriodSeconds=0)
            elif pod["spec"].get("nodeName") and not is_over(pod):
                self._tell(pod)
        self.admins.follow(self.all("pod"))

    def _tell(self, pod: Object) -> None:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        held = any(re.fullmatch(expression, name) for expression in self._held)
        containers = [self._container(container, status, name, held) for container in pod["spec"]["containers"]]
        address = status.get("podIP") or self._addresses.pod()
        self.set_status("pod", pod, status_of(pod, address, containers, [], initialized=True))

    def _container(self, container: Object, status: Object, pod: str, held: bool) -> ContainerState:
        previous = next((old for old in status.get("containerStatuses", ()) if old["name"] == container["name"]), {})
        restarts = self._restarts.get(pod, 0)
        for expression, (reason, message) in self._broken.items():
            if re.fullmatch(expression, container["image"]):
                return ContainerState(container["name"], container["image"], waiting(reason, message))
        since = previous.get("state", {}).get("running", {}).get("startedAt", now())
        return ContainerState(container["name"], container["image"], running(since), not held, not held, restarts)

    async def close(self) -> None:
        await self.admins.close()

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
            self._limited, self._until = asked["settings"], time.monotonic() + asked["seconds"]
        else:
            self.generation, self.base, self._until = asked["generation"], asked["settings"], 0.0
        return ""

    def report(self) -> dict[str, Any]:
        left = self._until - time.monotonic()
        report = {"generation": self.generation, "base": self.base, "settings": self.base}
        return report if left <= 0 else report | {"settings": self.base | self._limited, "seconds": left}


class Admins:
    """The admin ports of idle pods: health, metrics set by a test, and live settings."""

    def __init__(self, kubelet: IdleKubelet) -> None:
        self._kubelet = kubelet
        self._runners: dict[str, web.AppRunner] = {}
        self._live: dict[str, Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.deaf: set[str] = set()
        """Pods that reject settings with status 500."""
        self.metrics: Callable[[str], str] = lambda pod: "ok\n"
        """Response to /metrics by pod name."""
        self.puts: list[tuple[str, dict[str, Any]]] = []
        """Accepted settings with the pod's name, oldest first."""

    def forget(self, pod: str) -> None:
        for uid in [uid for uid in self._live if uid.endswith(f"/{pod}")]:
            del self._live[uid]

    def report(self, pod: str) -> dict[str, Any]:
        """Returns a pod's response to /settings."""
        return next(live.report() for uid, live in self._live.items() if uid.endswith(f"/{pod}"))

    def follow(self, pods: list[Object]) -> None:
        """Serves the admin ports of exactly these pods."""
        wanted = {f"{pod['metadata']['uid']}/{pod['metadata']['name']}": pod for pod in pods if _admin_port(pod)}
        for uid in self._runners.keys() - wanted.keys():
            self._later(self._runners.pop(uid).cleanup())
        for uid, pod in wanted.items():
            if uid not in self._runners:
                self._runners[uid] = web.AppRunner(self._application(uid, pod))
                self._later(self._start(self._runners[uid], pod["status"]["podIP"], _admin_port(pod)))

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

    def _application(self, uid: str, pod: Object) -> web.Application:
        async def ok(request: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        name = pod["metadata"]["name"]

        async def metrics(request: web.Request) -> web.Response:
            return web.Response(text=self.metrics(name))

        async def get(request: web.Request) -> web.Response:
            return web.json_response(self._live_of(uid, pod).report())

        async def put(request: web.Request) -> web.Response:
            asked = await request.json()
            if name in self.deaf:
                return web.json_response({"error": {"message": "not now"}}, status=500)
            if refusal := self._live_of(uid, pod).put(asked):
                return web.json_response({"error": {"message": refusal}}, status=409)
            self.puts.append((name, asked))
            return web.json_response(self._live_of(uid, pod).report())

        application = web.Application()
        application.router.add_get("/settings", get)
        application.router.add_put("/settings", put)
        application.router.add_get("/metrics", metrics)
        for path in ("/healthz", "/readyz"):
            application.router.add_get(path, ok)
        return application

    def _live_of(self, uid: str, pod: Object) -> Live:
        if uid not in self._live:
            mounted = self._kubelet.mounted_settings(pod)
            self._live[uid] = Live(mounted["generation"], mounted["settings"])
        return self._live[uid]


def _admin_port(pod: Object) -> int:
    if not pod.get("status", {}).get("podIP"):
        return 0
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    return next((port["containerPort"] for port in ports if port.get("name") == "admin"), 0)
