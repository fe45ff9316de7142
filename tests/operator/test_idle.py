"""A pipeline that nobody uses: the operator writes nothing, and says from the beginning what it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.listeners import Listeners
from support.operator import Harness
from support.stage_metrics import Gateway, Worker

pytestmark = pytest.mark.virtual

HOUR = 3600.0
USUAL = {"SYRINX_RESYNC_SECONDS": "60", "SYRINX_RELIST_SECONDS": "300"}
OBJECTIVE = {"slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]}}
SCALED: dict[str, Any] = {"talker": {"autoscaling": {"maxReplicas": 3}}, **OBJECTIVE}
RECOMMEND = {"tuning": {"mode": "Recommend"}}
NIGHT = pytest.mark.night


def idle(pod: str) -> str:
    """Returns the /metrics of a stage that has served nothing."""
    stage = pod.split("-")[1]
    return Gateway(pod).text if stage == "gateway" else Worker(pod, stage).text


async def written(harness: Harness, seconds: float) -> list[str]:
    """Returns what the operators write within this time, but for the renewal of Leases."""
    before = len(harness.writes())
    await asyncio.sleep(seconds)
    return harness.writes()[before:]


@pytest.mark.parametrize(
    "spec", [{}, SCALED, {"tuning": {"mode": "Recommend"}}], ids=["default", "scaled", "Recommend"]
)
async def test_a_pipeline_that_was_never_used_is_not_written(harness, spec):
    harness.cluster.kubelet.admins.metrics = idle
    async with harness.operator(**USUAL):
        harness.apply(**spec)
        await harness.settled()
        await asyncio.sleep(60)
        assert await written(harness, HOUR) == []


@pytest.mark.parametrize("spec", [{}, pytest.param(SCALED, marks=NIGHT)])
async def test_a_pipeline_that_is_no_longer_used_is_not_written(harness, spec):
    admins = harness.cluster.kubelet.admins
    listeners = Listeners(("demo-codec-0",), lambda pod: admins.report(pod)["settings"], rows=0, late=0.0)
    admins.metrics = listeners.metrics
    async with harness.operator(**USUAL):
        harness.apply(**spec)
        await harness.settled()
        assert await written(harness, HOUR / 4), "what was learned"
        listeners.per_second = 0.0
        await asyncio.sleep(HOUR / 3)
        assert await written(harness, HOUR) == []


async def test_what_the_tuner_says_is_right_from_the_first_second(harness):
    kubelet = harness.cluster.kubelet
    kubelet.admins.metrics = idle
    kubelet.start_seconds = 20
    async with harness.operator(**USUAL):
        harness.apply(**OBJECTIVE)
        await harness.wait(lambda: "no gateway is ready" in message(harness), "the gateway starts")
        assert harness.condition("Ready")["status"] == "False"
        await harness.settled()
        assert message(harness) == "no streaming request in the evaluation window"


def message(harness: Harness) -> str:
    found: str = harness.cluster.get("ttspipeline", "demo")["status"]["tuning"]["message"]
    return found
