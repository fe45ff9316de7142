"""Kept voices through the public API, a real talker and codec, and Redis."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch

from support.api_keys import Keys as ApiKeys
from support.cloning import TRANSCRIPT, Cloning, gateway_of, sample, stages_of
from support.recordings import recording
from support.stages import Pipeline
from syrinx_stages.contract.keys import Keys
from syrinx_stages.gateway.voices import reference
from syrinx_stages.model.checkpoint import Checkpoint


@pytest.fixture
async def running(base_stages: Pipeline) -> AsyncIterator[Cloning]:
    async with gateway_of(base_stages) as it:
        yield it


def as_reference(file: bytes) -> dict[str, str]:
    return {"ref_audio": base64.b64encode(file).decode(), "ref_text": TRANSCRIPT}


async def test_a_kept_voice_speaks_as_its_reference_in_each_request_does(running: Cloning):
    assert (await running.upload("Anna")).status_code == 200
    kept = await running.say(voice="anna")
    sent = await running.say(**as_reference(sample()))
    assert (kept.status_code, sent.status_code) == (200, 200), kept.text
    assert kept.content == sent.content
    assert len(kept.content) > 0


async def test_a_reference_is_encoded_once_for_all_gateways(running: Cloning, base_stages: Pipeline):
    await running.upload("anna")
    assert len(base_stages.talker_engine.encoded) == 1
    async with gateway_of(base_stages) as another:
        for gateway in (running, another, another):
            assert (await gateway.say(voice="anna")).status_code == 200
    assert len(base_stages.talker_engine.encoded) == 1


@pytest.mark.parametrize("subtype", ["PCM_16", "DOUBLE"], ids=["file", "samples"])
async def test_another_model_generation_prepares_a_voice_at_its_first_use(
    running: Cloning, base_stages: Pipeline, subtype: str
):
    """From the uploaded file, or from its samples, which are smaller than a file of doubles."""
    file = sample(subtype=subtype)
    await running.upload("anna", file)
    [source] = base_stages.streams.raw.scan_iter(match=f"{{{base_stages.streams.keys.pipeline}:*:source")
    assert (base_stages.streams.raw.strlen(source) == len(file)) is (subtype == "PCM_16")
    first = await running.say(voice="anna")
    async with stages_of(base_stages.checkpoint, Keys(base_stages.streams.keys.pipeline, "2")) as others:
        for _ in range(2):
            # A gateway that has just started has no voices in memory.
            async with gateway_of(others) as gateway:
                assert (await gateway.say(voice="anna")).content == first.content
        assert len(others.talker_engine.encoded) == 1


@pytest.mark.parametrize(("container", "codec"), [("ipod", "aac"), ("webm", "libopus")], ids=["m4a", "webm"])
async def test_a_recording_of_a_phone_or_a_browser_is_kept_as_it_is(running: Cloning, container: str, codec: str):
    file = recording(container, codec, 2)
    voice = (await running.upload("anna", file)).json()["voice"]
    assert voice["file_size"] == len(file)
    assert voice["seconds"] == pytest.approx(2, abs=0.1)
    assert (await running.say(voice="anna")).content == (await running.say(**as_reference(file))).content


async def test_a_video_without_audio_names_the_field_of_the_upload(running: Cloning):
    error = (await running.upload("anna", recording("mp4", None, 2, picture=True))).json()["error"]
    assert error["param"] == "audio_sample"
    assert error["message"].startswith("audio_sample: has no audio track that can be read; send wav, flac, mp3, ogg")


async def test_a_bad_sample_is_named_as_it_was_sent(running: Cloning):
    form = {"name": (None, "anna"), "consent": (None, "cons_1"), "ref_audio": ("a.wav", b"RIFF", "audio/wav")}
    error = (await running.http.post("/v1/audio/voices", files=form)).json()["error"]
    assert error["param"] == "ref_audio" and error["message"].startswith("ref_audio: ")


async def test_an_upload_describes_the_voice_to_openai_and_to_vllm_omni(running: Cloning):
    file = sample()
    uploaded = (await running.upload("Anna", file, speaker_description="warm")).json()
    voice = uploaded.pop("voice")
    assert uploaded == {**voice, "success": True, "durable": False}
    assert voice.pop("id").startswith("voice_")
    assert voice.pop("created_at") > 1.7e9
    assert voice == {
        "object": "audio.voice",
        "type": "audio_sample",
        "name": "Anna",
        "consent": "cons_1",
        "ref_text": TRANSCRIPT,
        "speaker_description": "warm",
        "seconds": 1.6,
        "mime_type": "audio/wav",
        "file_size": len(file),
    }


async def test_voices_are_listed_found_and_deleted(running: Cloning):
    anna = (await running.upload("Anna")).json()["voice"]
    bert = (await running.upload("bert", sample(1))).json()["voice"]
    listed = (await running.http.get("/v1/audio/voices")).json()
    assert sorted(each["name"] for each in listed["uploaded_voices"]) == ["Anna", "bert"]
    assert anna in listed["voices"]
    assert anna in listed["data"]
    assert listed["durable"] is False
    for name in ("anna", anna["id"]):
        assert (await running.http.get(f"/v1/audio/voices/{name}")).json() == anna
    deleted = (await running.http.delete("/v1/audio/voices/ANNA")).json()
    assert (deleted["id"], deleted["deleted"], deleted["success"]) == (anna["id"], True, True)
    for response in (await running.say(voice="anna"), await running.say(voice=anna["id"])):
        assert (response.status_code, response.json()["error"]["param"]) == (400, "voice")
    assert (await running.http.delete("/v1/audio/voices/anna")).status_code == 404
    assert (await running.http.get("/v1/audio/voices")).json()["uploaded_voices"] == [bert]
    assert (await running.upload("anna", sample(2))).status_code == 200, "the name is free again"


async def test_streams_events_and_batches_take_a_kept_voice(running: Cloning):
    anna = (await running.upload("anna")).json()
    spoken = (await running.say(voice="anna", stream=False)).content
    events = await running.say(voice={"id": anna["id"]}, stream_format="sse")
    deltas = [json.loads(line[6:]) for line in events.text.splitlines() if line]
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas if "audio" in each) == spoken
    items = [{"input": "Hello."}, {"input": "Hello.", "voice": "bert"}]
    fields = {"voice": "anna", "response_format": "pcm", "max_new_tokens": 10, "seed": 3}
    batch = (await running.http.post("/v1/audio/speech/batch", json={"items": items, **fields})).json()
    assert base64.b64decode(batch["results"][0]["audio_data"]) == spoken
    assert batch["results"][1]["param"] == "voice"


async def test_openais_client_makes_uses_and_deletes_a_voice(running: Cloning):
    client = openai.AsyncOpenAI(base_url=f"{running.http.base_url}/v1", api_key="none")
    voice = await client.audio.voices.create(audio_sample=("a.wav", sample()), consent="cons_1234", name="Anna")
    assert (voice.object, voice.type, voice.name) == ("audio.voice", "audio_sample", "Anna")
    fields = {"model": "tts-1", "input": "Hello.", "response_format": "pcm", "extra_body": {"max_new_tokens": 5}}
    speech = await client.audio.speech.create(voice={"id": voice.id}, **fields)
    assert len(speech.content) > 0
    deleted = await client.audio.voices.delete(voice.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (voice.id, True, "audio.voice.deleted")
    with pytest.raises(openai.BadRequestError, match="is not among your voices"):
        await client.audio.speech.create(voice={"id": voice.id}, **fields)
    with pytest.raises(openai.UnprocessableEntityError, match="type: 'prompt' is not supported; send audio_sample"):
        await client.audio.voices.create(type="prompt", name="Anna", prompt="a calm voice")


async def test_a_speaker_embedding_is_a_voice_of_a_request_or_a_kept_one(running: Cloning, base_stages: Pipeline):
    samples = np.frombuffer(reference.decode_audio(sample()), "<f4")
    encoder = base_stages.checkpoint.load_speaker_encoder()
    embedding = encoder.embed(torch.from_numpy(samples.copy())).tolist()
    expected = await running.say(**{**as_reference(sample()), "ref_text": None, "x_vector_only_mode": True})
    assert (await running.say(speaker_embedding=embedding)).content == expected.content
    uploaded = await running.upload("anna", speaker_embedding=json.dumps(embedding), ref_text=None)
    assert uploaded.json()["type"] == "speaker_embedding", uploaded.text
    async with gateway_of(base_stages) as another:
        assert (await another.say(voice="anna")).content == expected.content
    for fields in ({"speaker_embedding": embedding[:-1]}, {"speaker_embedding": [0.0] * len(embedding)}):
        error = (await running.say(**fields)).json()["error"]
        assert error["param"] == "speaker_embedding"


async def test_a_voice_belongs_to_its_api_key(base_stages: Pipeline, tmp_path: Path):
    keys = ApiKeys(tmp_path, a={}, b={})
    async with gateway_of(base_stages, api_keys_file=str(keys.file)) as running:
        anna = (await running.upload("anna", headers=keys.of("a"))).json()
        assert (await running.say(keys.of("a"), voice="anna")).status_code == 200
        for name in ("anna", anna["id"]):
            assert (await running.say(keys.of("b"), voice=name)).json()["error"]["param"] == "voice"
            path = f"/v1/audio/voices/{name}"
            assert (await running.http.get(path, headers=keys.of("b"))).status_code == 404
            assert (await running.http.delete(path, headers=keys.of("b"))).status_code == 404
        assert (await running.http.get("/v1/audio/voices", headers=keys.of("b"))).json()["uploaded_voices"] == []
        assert (await running.upload("anna", sample(1), headers=keys.of("b"))).status_code == 200
        first, second = [await running.say(keys.of(name), voice="anna") for name in "ab"]
        assert first.content != second.content
        assert (await running.upload("anna")).status_code == 401


async def test_a_name_is_taken_once(running: Cloning, base_stages: Pipeline):
    await running.upload("anna")
    again = await running.upload("ANNA", sample(1))
    assert (again.status_code, again.json()["error"]["code"]) == (409, "voice_exists")
    assert len(base_stages.talker_engine.encoded) == 1, "nothing is prepared for a voice that cannot be kept"


@pytest.mark.parametrize("name", ["ref_audio", "ref_text", "speaker_embedding"])
async def test_a_kept_voice_cannot_be_combined_with_another_one(running: Cloning, name: str):
    await running.upload("anna")
    value = [1.0] if name == "speaker_embedding" else base64.b64encode(sample()).decode()
    error = (await running.say(voice="anna", **{name: value})).json()["error"]
    assert (error["param"], "leave one of them out" in error["message"]) == (name, True)


async def test_a_body_that_is_no_form_is_refused(running: Cloning):
    text = await running.http.post("/v1/audio/voices", json={"name": "anna"})
    assert (text.status_code, text.json()["error"]["code"]) == (415, "unsupported_media_type")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        broken = await running.http.post("/v1/audio/voices", content=b"--y\r\n", headers={"Content-Type": kind})
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_form")


async def test_voices_need_a_base_checkpoint():
    async with stages_of(Checkpoint("bundled")) as base_stages, gateway_of(base_stages) as running:
        refused = await running.upload("anna")
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "audio_sample")
        preset = (await running.http.get("/v1/audio/voices/US")).json()
        assert preset == {"id": "us", "object": "voice", "name": "us"}
        listed = (await running.http.get("/v1/audio/voices")).json()
        assert (listed["uploaded_voices"], "durable" in listed) == ([], False)
        embedding = await running.say(speaker_embedding=[1.0])
        assert (embedding.status_code, embedding.json()["error"]["param"]) == (422, "speaker_embedding")
