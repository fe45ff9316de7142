"""The load generator against a real server with a known schedule."""

import asyncio

import pytest

from support.http_server import serve
from support.timed_gateway import LOUD, SECOND, TimedGateway
from syrinx_operator.commands.bench.load import (
    GeneratorError,
    Limit,
    LoadGenerator,
    Script,
    closed_loop,
    live_loop,
    make_sender,
    open_loop,
)
from syrinx_operator.commands.bench.stats import summarize
from syrinx_operator.commands.client import SpeechClient, SpeechError

pytestmark = pytest.mark.night

SCRIPT = Script(["Hello."], ["us"], seed=0)
SLACK = 0.2
"""Tolerance in seconds on a busy machine."""


async def measure(gateway, load):
    async with asyncio.timeout(30), serve(gateway.app) as url, SpeechClient(url) as client:
        return await load(make_sender(client, SCRIPT))


async def test_the_times_of_a_known_stream_are_measured():
    silent_start = bytes(SECOND // 4) + LOUD * (SECOND // 8)
    gateway = TimedGateway([(0.1, silent_start), (0.2, LOUD * (SECOND // 2)), (0.7, LOUD * (SECOND // 4))])
    outcomes, _ = await measure(gateway, lambda send: closed_loop(send, 1, Limit(requests=1)))
    playback = outcomes[0].playback
    assert playback.duration == pytest.approx(2.0)
    assert playback.first_byte == pytest.approx(0.1, abs=SLACK)
    assert playback.first_playable == pytest.approx(0.1, abs=SLACK)
    assert playback.ttfa == pytest.approx(playback.first_playable + 0.25, abs=1e-6), "a quarter of a second is silent"
    assert playback.end == pytest.approx(1.0, abs=SLACK)
    assert playback.underruns == 0, "1.5 s of audio are there to bridge the 0.7 s"


async def test_an_underrun_of_a_known_length_is_measured():
    gateway = TimedGateway([(0.1, LOUD * (SECOND // 10)), (0.5, LOUD * (SECOND // 10))])
    outcomes, _ = await measure(gateway, lambda send: closed_loop(send, 1, Limit(requests=1)))
    playback = outcomes[0].playback
    assert playback.underruns == 1
    assert playback.underrun_seconds == pytest.approx(0.5 - 0.2, abs=SLACK)


async def test_a_closed_loop_keeps_a_fixed_number_of_clients_busy():
    gateway = TimedGateway([(0.05, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: closed_loop(send, 3, Limit(requests=9)))
    assert len(outcomes) == 9
    assert gateway.max_concurrent == 3
    assert wall == pytest.approx(0.15, abs=2 * SLACK)


async def test_a_closed_loop_ends_in_time_and_counts_started_requests():
    gateway = TimedGateway([(0.1, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: closed_loop(send, 2, Limit(seconds=0.25)))
    assert len(outcomes) == len(gateway.bodies) > 2
    assert all(outcome.playback for outcome in outcomes)
    assert 0.25 <= wall < 0.25 + 0.1 + SLACK


async def test_an_open_loop_does_not_wait_for_responses():
    gateway = TimedGateway([(0.5, LOUD * 4800)])
    outcomes, wall = await measure(gateway, lambda send: open_loop(send, [0.01 * n for n in range(20)]))
    assert len(outcomes) == 20
    assert gateway.max_concurrent == 20
    assert wall == pytest.approx(0.19 + 0.5, abs=2 * SLACK)


async def test_an_open_loop_counts_from_the_due_time():
    """A delay of the sender must not be hidden."""
    due = []

    async def send(number, at):
        due.append(at)
        return None

    await open_loop(send, [0.0, 0.05])
    assert due[1] - due[0] == pytest.approx(0.05, abs=1e-6)


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
    outcomes, wall = await measure(gateway, lambda send: open_loop(send, [0.0, 0.01]))
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
        outcomes, _ = await open_loop(make_sender(client, SCRIPT), [0.0])
        assert outcomes[0].error == "connection"
        with pytest.raises(SpeechError, match=r"cannot connect to http://127\.0\.0\.1:1"):
            await client.voices()


async def test_requests_follow_the_script():
    gateway = TimedGateway([(0.0, LOUD * 4800)])
    await measure(gateway, lambda send: closed_loop(send, 1, Limit(requests=2)))
    assert gateway.bodies == [SCRIPT.body(0), SCRIPT.body(1)]


async def test_listeners_play_in_real_time_and_early_utterances_do_not_count():
    gateway = TimedGateway([(0.0, LOUD * (SECOND // 8))])  # A quarter of a second.
    outcomes, wall = await measure(gateway, lambda send: live_loop(send, [0.0, 0.05], count_from=0.2, seconds=0.9))
    assert len(gateway.bodies) == pytest.approx(8, abs=2)
    assert len(outcomes) == len(gateway.bodies) - 2, "each listener started one utterance before"
    assert 0.9 <= wall < 0.9 + 2 * SLACK


@pytest.mark.parametrize("workers", [1, 2])
async def test_workers_share_the_requests(workers):
    gateway = TimedGateway([(0.0, LOUD * 4800)])
    async with serve(gateway.app) as url, LoadGenerator([url], SCRIPT, workers) as generator:
        closed = await generator.closed(3, Limit(requests=9))
        opened = await generator.open(100, Limit(requests=11))
        live = await generator.live(3, 0.1, 2.0)
    assert [len(result.outcomes) for result in (closed, opened)] == [9, 11] and live.outcomes
    assert not [each.error for result in (closed, opened, live) for each in result.outcomes if each.error]
    assert opened.generator.processes == workers
    seeds = [body["seed"] for body in gateway.bodies]
    assert (sorted(seeds[:9]), sorted(seeds[9:20])) == (list(range(9)), list(range(11))), "each request once"


async def test_a_dead_worker_is_an_error():
    async with LoadGenerator(["http://127.0.0.1:1"], SCRIPT, 2) as generator:
        for process in generator._processes:
            process.kill()
        with pytest.raises(GeneratorError, match="exited with status -9"):
            await generator.closed(2, Limit(requests=2))
