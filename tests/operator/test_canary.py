"""Canaries on the emulated cluster: promoted, rolled back, commanded, restarted and edited."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from support.operator import Harness
from support.stage_metrics import Gateway
from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.clock import monotonic

pytestmark = pytest.mark.virtual

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
        await self.harness.wait(lambda: self.harness.condition("Progressing")["reason"] == "Complete", "it is complete")
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
    def status(self) -> dict[str, Any]:
        return self.resource["status"].get("canary") or {}

    def running(self) -> dict[str, str]:
        """Returns the UIDs of the running version's pods."""
        return {name: uid for name, uid in self.harness.uids().items() if PODS.fullmatch(name)}

    def canary(self) -> list[dict[str, Any]]:
        return [pod for pod in self.harness.cluster.list("pod") if CANARY.match(pod["metadata"]["name"])]

    def weight(self) -> float:
        """Returns the share that the gateway of the running version forwards."""
        name = next(name for name in self.running() if "gateway" in name)
        report = self.harness.cluster.kubelet.admins.report(name)
        return report["settings"].get("canary", {}).get("weight", 0.0)

    async def phase(self, phase: str) -> None:
        await self.harness.wait(lambda: self.status.get("phase") == phase, f"the canary is {phase}")

    async def forwarded(self) -> None:
        await self.harness.wait(lambda: self.weight() == 0.1, "the gateway forwards 10 % of the requests")

    async def rolled_back(self, reason: str) -> None:
        """Waits until a canary has failed and has left nothing but the status."""
        await self.phase("RolledBack")
        await self.harness.wait(lambda: not self.canary() and self.weight() == 0.0, "nothing of the canary is left")
        assert self.running() == self.before, "no pod of the running version was touched"
        degraded = self.harness.condition("Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", reason) and "retry" in degraded["message"]
        assert self.harness.condition("Ready")["status"] == "True"
        assert {name for name in self.harness.objects() if CANARY.search(name)} == set()


@pytest.fixture
async def pipeline(harness: Harness) -> AsyncIterator[Pipeline]:
    yield Pipeline(harness)
    assert harness.cluster.rights.denied == []


async def test_a_good_canary_is_promoted_although_its_operator_is_killed(pipeline):
    async with pipeline.harness.operator() as operator:
        await pipeline.start(QUICK)
        await pipeline.forwarded()
        before, pods = pipeline.status, pipeline.canary()
        await operator.kill()
    assert pipeline.weight() == 0.1, "until its lease ends"
    async with pipeline.harness.operator():
        await pipeline.harness.wait(lambda: pipeline.status.get("periodTime"), "it is counted")
        assert pipeline.status["startTime"] == before["startTime"]
        assert [pod["metadata"]["uid"] for pod in pipeline.canary()] == [pod["metadata"]["uid"] for pod in pods]
        assert pipeline.running() == pipeline.before
        assert {pod["spec"]["containers"][0]["image"] for pod in pipeline.canary()} == {NEW}
        assert pipeline.harness.condition("Progressing")["reason"] == "Canary"
        assert pipeline.resource["status"]["image"] == OLD
        await pipeline.harness.wait(lambda: not pipeline.status, "the canary is over")
        await pipeline.harness.settled()
        await pipeline.harness.wait(
            lambda: pipeline.harness.condition("Progressing")["reason"] == "Complete", "the new version is rolled out"
        )
        assert pipeline.resource["status"]["image"] == NEW and not pipeline.canary()
        assert not pipeline.running().keys() & pipeline.before.keys() or pipeline.running() != pipeline.before
    assert {"CanaryStarted", "CanaryStep", "CanaryPromoted", "ImageChanged"} <= pipeline.harness.reasons()


async def test_a_canary_and_a_pipeline_that_is_called_like_it_share_nothing(pipeline):
    cluster = pipeline.harness.cluster

    def others() -> dict[tuple[str, str], str]:
        kinds = ("deployment", "statefulset", "service", "configmap", "secret", "pod")
        found = (each for kind in kinds for each in cluster.list(kind, "syrinx.dev/pipeline=demo-canary"))
        return {(each["kind"], each["metadata"]["name"]): each["metadata"]["uid"] for each in found}

    async with pipeline.harness.operator():
        pipeline.harness.apply("demo-canary", image=OLD)
        await pipeline.harness.settled("demo-canary")
        before = others()
        await pipeline.start(ENDLESS)
        await pipeline.forwarded()
        assert pipeline.harness.condition("Degraded")["status"] == "False"
        pipeline.command("abort")
        await pipeline.rolled_back("CanaryAborted")
        assert others() == before
        assert pipeline.harness.condition("Ready", "demo-canary")["status"] == "True"


async def test_a_failed_canary_is_not_tried_again_before_an_edit(pipeline):
    pipeline.traffic.outcome = "error"
    async with pipeline.harness.operator() as operator:
        await pipeline.start(ENDLESS)
        await pipeline.rolled_back("CanaryFailed")
        assert "it fails requests" in pipeline.status["message"] and "CanaryFailed" in pipeline.harness.reasons()
        await operator.reconciled(3)
        assert not pipeline.canary()
    async with pipeline.harness.operator() as operator:
        await operator.ready()
        await operator.reconciled(3)
        assert not pipeline.canary(), "nor by another operator"
        pipeline.traffic.outcome = "stop"
        pipeline.edit(image="syrinx/stages:3")
        await pipeline.forwarded()
        assert pipeline.harness.condition("Degraded")["status"] == "False"
        pipeline.edit(image=OLD)
        await pipeline.harness.wait(lambda: not pipeline.canary() and not pipeline.status, "the revert ends it")
        assert pipeline.running() == pipeline.before


async def test_commands_are_followed_and_removed(pipeline):
    async with pipeline.harness.operator():
        await pipeline.start(ENDLESS)
        await pipeline.forwarded()
        await pipeline.follows("revert")
        assert "UnknownCommand" in pipeline.harness.reasons() and pipeline.status["phase"] == "Running"
        await pipeline.follows("abort")
        await pipeline.rolled_back("CanaryAborted")
        await pipeline.follows("retry")
        await pipeline.forwarded()
        await pipeline.follows("promote")
        await pipeline.harness.wait(lambda: pipeline.resource["status"]["image"] == NEW, "it is rolled out")


@pytest.mark.night
async def test_the_command_line_shows_and_commands_a_canary(pipeline, command):
    rollout = partial(command, "kubectl-syrinx", "rollout")
    async with pipeline.harness.operator():
        pipeline.harness.apply(image=OLD, rollout={"canary": ENDLESS})
        await pipeline.harness.settled()
        assert await rollout("pause") == (1, "kubectl syrinx rollout: demo has no canary\n")
        pipeline.edit(image=NEW)
        await pipeline.forwarded()
        code, output = await rollout("status")
        assert code == 0 and output.startswith(f"demo: canary of {NEW}: Running\n") and "10 %" in output
        code, output = await rollout("retry")
        assert code == 1 and "possible are promote, abort, pause, resume" in output
        assert (await rollout("pause"))[0] == 0
        await pipeline.harness.wait(lambda: pipeline.status.get("paused"), "it is paused")
        assert (await rollout("abort"))[0] == 0
        await pipeline.phase("RolledBack")
        assert "aborted by the user" in (await rollout("status"))[1]
