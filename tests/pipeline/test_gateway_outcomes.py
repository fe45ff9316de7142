"""What a gateway counts of each streamed request, with scripted stages."""

import asyncio
from pathlib import Path

import pytest

from support.api_keys import Keys
from support.gateway import Gateway, Script, gateway
from support.waiting import until
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.clients.client import REPEAT_SECONDS
from syrinx_stages.gateway.speech.outcomes import StreamOutcome
from syrinx_stages.runtime.clock import monotonic

pytestmark = pytest.mark.virtual

LABELS = {"task_type": "CustomVoice", "arm": ""}


def accepted(running: Gateway) -> float:
    return running.metric("syrinx_streams_accepted_total", **LABELS)


def outcomes(running: Gateway) -> dict[str, float]:
    """The outcomes that were counted."""
    name = "syrinx_stream_outcomes_total"
    counts = {each.value: running.metric(name, **LABELS, outcome=each) for each in StreamOutcome}
    return {outcome: count for outcome, count in counts.items() if count}


async def counted(running: Gateway, **expected: int) -> None:
    """Waits until as many outcomes are known as expected, and compares them."""
    await until(lambda: sum(outcomes(running).values()) >= sum(expected.values()), "they are counted")
    assert outcomes(running) == expected


ERROR, REFUSAL = End(EndReason.ERROR, "gave up"), End(EndReason.ERROR, "input: is too long", "input")
CASES = {
    "a stream": (Script(), {"stream": True}, "well"),
    "events": (Script(), {"stream_format": "sse"}, "well"),
    "a compressed stream": (Script(), {"response_format": "mp3"}, "well"),
    "a stage fails": (Script(frames=4, end=ERROR), {"stream_format": "sse"}, "failed"),
    "a stage refuses the text": (Script(frames=0, end=REFUSAL), {}, "void"),
    "the limit of the client": (Script(end=End(EndReason.LENGTH)), {"max_new_tokens": 10}, "well"),
    "a segment that went wrong": (Script(end=End(EndReason.INCOMPLETE)), {}, "incomplete"),
}


@pytest.mark.parametrize(("script", "fields", "outcome"), CASES.values(), ids=CASES)
async def test_each_stream_has_one_outcome(running: Gateway, script: Script, fields: dict, outcome: str):
    running.stages.script = script
    await running.say(**fields)
    await counted(running, **{outcome: 1})
    assert accepted(running) == 1
    assert running.metric("syrinx_stream_characters_sum", task_type="CustomVoice") == len("Hello.")


async def test_requests_of_one_second_are_counted_together(running: Gateway):
    """Once another second has one. The time is virtual."""
    for requests in (3, 1, 1):
        await asyncio.sleep(2 - monotonic() % 1)
        await asyncio.gather(*(running.say(stream=True) for _ in range(requests)))
    counts = [running.metric("syrinx_stream_arrivals_bucket", le=edge) for edge in ("1.0", "2.0", "3.0")]
    assert counts == [1, 1, 2]


async def test_whole_files_batches_and_invalid_requests_are_not_counted(running: Gateway):
    assert (await running.say(voice="nobody")).status_code == 400
    assert running.requests("refused", "unknown") == 1
    await running.say(stream=False)
    await running.http.post("/v1/audio/speech/batch", json={"items": [{"input": "Hello."}]})
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "gave up"))
    assert (await running.say(stream=False)).status_code == 500
    assert (accepted(running), outcomes(running)) == (0, {})


async def test_an_error_in_the_gateway_fails_the_stream(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> bytes:
        raise RuntimeError("scripted")

    monkeypatch.setattr("syrinx_stages.gateway.audio.encoders.Encoder.feed", broken)
    assert (await running.say()).status_code == 500
    await counted(running, failed=1)
    assert running.requests("error") == 1


async def test_a_full_queue_refuses():
    async with gateway(gateway=GatewaySettings(max_queue=0)) as running:
        assert (await running.say()).status_code == 503
        await asyncio.sleep(REPEAT_SECONDS)
        assert (await running.say(stream=False)).status_code == 503
        await counted(running, refused=1)
        assert accepted(running) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_repeated_refusal_counts_as_what_was_refused(tmp_path: Path, stream: bool):
    """The body of a request that is refused like the one before is not read."""
    keys = Keys(tmp_path, one={})
    async with gateway(gateway=GatewaySettings(max_queue=0), api_keys_file=str(keys.file)) as running:
        for _ in range(3):
            body = {"input": "Hello.", "stream": stream}
            answer = await running.http.post("/v1/audio/speech", json=body, headers=keys.of("one"))
            assert answer.status_code == 503
        await running.http.post("/v1/audio/speech/batch", json={"items": []}, headers=keys.of("one"))
        assert (accepted(running), outcomes(running)) == ((3, {"refused": 3}) if stream else (0, {}))
        assert running.metric("syrinx_stream_characters_count", task_type="CustomVoice") == stream, "of what was read"
