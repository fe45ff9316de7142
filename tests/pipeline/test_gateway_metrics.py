"""What a gateway measures."""

import asyncio

import pytest

from support.gateway import SERVED, Gateway, Script
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import Position, StreamKind

pytestmark = pytest.mark.virtual


async def test_stream_metrics_are_labeled_with_the_replicas(running: Gateway):
    call = await running.begin(script := Script(pause_after=4))
    await running.live()
    # By then the first four frames have been played, so playback stalls.
    await asyncio.sleep(4 * FAMILY.frame_seconds + 0.1)
    script.go.set()
    await call
    await running.counted("stop")
    assert running.metric("syrinx_live_streams") == 0
    for histogram in ("ttfa", "first_byte", "request"):
        assert running.metric(f"syrinx_{histogram}_seconds_count", **SERVED) == 1
    assert running.metric("syrinx_first_byte_seconds_sum", **SERVED) == 0, "computing takes no time here"
    assert running.metric("syrinx_audio_seconds_total", **SERVED) == pytest.approx(10 * FAMILY.frame_seconds)
    assert running.metric("syrinx_underruns_total", **SERVED) == 1
    assert 0.05 < running.metric("syrinx_underrun_seconds_total", **SERVED) < 0.5


async def test_whole_file_has_no_ttfa(running: Gateway):
    await running.say(stream=False)
    await running.counted("stop")
    assert running.metric("syrinx_request_seconds_count", **SERVED) == 1
    assert running.metric("syrinx_ttfa_seconds_count", **SERVED) == 0


async def test_audio_that_an_encoder_withholds_is_not_yet_delivered(running: Gateway):
    """At this speed the first chunk is less than the encoder returns at once."""
    call = await running.begin(script := Script(pause_after=2), response_format="ulaw", speed=4)
    reported = (running.stages.seen[0].id, StreamKind.PLAYBACK)
    await until(lambda: running.streams.last_position(*reported) == Position(2), "the first chunk was encoded")
    assert running.metric("syrinx_live_streams") == 0
    assert running.metric("syrinx_first_byte_seconds_count", **SERVED) == 0
    assert running.metric("syrinx_ttfa_seconds_count", **SERVED) == 0
    script.go.set()
    assert len((await call).content) == 10 * FAMILY.frame_seconds * 8000 / 4
    for histogram in ("ttfa", "first_byte"):
        assert running.metric(f"syrinx_{histogram}_seconds_count", **SERVED) == 1


async def test_audio_that_is_sent_at_the_end_is_measured(running: Gateway):
    running.stages.script = Script(frames=1)
    response = await running.say(response_format="ulaw", speed=4)
    assert response.content and response.headers["x-sample-rate"] == "8000"
    await running.counted("stop")
    assert running.metric("syrinx_first_byte_seconds_count", **SERVED) == 1
    assert running.metric("syrinx_live_streams") == 0
