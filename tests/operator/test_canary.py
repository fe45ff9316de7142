"""Canaries on the emulated cluster: promoted, rolled back, commanded, restarted and edited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from support.canaried import ENDLESS, NEW, OLD, QUICK, Pipeline
from support.operator import Harness

pytestmark = pytest.mark.virtual


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
    assert set(pipeline.weights().values()) == {0.1}, "until its lease ends"
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
        assert pipeline.resource["status"]["image"] == NEW
        await pipeline.alone()
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
