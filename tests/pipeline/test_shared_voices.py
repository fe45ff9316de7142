"""The voices of the resource: every client may use them, and a request that names none gets the first."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from support.cloning import TRANSCRIPT, Cloning, gateway_of, sample
from support.http_server import ScriptedResponse, http_server
from support.stages import Pipeline
from syrinx_stages.contract.settings import SharedVoice
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.model.describe import describe
from syrinx_stages.runtime.errors import StartError


@pytest.fixture
def voices(tmp_path: Path) -> tuple[SharedVoice, ...]:
    """Anna, with what she says, and Ben, without."""
    for seed, name in enumerate(("anna", "ben")):
        (tmp_path / f"{name}.wav").write_bytes(sample(seed))
    anna = SharedVoice(name="Anna", consent="cons_1", file=str(tmp_path / "anna.wav"), transcript=TRANSCRIPT)
    return anna, SharedVoice(name="Ben", consent="Ben agreed", file=str(tmp_path / "ben.wav"))


@pytest.fixture
async def running(base_stages: Pipeline, voices: tuple[SharedVoice, ...]) -> AsyncIterator[Cloning]:
    async with gateway_of(base_stages, shared_voices=voices) as it:
        yield it


def reference(seed: int) -> dict[str, object]:
    transcript = {"ref_text": TRANSCRIPT} if seed == 0 else {"x_vector_only_mode": True}
    return {"ref_audio": base64.b64encode(sample(seed)).decode(), **transcript}


@pytest.mark.parametrize(("name", "seed"), [("anna", 0), ("ANNA", 0), ("Ben", 1)])
async def test_a_voice_speaks_as_its_file_in_a_request_does(running: Cloning, name: str, seed: int):
    for _ in range(2):
        named = await running.say(voice=name)
        assert named.status_code == 200, named.text
        assert named.content == (await running.say(**reference(seed))).content


async def test_the_first_is_the_voice_of_clients_on_their_defaults(running: Cloning):
    anna = (await running.say(voice="anna")).content
    assert (await running.say()).content == (await running.say(voice="default")).content == anna
    client = openai.AsyncOpenAI(base_url=f"{running.http.base_url}/v1", api_key="none")
    extra = {"max_new_tokens": 10, "seed": 3}
    spoken = await client.audio.speech.create(
        model="tts-1", voice="alloy", input="Hello.", response_format="pcm", extra_body=extra
    )
    assert spoken.content == anna
    # OpenAI's names are distributed over the voices.
    ben = (await running.say(voice="ben")).content
    assert (await running.say(voice="ash")).content == ben != anna


async def test_a_reference_of_the_request_goes_before_a_default_and_not_with_a_name(running: Cloning):
    for voice in ({}, {"voice": "alloy"}, {"voice": "default"}):
        response = await running.say(**voice, **reference(1))
        assert response.content == (await running.say(voice="ben")).content
    both = await running.say(voice="anna", **reference(1))
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "ref_audio"


async def test_a_voice_is_prepared_once_for_all_gateways(base_stages: Pipeline, voices: tuple[SharedVoice, ...]):
    for _ in range(2):
        async with gateway_of(base_stages, shared_voices=voices) as gateway:
            assert (await gateway.say(voice="anna")).status_code == 200
    assert len(base_stages.talker_engine.encoded) == 1
    [prepared] = base_stages.streams.raw.scan_iter(match=f"{{{base_stages.streams.keys.pipeline}:*:prepared:*")
    assert base_stages.streams.raw.ttl(prepared) > 0


async def test_it_is_listed_with_its_aliases_and_cannot_be_replaced_or_deleted(running: Cloning):
    await running.upload("carl")
    listed = (await running.http.get("/v1/audio/voices")).json()
    assert listed["names"] == ["Anna", "Ben", "carl"]
    assert listed["default"] == "Anna"
    assert [each["name"] for each in listed["uploaded_voices"]] == ["carl"]
    assert {"id": "ash", "object": "voice", "name": "ash", "alias_of": "Ben"} in listed["data"]
    anna = (await running.http.get("/v1/audio/voices/anna")).json()
    assert (anna["name"], anna["consent"]) == ("Anna", "cons_1")
    for refused in (await running.upload("ANNA"), await running.http.delete("/v1/audio/voices/anna")):
        assert refused.status_code == 400
        assert "voice or an alias of this service" in refused.json()["error"]["message"]
    unknown = await running.say(voice="dora")
    assert unknown.status_code == 400


async def test_it_may_come_from_an_allowed_host(base_stages: Pipeline):
    async with http_server(lambda request: ScriptedResponse(sample())) as server:
        voice = SharedVoice(name="anna", consent="cons_1", url=f"{server.url}/anna.wav", transcript=TRANSCRIPT)
        host = server.url.removeprefix("http://")
        async with gateway_of(base_stages, shared_voices=(voice,), reference_hosts=(host,)) as gateway:
            assert (await gateway.say()).content == (await gateway.say(**reference(0))).content
        with pytest.raises(StartError, match=r"voices: 'anna': host .* is not allowed; accepted: none"):
            async with gateway_of(base_stages, shared_voices=(voice,)):
                pass


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read .*: No such file"),
        (b"RIFF", "is not a supported audio file"),
        (sample(seconds=0.5), "is 0.50 seconds long; accepted: 1 to 30"),
        (b"\0" * (16 * 2**20 + 1), "the file is larger than 16 MB"),
    ],
    ids=["missing", "no audio", "short", "large"],
)
async def test_a_gateway_does_not_start_with_an_unusable_voice(
    base_stages: Pipeline, tmp_path: Path, content: bytes | None, problem: str
):
    file = tmp_path / "anna.wav"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartError, match=f"voices: 'anna': {problem}"):
        async with gateway_of(base_stages, shared_voices=(SharedVoice(name="anna", consent="cons_1", file=str(file)),)):
            pass


async def test_all_unusable_voices_are_named(base_stages: Pipeline, voices: tuple[SharedVoice, ...], tmp_path: Path):
    (tmp_path / "ben.wav").write_bytes(b"RIFF")
    missing = SharedVoice(name="Carl", consent="cons_3", file=str(tmp_path / "carl.wav"))
    problems = r"voices: 'Ben': is not a supported .*; 'Carl': cannot read .*carl\.wav: No such file"
    with pytest.raises(StartError, match=problems):
        async with gateway_of(base_stages, shared_voices=(*voices, missing)):
            pass


async def test_requests_are_counted_by_voice(running: Cloning):
    await running.upload("carl")
    for fields in ({"voice": "alloy"}, {}, {"voice": "ben"}, {"voice": "Carl"}, reference(1), {"voice": "dora"}):
        await running.say(**fields)
    voices = {("resource", "Anna"): 2, ("resource", "Ben"): 1, ("client", ""): 1, ("request", ""): 1}
    assert running.counted("syrinx_voice_requests", "source", "voice") == voices
    await running.http.delete("/v1/audio/voices/carl")
    assert running.counted("syrinx_voice_changes", "change") == {("kept",): 1, ("prepared",): 2, ("deleted",): 1}


async def test_names_that_differ_in_case_only_are_refused(base_stages: Pipeline, voices: tuple[SharedVoice, ...]):
    twice = voices[0], SharedVoice(name="anna", consent="cons_1", file=voices[0].file)
    with pytest.raises(StartError, match="voices: two have the same name: Anna, anna"):
        async with gateway_of(base_stages, shared_voices=twice):
            pass


def test_another_checkpoint_is_refused(voices: tuple[SharedVoice, ...]):
    with pytest.raises(StartError, match="voices: they need a Base checkpoint; this one does CustomVoice"):
        Catalog(describe("bundled"), "m", shared=voices)
