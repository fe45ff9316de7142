"""The capacity of a pipeline while a canary is promoted, aborted or replaced: it is never below what it was before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.canaried import NEW, OLD, Pipeline, never_below
from support.operator import Harness

pytestmark = pytest.mark.virtual

HALF, TENTH = ({"steps": [{"weight": weight, "pauseSeconds": 60}], "minRequests": 5} for weight in (50, 10))
"""When these are promoted, all pods have been as they are for more than a minute."""
LASTING = {"steps": [{"weight": 50, "pauseSeconds": 3600}]}
NEWER = "syrinx/stages:3"
USUAL = {"SYRINX_RESYNC_SECONDS": "15"}
MOMENTS = [*(pytest.param(each, marks=pytest.mark.night) for each in (1, 15, 45, 60)), 30]
"""Seconds after the begin of a roll-out of one replica, each in another phase of it."""


@pytest.fixture
async def pipeline(harness: Harness) -> Pipeline:
    harness.cluster.kubelet.start_seconds, harness.cluster.kubelet.stop_seconds = 20, 10
    return Pipeline(harness)


@pytest.fixture
async def promoted(pipeline: Pipeline, harness: Harness) -> AsyncIterator[Pipeline]:
    """A pipeline whose canary was just promoted."""
    async with harness.operator(**USUAL):
        await pipeline.start(HALF)
        await pipeline.phase("Promoted")
        yield pipeline


@pytest.mark.parametrize(
    ("canary", "replicas"),
    [
        pytest.param(HALF, 2, id="50-2"),
        pytest.param(TENTH, 3, id="10-3"),
        *(pytest.param(HALF, each, id=f"50-{each}", marks=pytest.mark.night) for each in (1, 3, 4)),
        *(pytest.param(TENTH, each, id=f"10-{each}", marks=pytest.mark.night) for each in (1, 2, 4, 5)),
    ],
)
async def test_a_promotion_costs_no_capacity(pipeline, canary, replicas):
    async with pipeline.harness.operator(**USUAL):
        await pipeline.start(canary, talker={"replicas": replicas})
        async with never_below(pipeline.harness, replicas):
            await pipeline.complete(NEW)
            await pipeline.alone()


async def test_a_canary_serves_its_share_until_the_new_version_is_complete(promoted):
    before = {pod["metadata"]["uid"] for pod in promoted.canary()}
    while promoted.status:
        assert {pod["metadata"]["uid"] for pod in promoted.canary()} == before
        assert promoted.harness.condition("Progressing")["reason"] != "Complete"
        await asyncio.sleep(1)
    assert promoted.resource["status"]["image"] == NEW
    await promoted.alone()


@pytest.mark.parametrize("seconds", MOMENTS)
async def test_another_operator_continues_a_promotion(pipeline, seconds):
    async with pipeline.harness.operator(**USUAL) as operator:
        await pipeline.start(HALF)
        await pipeline.phase("Promoted")
        await asyncio.sleep(seconds)
        await operator.kill()
    async with never_below(pipeline.harness, 1):
        await asyncio.sleep(10)
        async with pipeline.harness.operator(**USUAL):
            await pipeline.complete(NEW)
            await pipeline.alone()


@pytest.mark.parametrize("seconds", MOMENTS)
async def test_an_edit_during_a_promotion_is_tested_after_it(promoted, seconds):
    async with never_below(promoted.harness, 1):
        await asyncio.sleep(seconds)
        promoted.edit(image=NEWER)
        await promoted.harness.wait(lambda: promoted.image == NEW, "the promoted version is rolled out", seconds=600)
        await promoted.complete(NEWER)
        await promoted.alone()
    assert len(promoted.harness.messages("CanaryPromoted")) == 2


async def test_a_canary_that_is_aborted_ends_after_its_last_request(pipeline):
    async with pipeline.harness.operator(**USUAL):
        await pipeline.start(LASTING, talker={"replicas": 2})
        await pipeline.phase("Running")
        async with never_below(pipeline.harness, 2):
            await pipeline.follows("abort")
            await pipeline.rolled_back("CanaryAborted")


@pytest.mark.parametrize("image", [OLD, NEWER])
async def test_an_edit_during_a_canary_ends_it_after_its_last_request(pipeline, image):
    async with pipeline.harness.operator(**USUAL):
        await pipeline.start(LASTING, talker={"replicas": 2})
        await pipeline.phase("Running")
        async with never_below(pipeline.harness, 2):
            pipeline.edit(image=image)
            await pipeline.harness.wait(lambda: (pipeline.status.get("image") == NEWER) == (image == NEWER), "it ends")
            if image == NEWER:
                await pipeline.phase("Running")
            else:
                await pipeline.alone()
    assert pipeline.running() == pipeline.before


async def test_a_canary_starts_after_the_roll_out_of_the_running_version(pipeline):
    """The pods of both may need the same room, and neither would go on without it."""
    async with pipeline.harness.operator(**USUAL):
        pipeline.harness.apply(image=OLD, talker={"replicas": 2})
        await pipeline.harness.settled()
        await pipeline.complete()
        pipeline.edit(image=NEW)
        await asyncio.sleep(30)
        pipeline.edit(image=NEWER, rollout={"canary": LASTING})
        await pipeline.phase("Starting")
        while pipeline.status["phase"] == "Starting":
            outdated = {pod["metadata"]["name"] for pod in pipeline.of_image(OLD)}
            assert not outdated or not pipeline.canary(), outdated
            await asyncio.sleep(1)
        assert pipeline.resource["status"]["image"] == NEW and pipeline.status["weight"] == 50


@pytest.mark.parametrize("seconds", MOMENTS)
async def test_an_edit_during_a_roll_out_costs_no_capacity(pipeline, seconds):
    async with pipeline.harness.operator(**USUAL):
        pipeline.harness.apply(image=OLD)
        await pipeline.harness.settled()
        async with never_below(pipeline.harness, 1):
            pipeline.edit(image=NEW)
            await asyncio.sleep(seconds)
            pipeline.edit(image=NEWER)
            await pipeline.complete(NEWER)
