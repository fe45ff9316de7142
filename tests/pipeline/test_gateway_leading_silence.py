"""Trimming of leading silence at the public API: the same for every delivery."""

import base64

import pytest

from support.gateway import Gateway, Script, events, tone
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import Position, StreamKind
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.silence import MIN_LEAD_IN

pytestmark = pytest.mark.virtual


def sent(silent: int, frames: int = 10) -> bytes:
    """The PCM that a client receives of a script: of its silence, whose samples are all zero, the least is kept."""
    return bytes(2 * MIN_LEAD_IN) + tone(frames)[silent * FAMILY.frame_bytes :]


@pytest.mark.parametrize("chunk", [1, 2, 10])
@pytest.mark.parametrize("silent", [1, 2, 3])
async def test_streams_and_files_are_trimmed_alike(running: Gateway, silent: int, chunk: int):
    running.stages.script = Script(silent=silent, chunk=chunk)
    whole = await running.say(response_format="pcm", stream=False)
    assert whole.content == sent(silent)
    seconds = float(whole.headers["x-audio-seconds"])
    assert seconds == pytest.approx(len(sent(silent)) / 2 / FAMILY.sample_rate, abs=1e-3)
    assert (await running.say(response_format="pcm", stream=True)).content == sent(silent)
    *deltas, done = events((await running.say(response_format="pcm", stream_format="sse")).content)
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == sent(silent)
    assert all(delta["audio"] for delta in deltas)
    assert done["usage"]["output_tokens"] == 10, "trimmed frames count as generated"


async def test_trimmed_frames_are_reported_as_played_at_once(running: Gateway):
    """Otherwise a talker at its lead limit would wait for playback forever."""
    call = await running.begin(script := Script(silent=2, chunk=1, pause_after=1), response_format="pcm")
    reported = (running.stages.seen[0].id, StreamKind.PLAYBACK)
    await until(lambda: running.streams.last_position(*reported) == Position(1), "the silent frame was reported")
    assert running.metric("syrinx_live_streams") == 0, "nothing was delivered yet"
    script.go.set()
    assert (await call).content == sent(2)


async def test_failure_during_leading_silence_is_an_error_response(running: Gateway):
    running.stages.script = Script(frames=2, silent=2, end=End(EndReason.ERROR, "gave up"))
    response = await running.say(stream=True)
    assert (response.status_code, response.json()["error"]["message"]) == (500, "gave up")
