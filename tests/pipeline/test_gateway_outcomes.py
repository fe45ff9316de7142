"""What a gateway counts of each streamed request, with scripted stages."""

import asyncio
from pathlib import Path

import httpx
import pytest

from support.api_keys import Keys
from support.gateway import Gateway, Script, gateway
from support.waiting import until
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.client import REPEAT_SECONDS
from syrinx_stages.gateway.outcomes import StreamOutcome
from syrinx_stages.runtime.settings import SettingsUpdate

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


async def live(running: Gateway) -> None:
    await until(lambda: running.metric("syrinx_live_streams"), "the stream was live")


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}, {"response_format": "mp3"}], ids=str)
async def test_a_complete_stream_was_served_well(running: Gateway, fields: dict):
    await running.say(**fields)
    await counted(running, well=1)
    assert accepted(running) == 1


async def test_whole_files_and_batches_are_not_counted(running: Gateway):
    await running.say(stream=False)
    await running.http.post("/v1/audio/speech/batch", json={"items": [{"input": "Hello."}]})
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "gave up"))
    assert (await running.say(stream=False)).status_code == 500
    assert (accepted(running), outcomes(running)) == (0, {})


async def test_invalid_requests_are_not_counted(running: Gateway):
    assert (await running.say(voice="nobody")).status_code == 400
    assert (accepted(running), outcomes(running)) == (0, {})


async def test_a_silent_stream_is_late_when_its_objective_has_passed():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=600.0, ttfa_seconds={"CustomVoice": 0.2})) as running:
        running.stages.script = script = Script(pause_after=0)
        call = asyncio.create_task(running.say())
        await until(lambda: running.stages.seen, "the request was claimed")
        assert (accepted(running), outcomes(running)) == (1, {})
        await counted(running, late=1)
        assert not call.done()
        script.go.set()
        assert (await call).status_code == 200
        assert outcomes(running) == {"late": 1}


async def test_an_objective_applies_from_the_next_request_on(running: Gateway):
    running.service.live.apply(SettingsUpdate({"ttfa_seconds": {"CustomVoice": 0.000001}}))
    await running.say()
    await counted(running, late=1)
    running.service.live.apply(SettingsUpdate({"ttfa_seconds": {}}))
    await running.say()
    await counted(running, late=1, well=1)


async def test_a_stall_is_counted_while_it_lasts(running: Gateway):
    running.stages.script = script = Script(pause_after=4)
    call = asyncio.create_task(running.say())
    await live(running)
    assert outcomes(running) == {}
    await counted(running, interrupted=1)
    assert not call.done()
    script.go.set()
    await call
    assert outcomes(running) == {"interrupted": 1}


async def test_a_stage_that_fails_during_a_stream_fails_it(running: Gateway):
    running.stages.script = Script(frames=4, end=End(EndReason.ERROR, "gave up"))
    with pytest.raises(httpx.RemoteProtocolError):
        await running.say()
    await counted(running, failed=1)


async def test_an_error_in_the_gateway_fails_the_stream(running: Gateway, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> bytes:
        raise RuntimeError("scripted")

    monkeypatch.setattr("syrinx_stages.gateway.delivery.Encoder.feed", broken)
    assert (await running.say()).status_code == 500
    await counted(running, failed=1)
    assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="error") == 1


async def test_a_stream_that_a_drain_cuts_off_has_failed():
    async with gateway() as running:
        running.stages.script = Script(pause_after=4)
        call = asyncio.create_task(running.say(stream_format="sse"))
        await live(running)
        await running.service.drain(0.05)
        await call
        await counted(running, failed=1)


async def test_a_text_that_a_stage_refuses_says_nothing_about_the_service(running: Gateway):
    running.stages.script = Script(frames=0, end=End(EndReason.ERROR, "input: is too long", "input"))
    assert (await running.say()).status_code == 400
    await counted(running, void=1)


@pytest.mark.parametrize(("fields", "outcome"), [({}, "runaway"), ({"max_new_tokens": 10}, "well")])
async def test_a_limit_that_no_client_asked_for_is_a_runaway(running: Gateway, fields: dict, outcome: str):
    running.stages.script = Script(end=End(EndReason.LENGTH))
    await running.say(**fields)
    await counted(running, **{outcome: 1})


@pytest.mark.parametrize("fields", [{}, {"max_new_tokens": 100}])
async def test_what_the_guard_stops_is_a_runaway(running: Gateway, fields: dict):
    running.stages.script = Script(end=End(EndReason.RUNAWAY))
    await running.say(**fields)
    await counted(running, runaway=1)
    labels = {"task_type": "CustomVoice", "outcome": "runaway"}
    await until(lambda: running.metric("syrinx_requests_total", **labels) == 1, "the request is counted")


@pytest.mark.parametrize(("pause_after", "outcome"), [(0, "void"), (4, "well")])
async def test_a_client_that_leaves(running: Gateway, pause_after: int, outcome: str):
    running.stages.script = Script(pause_after=pause_after)
    call = asyncio.create_task(running.say())
    if pause_after:
        await live(running)
    else:
        await until(lambda: running.stages.seen, "the request was claimed")
    call.cancel()
    await counted(running, **{outcome: 1})
    assert accepted(running) == 1


async def test_a_client_that_leaves_during_a_stall_was_interrupted(running: Gateway):
    running.stages.script = Script(pause_after=4)
    call = asyncio.create_task(running.say())
    await live(running)
    await asyncio.sleep(4 * FAMILY.frame_seconds + 0.1)
    call.cancel()
    await counted(running, interrupted=1)


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


async def test_a_request_that_no_talker_claims_in_time_is_refused():
    async with gateway(gateway=GatewaySettings(max_queue_seconds=0.2)) as running:
        await until(lambda: running.service.ready() is None, "both stages were seen")
        await running.stages.leave()
        assert (await running.say()).status_code == 503
        await counted(running, refused=1)
        await until(lambda: running.service.cells[0].monitor.missing_stage_error(), "it was missing for long enough")
        assert (await running.say()).status_code == 503
        await counted(running, refused=2)
        assert accepted(running) == 2


async def test_outcomes_belong_to_the_arm_of_their_request(running: Gateway):
    """A stall that comes after the trial's settings have ended belongs to them."""
    running.stages.script = script = Script(pause_after=4)
    running.service.live.apply(SettingsUpdate({"arm": "t7"}, seconds=60.0))
    call = asyncio.create_task(running.say())
    await live(running)
    running.service.live.apply(SettingsUpdate({}))
    name, trial = "syrinx_stream_outcomes_total", {**LABELS, "arm": "t7"}
    await until(lambda: running.metric(name, **trial, outcome="interrupted"), "the stall is counted")
    script.go.set()
    await call
    await running.say()
    await counted(running, well=1)
    assert (accepted(running), running.metric("syrinx_streams_accepted_total", **trial)) == (1, 1)
