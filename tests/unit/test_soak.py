"""Tests of the soak's decisions and of its proxy."""

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import AsyncIterator
from itertools import islice

import pytest
from aiohttp import web

from soak.faults import STAGE_KINDS, Fault, Kind, Target, count, draw
from soak.load import Load, Outcome, Utterance, Verdict
from soak.measure import Injected, gateway_died, longest_stall, takeovers
from soak.proxy import Proxy, translate
from syrinx_operator.commands.bench.stats import Arrival
from syrinx_stages.contract.family import FAMILY

FRAME_SAMPLES = FAMILY.samples_per_frame
DEADLINE = 10.0


# Faults ---------------------------------------------------------------------------------------------------------


def test_each_round_has_every_kind_of_every_target_once_in_an_order_of_the_seed():
    targets = [Target("a", STAGE_KINDS, 6.0), Target("b", (Kind.KILL,), 6.0)]
    size = len(STAGE_KINDS) + 1
    drawn = list(islice(draw(7, targets), 2 * size))
    for turn in (drawn[:size], drawn[size:]):
        assert sorted((fault.target, fault.kind) for fault in turn) == sorted(
            [("a", kind) for kind in STAGE_KINDS] + [("b", Kind.KILL)]
        )
    assert drawn == list(islice(draw(7, targets), 2 * size))
    assert drawn != list(islice(draw(8, targets), 2 * size))
    assert all(0.5 <= fault.seconds <= 6.0 for fault in drawn if fault.kind is Kind.STOP)
    assert not any(fault.seconds for fault in drawn if fault.kind is Kind.KILL)


def test_faults_are_counted_by_group_and_kind():
    faults = [Fault(Kind.KILL, "talker-0"), Fault(Kind.KILL, "talker-1"), Fault(Kind.STOP, "codec-0", 1.0)]
    groups = {"talker-0": "talker", "talker-1": "talker", "codec-0": "codec"}
    assert count(faults, groups) == {"codec stop": 1, "talker kill": 2}


# Verdicts -------------------------------------------------------------------------------------------------------


def outcome(
    verdict: Verdict = Verdict.COMPLETE,
    *,
    at: tuple[tuple[float, int], ...] = ((0.2, 4), (0.6, 4)),
    start: float = 100.0,
    end: float = 110.0,
    request_id: str = "r",
    message: str = "",
) -> Outcome:
    """`at`: seconds from the start and frames of each chunk."""
    arrivals = tuple(Arrival(seconds, frames * FRAME_SAMPLES) for seconds, frames in at)
    return Outcome("gateway-0", 0, True, request_id, start, end, arrivals, verdict, message)


def injected(kind: Kind, at: float, target: str = "gateway-0", frames: dict[str, int] | None = None) -> Injected:
    return Injected(Fault(kind, target), target.split("-")[0], at, frames or {})


def test_a_request_gateway_died_if_its_gateway_was_killed_meanwhile():
    lost = outcome(Verdict.LOST)
    assert gateway_died(lost, [injected(Kind.KILL, 105.0)])
    assert not gateway_died(lost, [injected(Kind.KILL, 99.0)]), "an earlier process"
    assert not gateway_died(lost, [injected(Kind.KILL, 111.0)]), "the request had ended"
    assert not gateway_died(lost, [injected(Kind.KILL, 105.0, "gateway-1")])
    assert not gateway_died(lost, [injected(Kind.KILL, 105.0, "talker-0")])
    assert not gateway_died(outcome(Verdict.MISMATCH), [injected(Kind.KILL, 105.0)]), (
        "a dead gateway sends no wrong audio"
    )


def test_a_draining_gateway_excuses_only_requests_that_it_never_answered():
    cut = outcome(Verdict.LOST, request_id="", message="cut off: ServerDisconnectedError")
    assert gateway_died(cut, [injected(Kind.TERM, 99.9)])
    assert not gateway_died(cut, [injected(Kind.TERM, 100.1)]), "the request was sent before"
    assert not gateway_died(outcome(Verdict.LOST, message="cut off"), [injected(Kind.TERM, 99.9)]), "it was admitted"


@pytest.mark.parametrize(
    ("pcm", "whole", "matches"),
    [(b"abcd", True, True), (b"ab", True, False), (b"ab", False, True), (b"abcx", True, False), (b"x", False, False)],
)
def test_audio_must_be_that_of_the_fault_free_run_or_its_beginning(pcm, whole, matches):
    assert Utterance({}, b"abcd", 1).matches(pcm, whole) is matches


def test_frames_count_the_trimmed_silence():
    """Of three frames, half a frame of silence was trimmed."""
    utterance = Utterance({}, bytes(FAMILY.frame_bytes * 5 // 2), 3)
    sizes = (0, FAMILY.frame_bytes // 2, FAMILY.frame_bytes, FAMILY.frame_bytes * 5 // 2)
    assert [utterance.frames_in(size) for size in sizes] == [0, 1, 1, 3]


# Times ----------------------------------------------------------------------------------------------------------


def test_a_takeover_lasts_until_audio_beyond_what_existed_arrives():
    utterance = Utterance({}, bytes(12 * FAMILY.frame_bytes), 12)
    stream = outcome(at=((0.2, 4), (0.6, 4), (3.0, 4)))
    [found] = takeovers([stream], [injected(Kind.KILL, 100.5, "talker-0", {"r": 8, "other": 3})], [utterance])
    assert found.cause == "talker kill"
    assert found.seconds == pytest.approx(2.5), "the chunk at 0.6 s held frames 5 to 8, which existed"
    assert takeovers([stream], [injected(Kind.KILL, 100.5, "talker-0", {"r": 12})], [utterance]) == []


def test_a_stream_far_ahead_of_its_listener_shows_no_takeover():
    utterance = Utterance({}, bytes(200 * FAMILY.frame_bytes), 200)
    stream = outcome(at=((0.2, 100), (5.0, 100)))
    assert takeovers([stream], [injected(Kind.KILL, 101.0, "codec-0", {"r": 100})], [utterance]) == []


def test_the_longest_stall_counts_the_audio_that_is_buffered():
    assert longest_stall([outcome(at=((0.2, 10), (0.9, 10)))]) == 0.0
    late = outcome(Verdict.LOST, at=((0.2, 10), (3.0, 10), (3.2, 1)))
    assert longest_stall([late, outcome()]) == pytest.approx(3.0 - 1.0)


# The proxy ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yields the port of a server that echoes what it receives, and what it has received."""
    received: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                received.append(data)
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1], received


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_partition_holds_data_back_and_delivers_it_even_if_its_sender_has_closed():
    async with asyncio.timeout(DEADLINE), echo_server() as (port, received), Proxy([port]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.partition(from_redis=False)
        writer.write(b"late")
        writer.close()
        await writer.wait_closed()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until(lambda: len(received) > 1), 0.1)
        proxy.heal()
        await until(lambda: received == [b"before", b"late"])


async def test_a_partition_from_the_server_lets_requests_pass():
    async with asyncio.timeout(DEADLINE), echo_server() as (port, received), Proxy([port]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.partition(to_redis=False)
        writer.write(b"b")
        await until(lambda: received == [b"a", b"b"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.1)
        proxy.heal()
        assert await reader.readexactly(1) == b"b"
        writer.close()


async def test_a_reset_ends_connections_and_new_ones_work():
    async with asyncio.timeout(DEADLINE), echo_server() as (port, _), Proxy([port]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.reset()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[port])
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        writer.close()


def test_a_sentinel_s_reply_names_the_ports_of_the_proxy():
    reply = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n"
    assert translate(reply, {6379: 41000, 6380: 41001}) == b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n41000\r\n"


# The clients ----------------------------------------------------------------------------------------------------

PCM = bytes(range(200))


class FakeGateway:
    """A gateway whose answers to streams and files are set by a test."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bool]] = []
        """Status, body, and whether the connection is cut after it."""

    async def speech(self, request: web.Request) -> web.StreamResponse:
        if "stream_format" in await request.json():
            delta = {"type": "speech.audio.delta", "audio": base64.b64encode(PCM).decode()}
            done = {"type": "speech.audio.done", "usage": {"output_tokens": 1}}
            return web.Response(text="".join(f"data: {json.dumps(event)}\n\n" for event in (delta, done)))
        status, body, cut = self.answers.pop(0)
        response = web.StreamResponse(status=status, headers={"X-Request-Id": "r"})
        await response.prepare(request)
        await response.write(body)
        if cut:
            request.transport.abort()
        return response


@contextlib.asynccontextmanager
async def gateway_and_load() -> AsyncIterator[tuple[FakeGateway, Load]]:
    gateway, app = FakeGateway(), web.Application()
    app.router.add_post("/v1/audio/speech", gateway.speech)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        async with Load({"gateway-0": f"http://{host}:{port}"}) as load:
            [recorded] = await load.record([Utterance({"input": "text"})])
            assert (recorded.pcm, recorded.frames) == (PCM, 1)
            yield gateway, load
    finally:
        await runner.cleanup()


def error(code: str) -> bytes:
    return json.dumps({"error": {"message": "", "code": code}}).encode()


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        ((200, PCM, False), Verdict.COMPLETE, ""),
        ((200, PCM[:50], False), Verdict.MISMATCH, "50 bytes differ"),
        ((200, b"x" + PCM[1:], False), Verdict.MISMATCH, "200 bytes differ"),
        ((200, PCM[:50], True), Verdict.LOST, "cut off"),
        ((200, b"x" + PCM[1:50], True), Verdict.MISMATCH, "50 bytes differ"),
        ((500, error("internal_error"), False), Verdict.LOST, "http 500"),
        ((503, error("request_lost"), False), Verdict.LOST, "request_lost"),
    ],
)
async def test_a_client_tells_whole_from_wrong_and_lost(answer, verdict, words):
    async with asyncio.timeout(DEADLINE), gateway_and_load() as (gateway, load):
        gateway.answers = [answer]
        result = await load.request(random.Random(1), live=True)
    assert (result.verdict, words in result.message) == (verdict, True), result.message
    assert load.outcomes == [result]


async def test_a_refused_request_is_sent_again():
    async with asyncio.timeout(DEADLINE), gateway_and_load() as (gateway, load):
        gateway.answers = [(503, error("queue_full"), False), (200, PCM, False)]
        await load.request(random.Random(1), live=True)
    assert [each.verdict for each in load.outcomes] == [Verdict.REFUSED, Verdict.COMPLETE]
