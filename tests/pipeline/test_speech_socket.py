"""`/v1/audio/speech/stream` through a real gateway, talker and codec, with the `websockets` package as its client."""

import asyncio
import contextlib
import io
import random
import time
import wave
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest

from support.process import StageProcess
from support.speech_socket import Client, connected, serving
from support.stages import Pipeline, pipeline
from support.streams import Streams, redis_url
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.gateway import websocket
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.eager_engine import EagerTalkerEngine

TEXT = "The old teacher found two heavy bags. Who carried them after the storm?"
TOKENS = {"text_mode": "tokens", "seed": 5}


@pytest.fixture
async def stages() -> AsyncIterator[Pipeline]:
    async with pipeline() as running:
        yield running


@pytest.fixture
async def served(stages: Pipeline) -> AsyncIterator[tuple[str, GatewayService]]:
    async with serving(stages.streams) as (url, service, _):
        yield url, service
    assert len(stages.streams) == 0, "a request was not released"


async def rest(url: str, text: str, **fields: object) -> bytes:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        body = {"input": text, "response_format": "pcm", **fields}
        answer = await http.post(f"{url}/v1/audio/speech", json=body)
        assert answer.status_code == 200, answer.text
        return answer.content


async def test_the_messages_of_vllm_omnis_example_client(served: tuple[str, GatewayService]) -> None:
    """Its sequence: a configuration, words with delays, `input.done`, up to `session.done`, twice on a connection."""
    url, _ = served
    texts = [TEXT, "She waited."]
    async with connected(url) as client:
        config = {
            "speaker": "us",
            "task_type": "CustomVoice",
            "language": "Auto",
            "response_format": "wav",
            "speed": 1.0,
        }
        await client.send("session.config", **config, seed=3, split_granularity="sentence")
        for number, text in enumerate(texts):
            words = text.split(" ")
            for index, word in enumerate(words):
                await client.send("input.text", text=word + (" " if index < len(words) - 1 else ""))
                await asyncio.sleep(0.005)
            await client.send("input.done")
            done = await client.until("session.done")
            assert done == {"type": "session.done", "utterance_index": number, "total_sentences": 2 - number}
        await client.send("session.close")
        await client.socket.wait_closed()
    assert client.socket.close_code == 1000
    starts = [
        (each["utterance_index"], each["sentence_index"], each["sentence_text"])
        for each in client.of_type("audio.start")
    ]
    sentences = ["The old teacher found two heavy bags.", "Who carried them after the storm?", "She waited."]
    assert starts == [(0, 0, sentences[0]), (0, 1, sentences[1]), (1, 0, sentences[2])]
    for place, sentence in zip([(0, 0), (0, 1), (1, 0)], sentences, strict=True):
        assert client.audio[place] == await rest(url, sentence, seed=3, response_format="wav", stream=False)
        with wave.open(io.BytesIO(client.audio[place])) as file:
            assert file.getframerate() == FAMILY.sample_rate
    for done in client.of_type("audio.done"):
        place = done["utterance_index"], done["sentence_index"]
        assert (done["error"], done["total_bytes"]) == (False, len(client.audio[place]))
    assert [each["type"] for each in client.messages[:2]] == ["audio.start", "audio.done"]


async def test_audio_of_sentences_is_streamed_on_request(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:
        await client.send("session.config", stream_audio=True, seed=3, split_granularity="none")
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        start = await client.until("audio.start")
        assert (start["format"], start["sample_rate"], start["channels"], start["seed"]) == ("pcm", 24_000, 1, 3)
        done = await client.until("session.done")
    assert done["total_sentences"] == 1
    assert client.audio[0, 0] == await rest(url, TEXT, seed=3)


async def speak(client: Client, pieces: list[str], delays: random.Random) -> None:
    for piece in pieces:
        await client.send("input.text", text=piece)
        await asyncio.sleep(delays.choice((0.0, 0.0, 0.01, 0.05)))
    await client.send("input.done")


@pytest.mark.parametrize("seed", range(3))
async def test_audio_does_not_depend_on_pieces_and_delays(served: tuple[str, GatewayService], seed: int) -> None:
    (url, _), chance = served, random.Random(seed)
    expected = await rest(url, TEXT, seed=5, non_streaming_mode=False)
    pieces, rest_of_text = [], TEXT
    while rest_of_text:
        size = chance.choice((1, 2, 4, 9))
        pieces.append(rest_of_text[:size])
        rest_of_text = rest_of_text[size:]
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        speaking = asyncio.create_task(speak(client, pieces, chance))
        assert (await client.until("session.done"))["total_sentences"] == 1
        await speaking
        await speak(client, [TEXT], chance)
        await client.until("session.done")
    assert client.audio[0, 0] == client.audio[1, 0] == expected
    [done, _] = client.of_type("audio.done")
    assert (done["finish_reason"], done["spoken_characters"]) == ("stop", len(TEXT))


async def test_numbers_are_spoken_as_words_by_default(served: tuple[str, GatewayService]) -> None:
    (url, _), chance = served, random.Random(4)
    written, words = "It costs $5.50 in 2024.", "It costs five dollars and fifty cents in twenty twenty-four."
    fields = {"seed": 5, "non_streaming_mode": False}
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await speak(client, list(written), chance)
        await speak(client, [written], chance)
        await client.until("session.done")
        await client.until("session.done")
        await client.send("session.config", **TOKENS, normalize=False)
        await speak(client, list(written), chance)
        await client.until("session.done")
    assert client.audio[0, 0] == client.audio[1, 0] == await rest(url, words, **fields)
    assert client.audio[0, 0] == await rest(url, written, **fields)
    assert client.audio[2, 0] == await rest(url, written, **fields, normalize=False)
    assert [done["spoken_characters"] for done in client.of_type("audio.done")] == [len(written)] * 3


async def test_a_cancel_tells_up_to_which_written_character_was_spoken(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text="$1,234,567 and ")
        await client.until("audio.start")
        while not client.audio or sum(map(len, client.audio.values())) < 2 * FAMILY.sample_rate:
            await client.receive()
        await client.send("cancel")
        done = await client.until("audio.done")
    assert done["finish_reason"] == "canceled"
    assert done["spoken_characters"] == len("$1,234,567"), "the end of the number, not of its first word"


async def test_audio_comes_before_the_sentence_is_complete(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text="The old teacher found two ")
        start = await client.until("audio.start")
        await client.receive()
        assert start["sentence_text"].startswith("The old")
        assert client.audio[0, 0]
        await client.send("input.text", text="heavy bags.")
        await client.send("input.done")
        await client.until("session.done")
    assert client.audio[0, 0] == await rest(
        url, "The old teacher found two heavy bags.", seed=5, non_streaming_mode=False
    )


async def test_cancel_stops_audio_and_frees_the_row(served: tuple[str, GatewayService], stages: Pipeline) -> None:
    url, _ = served
    talker = stages.workers[0]
    async with connected(url) as client:
        text = f"{TEXT} " * 4
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=text)
        await client.until("audio.start")
        while len(client.audio.get((0, 0), b"")) < 2 * FAMILY.sample_rate * 2:
            await client.receive()
        [row] = talker.rows.values()
        produced, began = row.produced, time.monotonic()
        await client.send("cancel")
        done = await client.until("audio.done")
        assert time.monotonic() - began < 0.1 + FAMILY.frame_seconds * 2
        assert done["finish_reason"] == "canceled" and not done["error"]
        spoken = text[: done["spoken_characters"]]
        # Two seconds or a little more: the model has read far more than that.
        assert 2 <= len(spoken.split()) <= 12 and text[len(spoken)].isspace()
        received = len(client.audio[0, 0])
        assert done["total_bytes"] == received
        assert (await client.until("session.done"))["utterance_index"] == 0
        while talker.rows:
            await asyncio.sleep(0.001)
        assert row.produced - produced <= 3, "two frames, and one that was generated before the message"
        await client.send("cancel")
        assert (await client.until("error"))["code"] == "nothing_to_cancel"
        await client.send("input.text", text="She waited.")
        await client.send("input.done")
        assert (await client.until("session.done"))["utterance_index"] == 1
    assert client.audio[1, 0] and len(client.audio[0, 0]) == received


async def test_a_talker_a_codec_and_redis_keys_survive_and_clean_up(
    served: tuple[str, GatewayService], stages: Pipeline
) -> None:
    """Both stages are killed within an utterance; the audio is that of an undisturbed one."""
    url, _ = served
    expected = await rest(url, TEXT, seed=5, non_streaming_mode=False)
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=TEXT[:40])
        await client.until("audio.start")
        await stages.kill(stages.workers[0])
        await stages.talker("talker-1")
        await client.send("input.text", text=TEXT[40:60])
        await client.receive()
        await stages.kill(stages.workers[0])
        await stages.codec("codec-1")
        await client.send("input.text", text=TEXT[60:])
        await client.send("input.done")
        await client.until("session.done")
    assert client.audio[0, 0] == expected


async def test_errors_name_the_field_and_keep_the_connection(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:

        async def refused(code: str, param: str | None) -> None:
            error = await client.until("error")
            assert (error["code"], error["param"]) == (code, param), error

        await client.send("input.text", text="x")
        await refused("not_configured", "type")
        await client.socket.send(b"\0\xff")
        await refused("invalid_json", None)
        await client.socket.send("{")
        await refused("invalid_json", None)
        await client.socket.send("[" * 60_000)
        await refused("invalid_value", None)
        await client.send("input.say")
        await refused("invalid_value", "type")
        await client.send("session.config", voice="nobody")
        await refused("invalid_value", "voice")
        await client.send("session.config", speedy=1)
        await refused("unknown_field", "speedy")
        await client.send("session.config", input="x")
        await refused("unknown_field", "input")
        await client.send("session.config", text_mode="letters")
        await refused("invalid_value", "text_mode")
        await client.send("session.config", text_mode="tokens", non_streaming_mode=True)
        await refused("invalid_value", "non_streaming_mode")
        await client.send("session.config", text_mode="tokens", stream_audio=False)
        await refused("invalid_value", "stream_audio")
        await client.send("session.config", word_timestamps=True)
        await refused("invalid_value", "word_timestamps")
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=7)
        await refused("invalid_value", "text")
        await client.send("input.text", text="a\0b")
        await refused("invalid_value", "text")
        await client.send("input.text", text="x" * 4097)
        await refused("text_too_long", "text")
        await client.send("input.text", text="x" * 70_000)
        await refused("too_large", "text")
        await client.send("input.text", text="She ")
        await client.send("session.config", **TOKENS)
        await refused("utterance_in_progress", "type")
        await client.send("input.text", text="waited.")
        await client.send("input.done")
        assert (await client.until("session.done"))["utterance_index"] == 0
    assert client.audio[0, 0]


async def test_session_close_lets_what_is_complete_be_spoken(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:
        await client.send("session.config", stream_audio=True, seed=3)
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        await client.send("session.close")
        await client.send("input.text", text=TEXT)
        await client.until("session.done")
        await client.socket.wait_closed()
        assert client.socket.close_code == 1000
        assert [each["code"] for each in client.of_type("error")] == ["closing"]
        assert [each["finish_reason"] for each in client.of_type("audio.done")] == ["stop", "stop"]
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=TEXT)
        await client.until("audio.start")
        await client.send("session.close")
        assert (await client.until("audio.done"))["finish_reason"] == "canceled"
        await client.socket.wait_closed()
        assert client.socket.close_code == 1000


async def test_an_empty_utterance_ends_at_once(served: tuple[str, GatewayService]) -> None:
    url, _ = served
    async with connected(url) as client:
        for config in ({}, TOKENS):
            await client.send("session.config", **config)
            await client.send("input.text", text="  ")
            await client.send("input.done")
            await client.until("session.done")
            await client.send("input.done")
            await client.until("session.done")
    assert [each["type"] for each in client.messages] == ["session.done"] * 4


async def test_a_session_without_text_ends(served: tuple[str, GatewayService], monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = served
    monkeypatch.setattr(websocket, "IDLE_SECONDS", 0.5)
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text="The old teacher found two ")
        # Only text keeps an utterance alive.
        await asyncio.sleep(0.3)
        await client.send("input.text", text="")
        began = time.monotonic()
        error = await client.until("error")
        assert time.monotonic() - began < 0.45
        assert (error["code"], error["param"]) == ("idle_timeout", "text")
        assert (await client.until("audio.done"))["error"]
        await client.socket.wait_closed()
        assert client.socket.close_code == 1008
    async with connected(url) as client:
        assert (await client.until("error"))["code"] == "idle_timeout"


async def test_a_client_that_leaves_frees_its_row(served: tuple[str, GatewayService], stages: Pipeline) -> None:
    url, _ = served
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=TEXT)
        await client.until("audio.start")
    while stages.workers[0].rows:
        await asyncio.sleep(0.001)


async def test_utterances_are_counted_like_requests(stages: Pipeline) -> None:
    async with serving(stages.streams) as (url, _, registry):
        async with connected(url) as client:
            # A busy machine, too, makes audio sooner than it plays at this speed. All that there is plays meanwhile.
            await client.send("session.config", **TOKENS, speed=0.4)
            await client.send("input.text", text=TEXT[:30])
            await client.until("audio.start")
            await asyncio.sleep(5.0)
            await client.send("input.text", text=TEXT[30:])
            await client.send("input.done")
            await client.until("session.done")
        task = TaskType.CUSTOM_VOICE
        count = registry.get_sample_value
        assert count("syrinx_underruns_total", {"task_type": task}) == 0, "text was missing, not audio"
        assert count("syrinx_requests_total", {"task_type": task, "outcome": "stop"}) == 1
        assert count("syrinx_stream_outcomes_total", {"task_type": task, "arm": "", "outcome": "well"}) == 1


class WholeTexts(EagerTalkerEngine):
    """An engine that needs the whole text before it speaks, as vLLM does."""

    def open_text(self, languages: Sequence[str]) -> StreamedText:
        raise RequestError("text_mode: this engine needs the whole text", "text_mode")


async def test_an_engine_that_needs_the_whole_text_is_named_in_the_error() -> None:
    async with (
        pipeline(talker_engine=WholeTexts) as stages,
        serving(stages.streams) as (url, _, _),
        connected(url) as client,
    ):
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=TEXT)
        error = await client.until("error")
        assert (error["code"], error["param"]) == ("invalid_value", "text_mode")
        await client.send("input.done")
        await client.until("session.done")
        await client.send("session.config")
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        await client.until("session.done")
        assert client.audio[1, 0]


@pytest.mark.parametrize("victim", ["talker", "codec"])
async def test_a_process_that_is_killed_is_replaced_within_an_utterance(tmp_path: Path, victim: str) -> None:
    """Real processes, SIGKILL: the audio is that of an undisturbed utterance."""
    streams = Streams()
    names = {"pipeline": streams.keys.pipeline, "generation": streams.keys.generation, "admin_port": 0}
    with contextlib.ExitStack() as processes:
        started = {}
        for stage in ("talker", "codec"):
            for number in range(1 + (stage == victim)):
                environment = {"REDIS_URL": redis_url(), "POD_NAME": f"{stage}-{number}"}
                directory = tmp_path / f"{stage}-{number}"
                process = StageProcess(stage, directory, None, environment=environment, **names)
                started[f"{stage}-{number}"] = processes.enter_context(process)
        for process in started.values():
            await asyncio.to_thread(lambda process=process: process.started().ready())
        async with serving(streams) as (url, _, _):
            expected = await rest(url, TEXT, seed=5, non_streaming_mode=False)
            async with connected(url) as client:
                await client.send("session.config", **TOKENS)
                await client.send("input.text", text=TEXT[:40])
                await client.until("audio.start")
                # Only one of the two has the request.
                for name in (f"{victim}-0", f"{victim}-1"):
                    if await owns_row(started[name]):
                        started[name].process.kill()
                await client.send("input.text", text=TEXT[40:])
                await client.send("input.done")
                await client.until("session.done")
            assert client.audio[0, 0] == expected
        killed = [name for name, process in started.items() if process.process.poll() is not None]
        assert len(killed) == 1 and killed[0].startswith(victim)
    await streams.close()


async def owns_row(process: StageProcess) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        lines = (await http.get(f"{process.line['admin_url']}/metrics")).text.splitlines()
    return any(float(line.split()[-1]) > 0 for line in lines if line.startswith("syrinx_rows_resident{"))


async def test_a_drain_lets_an_utterance_end(stages: Pipeline) -> None:
    async with serving(stages.streams) as (url, service, _), connected(url) as idle, connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text="The old teacher found ")
        await client.until("audio.start")
        draining = asyncio.create_task(service.drain(30))
        await idle.socket.wait_closed()
        assert idle.socket.close_code == 1012
        await client.send("input.text", text="two heavy bags.")
        await client.send("input.done")
        await client.until("session.done")
        await client.socket.wait_closed()
        assert client.socket.close_code == 1012
        await draining
