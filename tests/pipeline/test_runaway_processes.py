"""A runaway in a pipeline of real processes: its talker is killed, and the next one comes to the same end."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
from msgspec import structs

from guard import checkpoints
from support.local_pipeline import local_pipeline
from support.waiting import DEADLINE
from syrinx_operator.resource.model import ModelSpec
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline
from syrinx_stages.contract.messages import TaskType

TEXT = "The old teacher carried seven green apples before breakfast, and her brother opened a broken window."
BODY = {"input": TEXT, "voice": "us", "response_format": "pcm", "stream": False, "seed": 1}


async def say(client: httpx.AsyncClient) -> httpx.Response:
    response = await client.post("/v1/audio/speech", json=BODY)
    assert response.status_code == 200, response.text
    return response


async def test_a_talker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    endless = checkpoints.write(tmp_path / "endless", TaskType.CUSTOM_VOICE, ends=False)
    spec = PipelineSpec(model=ModelSpec(path=str(endless)))
    async with (
        local_pipeline(structs.replace(default_pipeline(), spec=spec)) as local,
        httpx.AsyncClient(base_url=local.gateway_url, timeout=DEADLINE) as client,
    ):
        expected = await say(client)
        assert (expected.headers["X-Finish-Reason"], expected.headers["X-Retries"]) == ("runaway", "2")
        talker = next(child.pid for child in local.processes if child.stage == "talker")
        assert talker is not None
        again = asyncio.create_task(say(client))
        await asyncio.sleep(0.3)
        assert not again.done()
        os.kill(talker, signal.SIGKILL)
        received = await again
    assert received.content == expected.content
    names = ("X-Finish-Reason", "X-Retries", "X-Seed")
    assert [received.headers[name] for name in names] == [expected.headers[name] for name in names]
