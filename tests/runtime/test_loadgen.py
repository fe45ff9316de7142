"""The load generator against a server with a known schedule, in virtual time."""

import asyncio

import pytest

from support.http_server import serve
from support.timed_gateway import LOUD, SECOND, TimedGateway
from syrinx_operator.commands.bench.load import Limit, Script, closed_loop, live_loop, make_sender, open_loop
from syrinx_operator.commands.bench.stats import summarize
from syrinx_operator.commands.client import SpeechClient, SpeechError

pytestmark = pytest.mark.virtual

SCRIPT = Script(["Hello."], ["us"], seed=0)


def at(seconds):
    """Equals this simulated time, but for the rounding of floats."""
    return pytest.approx(seconds, abs=1e-6)


async def measure(gateway, load):
    async with asyncio.timeout(30), serve(gateway.app) as url, SpeechClient(url) as client:
        return await load(make_sender(client, SCRIPT))


async def test_the_times_of_a_known_stream_are_measured():
    silent_start = bytes(SECOND // 4) + LOUD * (SECOND // 8)
    gateway = TimedGateway([(0.1, silent_start), (0.2, LOUD * (SECOND // 2)), (0.7, LOUD * (SECOND // 4))])
    outcomes, _ = await measure(gateway, lambda send: closed_loop(send, 1, Limit(requests=1)))
    playback = outcomes[0].playback
    assert playback.duration == pytest.approx(2.0)
    assert playback.first_byte == at(0.1)
    assert playback.first_playable == at(0.1)
    assert playback.ttfa == at(0.35), "a quarter of a second is silent"
    assert playback.end == at(1.0)
    assert playback.underruns == 0, "1.5 s of audio are there to bridge the 0.7 s"


async def test_a_closed_loop_keeps_a_fixed_number_of_clients_busy():
    gateway = TimedGateway([(0.05, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: closed_loop(send, 3, Limit(requests=9)))
    assert len(outcomes) == 9
    assert gateway.max_concurrent == 3
    assert wall == at(0.15)


async def test_a_closed_loop_ends_in_time_and_counts_started_requests():
    gateway = TimedGateway([(0.1, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: closed_loop(send, 2, Limit(seconds=0.25)))
    assert len(outcomes) == len(gateway.bodies) == 6
    assert all(outcome.playback for outcome in outcomes)
    assert wall == at(0.3)


async def test_an_open_loop_does_not_wait_for_responses():
    gateway = TimedGateway([(0.5, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: open_loop(send, [0.01 * n for n in range(20)], awake=0.0))
    assert len(outcomes) == 20
    assert gateway.max_concurrent == 20
    assert wall == at(0.19 + 0.5)


async def test_an_open_loop_counts_from_the_due_time():
    """A delay of the sender must not be hidden."""
    due = []

    async def send(number, at):
        due.append(at)
        return None

    await open_loop(send, [0.0, 0.05], awake=0.0)
    assert due[1] - due[0] == at(0.05)


@pytest.mark.parametrize(
    ("refuse", "kind"),
    [
        ((503, {"error": {"message": "busy", "type": "x", "param": None, "code": None}}), "http 503"),
        ((500, b"oops"), "http 500"),
    ],
)
async def test_failures_are_counted_by_kind(refuse, kind):
    gateway = TimedGateway([])
    gateway.refuse = refuse
    outcomes, wall = await measure(gateway, lambda send: open_loop(send, [0.0, 0.01], awake=0.0))
    assert summarize("open", 1, outcomes, wall).errors == {kind: 2}


async def test_a_truncated_stream_is_a_failure():
    gateway = TimedGateway([(0.0, LOUD * 4800)])
    gateway.cut_off = True
    outcomes, _ = await measure(gateway, lambda send: closed_loop(send, 1, Limit(requests=1)))
    assert outcomes[0].error == "cut off"


async def test_a_stream_without_audio_is_a_failure():
    outcomes, _ = await measure(TimedGateway([]), lambda send: closed_loop(send, 1, Limit(requests=1)))
    assert outcomes[0].error == "no audio"


async def test_connection_errors_name_the_address():
    async with SpeechClient("http://127.0.0.1:1") as client:
        outcomes, _ = await open_loop(make_sender(client, SCRIPT), [0.0], awake=0.0)
        assert outcomes[0].error == "connection"
        with pytest.raises(SpeechError, match=r"cannot connect to http://127\.0\.0\.1:1"):
            await client.voices()


async def test_listeners_play_as_fast_as_they_hear_and_early_utterances_do_not_count():
    gateway = TimedGateway([(0.0, LOUD * (SECOND // 8))])  # A quarter of a second.
    outcomes, wall = await measure(gateway, lambda send: live_loop(send, [0.0, 0.05], count_from=0.2, seconds=0.9))
    assert len(gateway.bodies) == 8
    assert len(outcomes) == 6, "each listener started one utterance before"
    assert wall == at(0.9)
