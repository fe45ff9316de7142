"""Each outcome of a stream, provoked in a pipeline of real processes."""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from support.waiting import DEADLINE
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.local.supervisor import Member
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline
from syrinx_operator.resource.tuning import SloSpec, TtfaObjective
from syrinx_stages.gateway.client import REPEAT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "The old teacher carried seven green apples before breakfast. Her brother opened a broken window."
BODY = {"input": TEXT, "response_format": "pcm", "stream": True, "seed": 1}
SLOW = BODY | {"speed": 0.25}
"""Played at a quarter of the speed, with which a busy machine keeps pace, too."""
SETTINGS = {"max_queue": 256, "max_queue_seconds": 60.0, "ttfa_seconds": {}}
"""Of the gateway, before each test. A busy machine is no reason to refuse or to be late."""
_SAMPLE = re.compile(r"syrinx_stream(?:s_accepted|_outcomes)_total\{(.*?)\} (\S+)")


class Running:
    """The pipeline and a client of it."""

    def __init__(self, pipeline: LocalPipeline, client: httpx.AsyncClient) -> None:
        self.pipeline, self.client = pipeline, client
        self.before = Counter[str]()
        """What was counted before the test."""

    def member(self, stage: str) -> Member:
        return next(member for member in self.pipeline.members if member.stage == stage)

    async def put(self, stage: str, seconds: float | None = None, **settings: object) -> None:
        """Changes settings of a stage, for a time if `seconds` is given."""
        body = {"settings": settings, **({} if seconds is None else {"seconds": seconds})}
        url, headers = self.member(stage).settings_url or "", self.pipeline.settings_headers
        (await self.client.put(url, json=body, headers=headers)).raise_for_status()

    async def say(self) -> int:
        """Sends a request, reads the response and returns its status."""
        async with asyncio.timeout(DEADLINE):
            return (await self.client.post("/v1/audio/speech", json=SLOW)).status_code

    def signal(self, stage: str, number: signal.Signals) -> None:
        pid = next(child.pid for child in self.pipeline.processes if child.stage == stage)
        assert pid is not None
        os.kill(pid, number)

    async def counts(self) -> dict[str, int]:
        """Returns what was counted since the test began: `accepted` and outcomes, as `arm/outcome` within an arm."""
        text = (await self.client.get(f"{self.member('gateway').admin_url}/metrics")).text
        found = Counter[str]()
        for labels, value in _SAMPLE.findall(text):
            label = dict(re.findall(r'(\w+)="(.*?)"', labels))
            name = label.get("outcome", "accepted")
            found[f"{label['arm']}/{name}" if label["arm"] else name] += round(float(value))
        return dict(found - self.before)

    async def counted(self, **expected: int) -> None:
        """Waits for these counts, and compares all others with 0."""
        until = time.monotonic() + DEADLINE
        while not expected.items() <= (found := await self.counts()).items() and time.monotonic() < until:
            await asyncio.sleep(0.05)
        assert found == expected


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline() -> AsyncIterator[Running]:
    slo = SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=10_000),))
    resource = msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(slo=slo))
    async with (
        LocalPipeline(resource, port=0) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
    ):
        yield Running(local, client)


@pytest_asyncio.fixture(loop_scope="module")
async def running(pipeline: Running) -> Running:
    await pipeline.put("gateway", **SETTINGS)
    pipeline.before += Counter(await pipeline.counts())
    return pipeline


async def test_the_objectives_of_the_resource_are_in_force(pipeline: Running) -> None:
    url, headers = pipeline.member("gateway").settings_url or "", pipeline.pipeline.settings_headers
    report: dict[str, Any] = (await pipeline.client.get(url, headers=headers)).json()
    assert report["settings"]["ttfa_seconds"] == {"CustomVoice": 10.0}


async def test_well(running: Running) -> None:
    assert await running.say() == 200
    await running.counted(accepted=1, well=1)


async def test_late(running: Running) -> None:
    await running.put("gateway", ttfa_seconds={"CustomVoice": 0.001})
    assert await running.say() == 200
    await running.counted(accepted=1, late=1)


async def test_refused(running: Running) -> None:
    await running.put("gateway", max_queue=0)
    assert await running.say() == 503
    await running.counted(accepted=1, refused=1)
    await asyncio.sleep(REPEAT_SECONDS)


async def test_interrupted(running: Running) -> None:
    """The codec pauses in a stream that is hardly ahead of its listener."""
    await running.put("talker", lead_limit_seconds=0.2)
    async with running.client.stream("POST", "/v1/audio/speech", json=BODY) as response:
        assert response.status_code == 200
        audio = response.aiter_raw()
        await anext(audio)
        running.signal("codec", signal.SIGSTOP)
        try:
            await running.counted(accepted=1, interrupted=1)
        finally:
            running.signal("codec", signal.SIGCONT)
        assert [chunk async for chunk in audio]
    await running.put("talker", lead_limit_seconds=8.0)
    await running.counted(accepted=1, interrupted=1)


async def test_failed_and_void(running: Running) -> None:
    """The only codec is missing for more than `max_queue_seconds`. One client does not wait for that."""
    running.signal("codec", signal.SIGSTOP)
    try:
        waiting, leaving = asyncio.create_task(running.say()), asyncio.create_task(running.say())
        await running.counted(accepted=2)
        await running.put("gateway", max_queue_seconds=1.0)
        leaving.cancel()
        await running.counted(accepted=2, void=1)
        assert await waiting == 503
        await running.counted(accepted=2, void=1, failed=1)
    finally:
        running.signal("codec", signal.SIGCONT)


async def test_the_arm_of_a_trial_labels_its_streams(running: Running) -> None:
    await running.put("gateway", seconds=60.0, arm="t1")
    assert await running.say() == 200
    await running.counted(**{"t1/accepted": 1, "t1/well": 1})
