"""Several cells: requests go to all of them, and the loss of one Redis concerns its own streams only."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support import small_checkpoint
from support.cells import CellPipeline, Served, cells_of
from support.cloning import TRANSCRIPT, sample
from support.speech_socket import connected
from support.stages import bundled
from support.waiting import until
from syrinx_stages.contract.keys import Keys
from syrinx_stages.gateway.cells.monitor import ALIVE_SECONDS
from syrinx_stages.model.checkpoint import Checkpoint

TEXT = "The old teacher found two heavy bags."


@pytest.fixture
async def cells() -> AsyncIterator[CellPipeline]:
    async with cells_of(bundled(), 2, max_num_seqs=1) as running:
        yield running


async def expected(served: Served, seeds: range) -> dict[int, bytes]:
    """Returns the audio of each seed, one request after the other."""
    return {seed: await served.say(TEXT, seed) for seed in seeds}


async def test_requests_use_all_cells_and_their_audio_is_that_of_one_cell() -> None:
    async with cells_of(bundled(), 1) as one, one.gateway() as served:
        alone = await expected(served, range(6))
    async with cells_of(bundled(), 3) as three, three.gateway() as served:
        calls = [asyncio.create_task(served.say(TEXT, seed)) for seed in range(6)]
        await until(lambda: sum(served.live()) == 6, "all are submitted")
        assert all(served.live())
        assert await asyncio.gather(*calls) == list(alone.values())
        await until(lambda: not any(len(cell.stages.streams) for cell in three.cells), "all are released")


async def test_the_loss_of_a_redis_concerns_only_the_streams_that_have_begun_there(cells: CellPipeline) -> None:
    """A talker serves one request at a time, so most of them wait."""
    seeds, begun = range(6), set()
    async with cells.gateway() as served:
        audio = await expected(served, seeds)
        await until(served.is_idle, "both cells are idle")
        calls = [asyncio.create_task(served.say(TEXT, seed, lambda own=seed: begun.add(own))) for seed in seeds]
        await until(lambda: sum(served.live()) == len(seeds), "all are submitted")
        lost = cells.cells[served.live().index(max(served.live()))]
        await until(lambda: begun, "a stream has begun")
        lost.kill_redis()
        results = dict(zip(seeds, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        failed = {seed: result for seed, result in results.items() if isinstance(result, BaseException)}
        assert all(isinstance(error, httpx.TransportError) for error in failed.values()), "they had begun"
        assert len(failed) < 3
        assert {seed: pcm for seed, pcm in results.items() if seed not in failed}.items() <= audio.items()
        assert served.service.ready() is None
        assert [await served.say(TEXT, seed) for seed in (0, 1)] == [audio[0], audio[1]]
        lost.restart_redis()
        await until(served.is_idle, "the cell is back")
        calls = [asyncio.create_task(served.say(TEXT, seed)) for seed in seeds]
        await until(lambda: all(served.live()), "both cells serve again")
        assert await asyncio.gather(*calls) == list(audio.values())


async def test_requests_wait_for_no_redis_that_does_not_answer(cells: CellPipeline) -> None:
    """A paused Redis keeps its connections open. What moves to the other cell is released when it goes on."""
    async with cells.gateway() as served:
        audio = await expected(served, range(2))
        process = cells.cells[1].server.process
        process.send_signal(signal.SIGSTOP)
        try:
            assert {seed: await served.say(TEXT, seed) for seed in audio} == audio
            await until(lambda: not served.service.cells[1].is_serving, "its gateway misses it")
        finally:
            process.send_signal(signal.SIGCONT)
        await until(lambda: served.service.cells[1].is_serving, "the cell is back")
        await until(lambda: not any(len(cell.stages.streams) for cell in cells.cells), "all are released")


async def test_voices_are_kept_in_the_first_cell(tmp_path: Path) -> None:
    async with cells_of(Checkpoint(str(small_checkpoint.write(tmp_path / "model", "base"))), 2) as cells:
        voices = Keys(cells.name, "1").voices
        async with cells.gateway() as first, cells.gateway() as second:
            body = {"name": "mine", "consent": "cons_1", "ref_text": TRANSCRIPT}
            upload = await first.http.post(
                "/v1/audio/voices", data=body, files={"audio_sample": ("a.wav", sample(), "audio/wav")}
            )
            assert upload.status_code == 200, upload.text
            calls = (second.say(TEXT, seed, voice="mine", max_new_tokens=4) for seed in range(4))
            assert all(await asyncio.gather(*calls))
        assert [cell.stages.streams.raw.hlen(voices) for cell in cells.cells] == [1, 0]


async def test_a_cell_without_talker_gets_no_request(cells: CellPipeline) -> None:
    async with cells.gateway() as served:
        stages = cells.cells[0].stages
        await stages.kill(stages.workers[0])
        await until(lambda: not served.service.cells[0].is_serving, f"it was missing for {ALIVE_SECONDS} s")
        calls = [asyncio.create_task(served.say(TEXT, seed)) for seed in range(3)]
        await until(lambda: served.live() == [0, 3], "all go to the other cell")
        assert all(await asyncio.gather(*calls))
        assert served.service.ready() is None


async def test_a_request_that_one_cell_refuses_goes_to_the_other(cells: CellPipeline) -> None:
    async with cells.gateway() as served:
        cells.cells[0].stages.streams.raw.config_set("maxmemory", "2mb")
        assert all([await served.say(TEXT, seed) for seed in range(4)])
        cells.cells[1].stages.streams.raw.config_set("maxmemory", "2mb")
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await served.say(TEXT, 1)
        assert refused.value.response.json()["error"]["code"] == "redis_full"


@pytest.mark.parametrize("cell", [0, 1])
async def test_an_utterance_is_continued_in_the_cell_that_has_it(cells: CellPipeline, cell: int) -> None:
    config = {"text_mode": "tokens", "seed": 5, "request_id": "turn-1"}
    async with cells.gateway() as first, cells.gateway() as second:
        whole = await second.say(TEXT, 5, non_streaming_mode=False)
        other = cells.cells[1 - cell].stages.streams.raw
        other.config_set("maxmemory", "2mb")
        async with connected(first.url) as client:
            await client.send("session.config", **config)
            await client.send("input.text", text=TEXT[:20])
            start = await client.until("audio.start")
            await client.receive()
            client.socket.transport.abort()
        assert first.live()[cell] == 1
        other.config_set("maxmemory", "0")
        received = client.audio[0, 0]
        async with connected(second.url) as client:
            await client.send("session.config", **config)
            await client.send("input.text", text=TEXT)
            assert (await client.until("error"))["code"] == "request_in_use"
        async with connected(second.url) as client:
            await client.send("session.config", **config, audio_offset=start["offset"] + len(received) // 2)
            await client.until("session.resumed")
            await client.send("input.text", text=TEXT[20:])
            await client.send("input.done")
            await client.until("session.done")
        assert received + client.audio.get((0, 0), b"") == whole
