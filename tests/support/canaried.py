"""A pipeline on the emulated cluster with a canary, and the capacity that it has meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from support.kube.controllers import is_going, is_ready
from support.kube.idle import generation_of
from support.operator import Harness
from support.stage_metrics import Gateway
from syrinx_operator.cluster.objects.names import COMPONENT_LABEL, PIPELINE_LABEL
from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.clock import monotonic

OLD, NEW = "syrinx/stages:1", "syrinx/stages:2"
QUICK = {"steps": [{"weight": 10, "pauseSeconds": 0}], "minRequests": 5}
ENDLESS = {"steps": [{"weight": 10, "pauseSeconds": 3600}]}
PODS = re.compile(r"demo-(gateway|talker|codec|redis)-(?!canary-).*")
CANARY = re.compile(r"demo-(gateway|talker|codec)-canary")


class Traffic:
    """Requests that both versions have served, as their gateways' counters show: ever more with the time."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._since = monotonic()
        self.outcome = "stop"
        """Of the canary's requests."""

    def text(self, pod: str) -> str:
        is_canary = CANARY.match(pod) is not None
        if "gateway" not in pod:
            return "ok\n"
        requests = int((monotonic() - self._since) * (10 if is_canary else 90))
        gateway = Gateway(pod)
        outcome = self.outcome if is_canary else "stop"
        gateway.metrics[contract.REQUESTS].labels("CustomVoice", outcome).inc(requests)
        return gateway.text


class Pipeline:
    """A ready pipeline with a canary of a new image, and what a test asks of it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.traffic = Traffic(harness)
        harness.cluster.kubelet.admins.metrics = self.traffic.text
        self.before: dict[str, str] = {}

    async def start(self, canary: dict[str, Any], **spec: Any) -> None:
        """Creates the pipeline with the old image, and applies the new one."""
        self.harness.apply(image=OLD, rollout={"canary": canary}, **spec)
        await self.harness.settled()
        await self.complete()
        self.before = self.running()
        self.edit(image=NEW)

    def edit(self, **spec: Any) -> None:
        self.harness.cluster.patch("ttspipeline", "demo", {"spec": spec})

    def command(self, word: str) -> None:
        annotations = {"syrinx.dev/rollout": word}
        self.harness.cluster.patch("ttspipeline", "demo", {"metadata": {"annotations": annotations}})

    async def follows(self, word: str) -> None:
        """Gives a command, which is removed once it was followed."""
        self.command(word)
        await self.harness.wait(lambda: not self.resource["metadata"].get("annotations"), f"{word} is removed")

    @property
    def resource(self) -> dict[str, Any]:
        return self.harness.cluster.get("ttspipeline", "demo")

    @property
    def image(self) -> str:
        """The image of the running version once it is rolled out; empty before."""
        is_complete = self.harness.condition("Progressing")["reason"] in ("Canary", "Complete")
        return self.resource["status"]["image"] if is_complete else ""

    @property
    def status(self) -> dict[str, Any]:
        return self.resource["status"].get("canary") or {}

    def running(self) -> dict[str, str]:
        """Returns the UIDs of the running version's pods."""
        return {name: uid for name, uid in self.harness.uids().items() if PODS.fullmatch(name)}

    def canary(self) -> list[dict[str, Any]]:
        return [pod for pod in self.harness.cluster.list("pod") if CANARY.match(pod["metadata"]["name"])]

    def of_image(self, image: str) -> list[dict[str, Any]]:
        """Returns the pods with an image."""
        pods = self.harness.cluster.list("pod", f"{PIPELINE_LABEL}=demo")
        return [pod for pod in pods if pod["spec"]["containers"][0]["image"] == image]

    def weights(self) -> dict[str, float]:
        """Returns the share that each ready gateway of the running version forwards."""
        pods = _of(_ready_pods(self.harness), "gateway")
        return {pod["metadata"]["name"]: _route(self.harness, pod)["weight"] for pod in pods}

    async def complete(self, image: str = OLD) -> None:
        """Waits until all is as the resource says, without a canary."""

        def holds() -> bool:
            return self.image == image and self.harness.condition("Progressing")["reason"] == "Complete"

        await self.harness.wait(holds, f"{image} is rolled out", seconds=600)

    async def alone(self) -> None:
        """Waits until nothing of a canary is left but the status."""

        def holds() -> bool:
            return not self.canary() and not any(self.weights().values())

        await self.harness.wait(holds, "nothing of the canary is left")

    async def phase(self, phase: str) -> None:
        await self.harness.wait(lambda: self.status.get("phase") == phase, f"the canary is {phase}", seconds=600)

    async def forwarded(self) -> None:
        await self.harness.wait(
            lambda: self.weights() and set(self.weights().values()) == {0.1},
            "the gateway forwards 10 % of the requests",
        )

    async def rolled_back(self, reason: str) -> None:
        """Waits until a canary has failed and has left nothing but the status."""
        await self.phase("RolledBack")
        await self.alone()
        assert self.running() == self.before, "no pod of the running version was touched"
        degraded = self.harness.condition("Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", reason) and "retry" in degraded["message"]
        assert self.harness.condition("Ready")["status"] == "True"
        assert {name for name in self.harness.objects() if CANARY.search(name)} == set()


@contextlib.asynccontextmanager
async def never_below(harness: Harness, replicas: int) -> AsyncIterator[None]:
    """Asserts that the ready gateways have this many talkers for the requests that reach them, and a codec.

    A second passes until the operator has followed a change.
    """
    failures: list[str] = []

    async def watch() -> None:
        since: dict[str, float] = {}
        while True:
            time, found = monotonic(), list(_shortages(harness, {"talker": replicas, "codec": 1}))
            since = {shortage: since.get(shortage, time) for shortage in found}
            failures.extend(f"{time:.1f} s: {shortage}" for shortage in found if time - since[shortage] > 1)
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
    assert not failures, "\n".join(failures[:10])


def _shortages(harness: Harness, needed: dict[str, int]) -> Iterator[str]:
    """Yields what is missing for the requests that a gateway serves itself, and for those that it forwards."""
    pods = _ready_pods(harness)
    gateways = _of(pods, "gateway")
    if not gateways:
        yield "no gateway is ready"
    for gateway in _of(harness.cluster.list("pod"), "canary-gateway"):
        stages = {each for each in needed if any(map(_serves(gateway), _of(pods, f"canary-{each}")))}
        if is_going(gateway) and stages != needed.keys():
            yield f"{gateway['metadata']['name']} serves its last requests with {stages} alone"
    for gateway in gateways:
        name, route = gateway["metadata"]["name"], _route(harness, gateway)
        there = [pod for pod in _of(pods, "canary-gateway") if f"http://{pod['status']['podIP']}:8000" in route["urls"]]
        if len(there) < len(route["urls"]):
            yield f"{name} forwards to a gateway that is gone"
        own = ("", 1 - route["weight"], {generation_of(gateway)})
        forwarded = ("canary-", route["weight"], {generation_of(pod) for pod in there})
        for prefix, share, generations in (own, forwarded):
            for stage, count in needed.items():
                found = sum(generation_of(pod) in generations for pod in _of(pods, prefix + stage))
                if share * count > found + 0.1:
                    yield f"{name}: {found} {prefix}{stage}s for {share:.0%} of the requests of {count}"


def _serves(gateway: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """Returns whether a pod is of a gateway's model generation."""
    return lambda pod: generation_of(pod) == generation_of(gateway)


def _ready_pods(harness: Harness) -> list[dict[str, Any]]:
    pods = harness.cluster.list("pod", f"{PIPELINE_LABEL}=demo")
    return [pod for pod in pods if is_ready(pod) and not is_going(pod)]


def _of(pods: list[dict[str, Any]], component: str) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["metadata"]["labels"][COMPONENT_LABEL] == component]


def _route(harness: Harness, gateway: dict[str, Any]) -> dict[str, Any]:
    """Returns where a gateway forwards requests; nowhere until it was asked."""
    report = harness.cluster.kubelet.admins.find(gateway["metadata"]["name"]) or {"settings": {}}
    found: dict[str, Any] = report["settings"].get("canary", {"weight": 0.0, "urls": []})
    return found
