"""`/v1/audio/speech/stream` through a real gateway, talker and codec, with the `websockets` package as its client."""

import asyncio
import io
import time
import wave
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect

from support.speech_socket import Client, connected, message, serving
from support.stages import Pipeline, pipeline
from support.waiting import until
from syrinx_stages.contract.api import SPEECH_STREAM_PATH
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.gateway.socket import websocket
from syrinx_stages.model.describe import describe
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.eager_engine import EagerTalkerEngine

TEXT = "The old teacher found two heavy bags. Who carried them after the storm?"
TOKENS = {"text_mode": "tokens", "seed": 5}


@pytest.fixture
async def stages() -> AsyncIterator[Pipeline]:
    async with pipeline(reading=describe("bundled").reading) as running:
        yield running


@pytest.fixture
async def url(stages: Pipeline) -> AsyncIterator[str]:
    async with serving(stages.streams) as (it, _, _):
        yield it
    assert len(stages.streams) == 0, "a request was not released"


async def rest(url: str, text: str, **fields: object) -> bytes:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        body = {"input": text, "response_format": "pcm", **fields}
        answer = await http.post(f"{url}/v1/audio/speech", json=body)
        assert answer.status_code == 200, answer.text
        return answer.content


async def test_a_final_slash_of_the_path_and_a_byte_order_mark_are_ignored(url: str) -> None:
    async with connect(url.replace("http", "ws", 1) + SPEECH_STREAM_PATH + "/", proxy=None) as socket:
        client = Client(socket)
        await socket.send('\ufeff{"type": "session.config", "voice": "US", "stream_audio": "true", "language": "en"}')
        await socket.send('{"type": "input.text", "text": "One.\x0cTwo. "}')
        await client.send("input.done")
        await client.until("session.done")
    assert [each["sentence_text"] for each in client.of_type("audio.start")] == ["One.", "Two."]
    assert client.of_type("error") == []


async def test_the_messages_of_vllm_omnis_example_client(url: str) -> None:
    """Its sequence: a configuration, words with delays, `input.done`, up to `session.done`, twice on a connection."""
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


async def test_the_messages_of_sglang_omnis_clients(url: str) -> None:
    """The fields are in `session`, its answer is awaited, and the server closes the connection after the utterance."""
    async with connected(url) as client:
        fields = {"speaker": "us", "response_format": "pcm", "stream_audio": True, "split_granularity": "sentence"}
        await client.send("session.config", session={**fields, "seed": 3, "initial_codec_chunk_frames": 2})
        configured = await client.until("session.configured")
        assert configured.items() >= fields.items() - {("speaker", "us")} and configured["session_id"]
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        assert (await client.until("session.done"))["total_sentences"] == 2
        await client.socket.wait_closed()
    assert client.socket.close_code == 1000
    assert "initial_codec_chunk_frames" in client.of_type("warning")[0]["message"]
    assert client.audio[0, 0] == await rest(url, "The old teacher found two heavy bags.", seed=3)


async def test_messages_that_were_proposed_for_vllm_omni_say_what_to_send(url: str) -> None:
    async with connected(url) as client:
        for kind, hint in (("input.commit", "without commits; leave it out"), ("input.cancel", "send cancel")):
            await client.send(kind)
            assert hint in (await client.until("error"))["message"]
        await client.send("session.config", streaming_mode="sentence_commit")
        error = await client.until("error")
        assert error["param"] == "streaming_mode" and "send token_level" in error["message"]


async def test_the_answer_to_a_handshake_announces_no_time_between_requests(url: str) -> None:
    async with connected(url) as client:
        assert client.socket.response is not None
        assert "keep-alive" not in client.socket.response.headers


@pytest.mark.parametrize("config", [{"split_granularity": "none", "stream_audio": True}, {"text_mode": "tokens"}])
async def test_segments_tell_their_place_before_their_audio(url: str, config: dict[str, object]) -> None:
    """The first one of a text that streams in tells it once it has ended."""
    lexicon = {"teacher": "retired schoolmaster"}
    async with connected(url) as client:
        await client.send("session.config", **config, lexicon=lexicon, seed=3)
        await client.send("input.text", text=TEXT)
        await client.send("input.done")
        heard = []
        for number in range(2):
            segment = await client.until("audio.segment")
            played = round(1000 * len(client.audio.get((0, 0), b"")) / FAMILY.frame_bytes * 0.08)
            assert segment["start_ms"] == played * number
            assert (segment["utterance_index"], segment["sentence_index"]) == (0, 0)
            heard.append(TEXT[slice(*segment["text_range"])])
        await client.until("session.done")
        assert heard == ["The old teacher found two heavy bags.", "Who carried them after the storm?"]
        assert len(client.of_type("audio.segment")) == 2
    spoken = await rest(url, TEXT, seed=3, lexicon=lexicon, non_streaming_mode="text_mode" not in config)
    assert client.audio[0, 0] == spoken


async def test_a_text_that_redis_loses_is_submitted_again(url: str, stages: Pipeline) -> None:
    """Here between two segments: the first one is generated again, and the second one follows."""
    [talker, _] = stages.workers
    async with connected(url) as client:
        await client.send("session.config", **TOKENS)
        await client.send("input.text", text=TEXT[:45])
        await client.until("audio.start")
        while not (rows := list(talker.rows.values())) or not rows[0].waits_for_text or rows[0].speech.number == 0:
            await client.receive()
        for key in stages.streams.raw.keys(f"*{rows[0].id}*"):
            stages.streams.raw.delete(key)
        stages.streams.raw.delete(stages.streams.keys.requests)
        await until(lambda: rows[0] not in talker.rows.values(), "the talker has noticed it")
        await client.send("input.text", text=TEXT[45:])
        await client.send("input.done")
        await client.until("session.done")
        assert not client.of_type("error")
    assert client.audio[0, 0] == await rest(url, TEXT, seed=5, non_streaming_mode=False)


async def test_a_text_that_streams_in_is_counted_once_with_all_its_characters(stages: Pipeline) -> None:
    async with serving(stages.streams) as (url, _, registry):
        async with connected(url) as client:
            await client.send("session.config", **TOKENS)
            for piece in (TEXT[:20], TEXT[20:]):
                await client.send("input.text", text=piece)
            await client.send("input.done")
            await client.until("session.done")
        labels = {"task_type": "CustomVoice"}
        counted = [registry.get_sample_value(f"syrinx_stream_characters_{each}", labels) for each in ("count", "sum")]
        assert counted == [1, len(TEXT)]


async def test_a_cancel_tells_up_to_which_written_character_was_spoken(url: str) -> None:
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


async def test_a_lexicon_respells_text_that_streams_in(url: str) -> None:
    """The client is told characters of its own text."""
    lexicon = {"old teacher": "retired schoolmaster", "bags": "boxes"}
    pieces = "The old", " tea", "cher found two heavy ba", "gs. The old man."
    async with connected(url) as client:
        await client.send("session.config", **TOKENS, lexicon=lexicon)
        for piece in pieces:
            await client.send("input.text", text=piece)
        await client.send("input.done")
        done = await client.until("audio.done")
    text = "The retired schoolmaster found two heavy boxes. The old man."
    assert done["spoken_characters"] == len("".join(pieces))
    assert client.audio[0, 0] == await rest(url, text, seed=5, non_streaming_mode=False, runaway_guard=False)


@pytest.mark.parametrize("config", [TOKENS, {"stream_audio": True}], ids=["tokens", "sentences"])
async def test_a_lexicon_that_leaves_no_word_is_named(url: str, config: dict[str, object]) -> None:
    """As by `POST /v1/audio/speech`. The next utterance is spoken."""
    async with connected(url) as client:
        await client.send("session.config", **config, lexicon={"hello": "…"})
        for text in ("Hello, hello.", "She waited."):
            await client.send("input.text", text=text)
            await client.send("input.done")
            await client.until("session.done")
    (error,) = client.of_type("error")
    assert error["param"] == "lexicon" and error["message"] == "lexicon: leaves nothing to say of the text; send words"
    assert [each["finish_reason"] for each in client.of_type("audio.done")] == ["error", "stop"]


async def test_audio_comes_before_the_sentence_is_complete(url: str) -> None:
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


async def test_cancel_stops_audio_and_frees_the_row(url: str, stages: Pipeline) -> None:
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


async def test_errors_name_the_field_and_keep_the_connection(url: str) -> None:
    refusals: list[tuple[str | bytes, str, str | None]] = [
        (message("input.text", text="x"), "not_configured", "type"),
        (b"\0\xff", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[" * 60_000, "invalid_value", None),
        (message("input.say"), "invalid_value", "type"),
        (message("session.config", voice="nobody"), "invalid_value", "voice"),
        (message("session.config", speaker="nobody"), "invalid_value", "speaker"),
        (message("session.config", speedy=1), "unknown_field", "speedy"),
        (message("session.config", **TOKENS, request_id="a", speed=2), "invalid_value", "speed"),
        (message("session.config", **TOKENS, request_id="a", format="wav"), "invalid_value", "format"),
        (message("session.config", **TOKENS), "", None),
        (message("input.text", text=7), "invalid_value", "text"),
        (message("input.text", text="x" * 4097), "text_too_long", "text"),
        (message("input.text", text="x" * 70_000), "too_large", "text"),
        (message("input.text", text="She "), "", None),
        (message("session.config", **TOKENS), "utterance_in_progress", "type"),
    ]
    async with connected(url) as client:
        for sent, code, param in refusals:
            await client.socket.send(sent)
            if code:
                error = await client.until("error")
                assert (error["code"], error["param"]) == (code, param), error
        await client.send("input.text", text="waited.")
        await client.send("input.done")
        assert (await client.until("session.done"))["utterance_index"] == 0
    assert client.audio[0, 0]


async def test_session_close_lets_what_is_complete_be_spoken(url: str) -> None:
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


async def test_a_session_without_text_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


class WholeTexts(EagerTalkerEngine):
    """An engine that needs the whole text before it speaks, as vLLM does."""

    def open_text(self, request: SpeechRequest) -> StreamedText:
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
