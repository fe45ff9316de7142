"""Trimming of leading silence at the public API: the same for every delivery, and reflected in the metrics."""

import asyncio
import base64
import json

import httpx
import pytest

from support.gateway import SERVED, Gateway, Script, tone
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.silence import MIN_LEAD_IN

pytestmark = pytest.mark.virtual

LEAD_IN_SECONDS = MIN_LEAD_IN / FAMILY.sample_rate
"""Seconds kept of the script's silence, whose samples are all zero."""


def sent(silent: int, frames: int = 10) -> bytes:
    """The PCM that a client receives of a script."""
    return bytes(2 * MIN_LEAD_IN) + tone(frames)[silent * FAMILY.frame_bytes :]


def deltas(response: httpx.Response) -> tuple[list[bytes], dict]:
    *events, done = [json.loads(block.removeprefix("data: ")) for block in response.text.strip().split("\n\n")]
    return [base64.b64decode(event["audio"]) for event in events], done


async def wait_for_outcome(running: Gateway, outcome: str = "stop") -> None:
    await until(lambda: running.metric("syrinx_requests_total", task_type="CustomVoice", outcome=outcome), "counted")


def reported(running: Gateway) -> int:
    """Frames reported to the talkers as played."""
    seen = running.stages.seen
    last = running.streams.last_position(seen[0].id, StreamKind.PLAYBACK) if seen else None
    return last.frames if last else -1


@pytest.mark.parametrize("chunk", [1, 2, 10])
@pytest.mark.parametrize("silent", [1, 2, 3])
async def test_streams_and_files_are_trimmed_alike(running: Gateway, silent: int, chunk: int):
    running.stages.script = Script(silent=silent, chunk=chunk)
    whole = await running.say(response_format="pcm", stream=False)
    assert whole.content == sent(silent)
    assert float(whole.headers["x-audio-seconds"]) == pytest.approx(
        (10 - silent) * FAMILY.frame_seconds + LEAD_IN_SECONDS, abs=1e-3
    )
    assert (await running.say(response_format="pcm", stream=True)).content == sent(silent)
    audio, done = deltas(await running.say(response_format="pcm", stream_format="sse"))
    assert b"".join(audio) == sent(silent)
    assert all(audio)
    assert done["usage"]["output_tokens"] == 10, "trimmed frames count as generated"


async def test_trimmed_frames_are_reported_as_played_at_once(running: Gateway):
    """Otherwise a talker at its lead limit would wait for playback forever."""
    running.stages.script = script = Script(silent=2, chunk=1, pause_after=1)
    call = asyncio.create_task(running.say(stream=True, response_format="pcm"))
    await until(lambda: reported(running) == 1, "the silent frame was reported")
    assert running.metric("syrinx_live_streams") == 0, "nothing was delivered yet"
    script.go.set()
    assert (await call).content == sent(2)


async def test_failure_during_leading_silence_is_an_error_response(running: Gateway):
    running.stages.script = Script(frames=2, silent=2, end=End(EndReason.ERROR, "gave up"))
    response = await running.say(stream=True)
    assert (response.status_code, response.json()["error"]["message"]) == (500, "gave up")


async def test_metrics_measure_the_audio_that_was_sent(running: Gateway):
    running.stages.script = script = Script(silent=3, chunk=4, pause_after=4)
    call = asyncio.create_task(running.say(stream=True))
    await until(lambda: running.metric("syrinx_live_streams"), "it was live")
    # By then one frame and the lead-in have been played, without the three trimmed frames: playback stalls.
    await asyncio.sleep(FAMILY.frame_seconds + LEAD_IN_SECONDS + 0.1)
    script.go.set()
    await call
    await wait_for_outcome(running)
    ttfa, first_byte = (running.metric(f"syrinx_{name}_seconds_sum", **SERVED) for name in ("ttfa", "first_byte"))
    assert ttfa == pytest.approx(first_byte + LEAD_IN_SECONDS)
    assert running.metric("syrinx_underruns_total", **SERVED) == 1
    assert 0.05 < running.metric("syrinx_underrun_seconds_total", **SERVED) < 0.5
    seconds = len(sent(3)) / 2 / FAMILY.sample_rate
    assert running.metric("syrinx_audio_seconds_total", **SERVED) == pytest.approx(seconds)
