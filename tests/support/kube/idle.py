"""A kubelet without processes: pods become ready, and their admin and settings ports respond like a stage's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from support.kube.api import Api
from support.kube.controllers import Controller, is_going, is_ready
from support.kube.networks import Addresses
from support.kube.pods import ContainerState, running, status_of
from support.kube.store import Object
from support.kube.volumes import value_of
from support.virtual import stamp
from syrinx_operator.cluster.objects.names import CANARY_PREFIX, COLOCATED, COMPONENT_LABEL, OWN
from syrinx_stages.contract.settings import (
    SETTINGS_PORT,
    TOKEN_HEADER,
    TOKEN_VARIABLE,
    CodecSettings,
    GatewaySettings,
    TalkerSettings,
)
from syrinx_stages.runtime.errors import SettingsError
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate

_SETTINGS = {"gateway": GatewaySettings, "talker": TalkerSettings, "codec": CodecSettings}


class IdleKubelet(Controller):
    """Makes every pod ready, at once by default; a gateway once a talker and a codec of its model generation are."""

    manager = "kubelet"

    def __init__(self, api: Api, addresses: Addresses) -> None:
        super().__init__(api)
        self._addresses = addresses
        self.admins = Admins(self)
        self.failures: list[BaseException] = []
        self.start_seconds = 0.0
        """Between the start of a pod and the time from which it can be ready."""
        self.stop_seconds = 0.0
        """Between the request to end and the end of a pod."""
        self._starting: set[str] = set()
        """UIDs of the pods that run and have not been ready."""
        self._timers: dict[tuple[str, bool], asyncio.TimerHandle] = {}
        """By UID, and whether the pod ends."""

    def sync(self) -> None:
        for pod in self.all("pod"):
            if is_going(pod):
                if self._has_passed(pod, self.stop_seconds):
                    self.delete("pod", pod, gracePeriodSeconds=0)
            elif "podIP" not in pod["status"]:
                self._starting.add(pod["metadata"]["uid"])
                self._report(pod, self._addresses.pod(), ready=self._can_be_ready(pod))
            elif pod["metadata"]["uid"] in self._starting and self._can_be_ready(pod):
                self._report(pod, pod["status"]["podIP"], ready=True)
        self.admins.follow(self.all("pod"))

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await self.admins.close()

    def _report(self, pod: Object, address: str, *, ready: bool) -> None:
        if ready:
            self._starting.discard(pod["metadata"]["uid"])
        containers = [
            ContainerState(each["name"], each["image"], running(stamp()), ready=ready, started=ready)
            for each in pod["spec"]["containers"]
        ]
        self.set_status("pod", pod, status_of(pod, address, containers))

    def _has_passed(self, pod: Object, seconds: float) -> bool:
        """Returns whether a pod has been starting, or ending, for so long."""
        if not seconds:
            return True
        key, loop = (pod["metadata"]["uid"], is_going(pod)), asyncio.get_running_loop()
        if key not in self._timers:
            self._timers[key] = loop.call_later(seconds, self.sync)
        return loop.time() >= self._timers[key].when()

    def _can_be_ready(self, pod: Object) -> bool:
        component = pod["metadata"]["labels"].get(COMPONENT_LABEL, "")
        if not self._has_passed(pod, self.start_seconds):
            return False
        prefix, is_gateway, _ = component.partition("gateway")
        if not is_gateway:
            return True
        return {f"{prefix}talker", f"{prefix}codec"} <= set(self._serving(pod))

    def _serving(self, gateway: Object) -> Iterator[str]:
        """Yields the stages that serve a gateway: the component labels of ready pods of its model generation."""
        for pod in self.all("pod", gateway["metadata"]["namespace"]):
            if is_ready(pod) and not is_going(pod) and generation_of(pod) == generation_of(gateway):
                component = pod["metadata"]["labels"][COMPONENT_LABEL]
                yield component
                if COLOCATED.annotation in pod["metadata"]["annotations"]:
                    yield component.replace("talker", "codec")

    def token(self, pod: Object) -> str | None:
        """Returns the token in the environment of a stage."""
        for variable in pod["spec"]["containers"][0].get("env", ()):
            if variable["name"] == TOKEN_VARIABLE:
                return value_of(partial(self._find, pod), pod, variable["valueFrom"])
        return None

    def mounted_settings(self, pod: Object) -> LiveSettings[Any]:
        """Returns the settings that a stage reads at its start."""
        names = (volume.get("configMap", {}).get("name", "") for volume in pod["spec"]["volumes"])
        found = (self._find(pod, "configmap", name) for name in names)
        text = next(each["data"]["settings.json"] for each in found if each and "settings.json" in each["data"])
        stage = pod["metadata"]["labels"][COMPONENT_LABEL].removeprefix(CANARY_PREFIX)
        content = json.loads(text)
        return LiveSettings(msgspec.convert(content["settings"], _SETTINGS[stage]), content["generation"])

    def _find(self, pod: Object, kind: str, name: str) -> Object | None:
        return self.api.store.get(self.kind(kind), pod["metadata"]["namespace"], name)


def generation_of(pod: Object) -> str:
    """Returns the model generation in the start configuration of a stage; empty for others."""
    config = json.loads(pod["metadata"].get("annotations", {}).get(OWN.annotation, "{}"))
    generation: str = config.get("generation", "")
    return generation


def _report(live: LiveSettings[Any]) -> dict[str, Any]:
    settings, base = (msgspec.to_builtins(each) for each in (live.current, live.base))
    report = {"generation": live.generation, "base": base, "settings": settings}
    return report if live.seconds_left is None else report | {"seconds": live.seconds_left}


class Admins:
    """The ports of idle pods: health, metrics set by a test, and live settings; the latter with a token."""

    def __init__(self, kubelet: IdleKubelet) -> None:
        self._kubelet = kubelet
        self._runners: dict[str, web.ServerRunner] = {}
        self._live: dict[str, LiveSettings[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics: Callable[[str], str] = lambda pod: "ok\n"
        """Response to /metrics by pod name."""
        self.warnings: list[str] = []
        """What all stages warn of."""
        self.puts: list[tuple[str, dict[str, Any]]] = []
        """Accepted settings with the pod's name, oldest first."""

    def report(self, pod: str) -> dict[str, Any]:
        """Returns a pod's response to /settings."""
        found = self.find(pod)
        assert found is not None, f"nobody has asked {pod}"
        return found

    def find(self, pod: str) -> dict[str, Any] | None:
        """Returns a pod's response to /settings; None if nobody has asked for it yet."""
        # The newest pod of that name.
        uids = [uid for uid in self._live if uid.endswith(f"/{pod}")]
        return _report(self._live[uids[-1]]) if uids else None

    def follow(self, pods: list[Object]) -> None:
        """Serves the ports of exactly these pods."""
        wanted = {
            f"{pod['metadata']['uid']}/{pod['metadata']['name']}": pod for pod in pods if "podIP" in pod["status"]
        }
        for uid in self._runners.keys() - wanted.keys():
            self._later(self._runners.pop(uid).cleanup())
        for uid, pod in wanted.items():
            if uid not in self._runners:
                token = self._kubelet.token(pod)
                self._runners[uid] = web.ServerRunner(web.Server(partial(self._answer, uid, pod, token)))
                self._later(self._start(self._runners[uid], pod))

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
    async def _start(runner: web.ServerRunner, pod: Object) -> None:
        await runner.setup()
        for port in _ports(pod):
            await web.TCPSite(runner, pod["status"]["podIP"], port).start()

    async def _answer(self, uid: str, pod: Object, token: str | None, request: web.BaseRequest) -> web.Response:
        name = pod["metadata"]["name"]
        if request.path == "/metrics":
            return web.Response(text=self.metrics(name))
        if not request.host.endswith(f":{SETTINGS_PORT}"):
            return web.Response(status=404)
        if request.headers.get(TOKEN_HEADER) != token:
            return web.Response(status=401)
        if uid not in self._live:
            self._live[uid] = self._kubelet.mounted_settings(pod)
        if request.method == "PUT":
            asked = await request.json()
            try:
                self._live[uid].apply(msgspec.convert(asked, SettingsUpdate))
            except SettingsError as error:
                return web.json_response({"error": {"message": str(error)}}, status=error.status)
            self.puts.append((name, asked))
        return web.json_response(_report(self._live[uid]) | {"warnings": self.warnings})


def _ports(pod: Object) -> list[int]:
    """Returns the ports for the operator of a pod that runs."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    return [port["containerPort"] for port in ports if port.get("name") in ("admin", "settings")]
