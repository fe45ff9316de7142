import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from support.speech_requests import BASE, CUSTOM, DESIGN, parsed, parsed_json, refused
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.messages import Sampling, TaskType
from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions
from syrinx_stages.gateway.errors import ApiError, error_response
from syrinx_stages.gateway.speech.request import Delivery
from syrinx_stages.gateway.voices.catalog import OPENAI_VOICES, Catalog
from syrinx_stages.gateway.voices.voices import KeptVoice
from syrinx_stages.model.describe import Description, describe
from syrinx_stages.runtime.errors import StartError


def test_defaults():
    accepted_request = parsed()
    request = accepted_request.request
    assert accepted_request.audio == AudioOptions(AudioFormat.WAV, 24_000, 1.0)
    assert (accepted_request.delivery, accepted_request.warnings) == (Delivery.AUDIO, [])
    assert (request.id, request.accepted_at, request.text) == ("id", 1.5, "Hello.")
    assert (request.task_type, request.voice, request.language) == (TaskType.CUSTOM_VOICE, "vivian", "auto")
    assert (request.sampling, request.max_frames, request.live) == (Sampling(), 2048, True)
    assert request.non_streaming_text
    assert not request.has_reference
    assert parsed(model="qwen3-tts", seed=1) == parsed(seed=1)


def test_every_field_has_an_effect():
    changed = {
        "voice": "Ryan", "instructions": "Whisper.", "response_format": "pcm", "language": "English",
        "non_streaming_mode": False, "max_new_tokens": 7, "seed": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.4,
        "repetition_penalty": 1.2, "subtalker_temperature": 0, "subtalker_top_k": 9, "subtalker_top_p": 0.8,
    }  # fmt: skip
    request = parsed(**changed).request
    assert (request.voice, request.instructions, request.language) == ("ryan", "Whisper.", "english")
    assert (request.non_streaming_text, request.max_frames, request.seed) == (False, 7, 5)
    assert request.sampling == Sampling(
        temperature=0.5,
        top_k=3,
        top_p=0.4,
        repetition_penalty=1.2,
        residual_temperature=0,
        residual_top_k=9,
        residual_top_p=0.8,
    )


def test_null_equals_absent():
    nulls = {name: None for name in SpeechFields.__struct_fields__ if name != "input"}
    assert parsed(seed=3, **{n: v for n, v in nulls.items() if n != "seed"}) == parsed(seed=3)


def test_seed_is_random_by_default():
    seeds = {parsed().request.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("fields", "delivery"),
    [
        ({}, Delivery.AUDIO),
        ({"response_format": "mp3"}, Delivery.AUDIO),
        ({"response_format": "flac"}, Delivery.WHOLE),
        ({"response_format": "flac", "stream": True}, Delivery.AUDIO),
        ({"response_format": "flac", "stream_format": "sse"}, Delivery.SSE),
        ({"stream": False}, Delivery.WHOLE),
        ({"stream": True}, Delivery.AUDIO),
        ({"stream": True, "response_format": "pcm"}, Delivery.AUDIO),
        ({"stream_format": "audio"}, Delivery.AUDIO),
        ({"stream_format": "sse"}, Delivery.SSE),
        ({"stream": True, "stream_format": "sse"}, Delivery.SSE),
    ],
)
def test_stream_fields_select_the_delivery(fields: dict[str, Any], delivery: Delivery):
    accepted = parsed(**fields)
    assert accepted.delivery is delivery
    assert accepted.request.live is (delivery is not Delivery.WHOLE)


@pytest.mark.parametrize("name", OPENAI_VOICES)
def test_names_of_openai_are_aliases(name: str):
    assert parsed(voice=name.upper(), model="tts-1-hd").request.voice in CUSTOM.voices
    assert parsed(DESIGN, voice=name, instructions="An old man.").request.voice is None
    own = msgspec.structs.replace(CUSTOM, voices=("Vivian", name.title()))
    assert parsed(own, voice=name).request.voice == name.title(), "a voice of the checkpoint is no alias"


def test_aliases_are_configurable():
    api = ApiConfig(openai_names=False, voice_aliases={"narrator": "RYAN"}, model_aliases=("tts",))
    assert parsed(api=api, voice="Narrator", model="tts").request.voice == "ryan"
    assert parsed(api=api).request.voice == "vivian"
    assert refused(api=api, voice="alloy").param == "voice"
    assert refused(api=api, model="tts-1").status == 404
    api = ApiConfig(voice_aliases={"default": "ryan"})
    assert parsed(api=api).request.voice == parsed(api=api, voice="default").request.voice == "ryan"
    assert Catalog(CUSTOM, "m", api).voice_list()["default"] == "ryan"


@pytest.mark.parametrize(
    ("checkpoint", "aliases", "message"),
    [
        (CUSTOM, {"x": "alto"}, "'x' stands for 'alto', which is not a voice .*; its voices: vivian, ryan"),
        (DESIGN, {"x": "vivian"}, "'x' stands for 'vivian', which is not a voice of this service; it has none"),
        (CUSTOM, {"ryan": "vivian"}, "'ryan' is itself a voice of this service; choose another alias"),
    ],
)
def test_an_alias_of_no_voice_is_an_error_at_the_start(checkpoint: Description, aliases: dict, message: str):
    with pytest.raises(StartError, match=f"^voiceAliases: {message}"):
        Catalog(checkpoint, "m", ApiConfig(voice_aliases=aliases))


def test_instructions_without_effect_are_ignored_with_a_warning_or_refused():
    small = msgspec.structs.replace(CUSTOM, supports_instructions=False, size="0b6")
    ignored = parsed(small, instructions="Whisper.")
    assert ignored.request.instructions is None
    assert ignored.warnings == ["instructions are ignored: this checkpoint (CustomVoice, 0b6) does not support them"]
    error = refused(small, ApiConfig(unsupported_instructions="Refuse"), instructions="Whisper.")
    assert (error.status, error.param) == (422, "instructions")


def test_fields_of_other_servers_clients_are_honored_or_named_in_a_warning():
    extra = {"temperature": 0, "seed": 3, "no_such": 1}
    accepted = parsed(initial_codec_chunk_frames=1, stream_options=[0.5] * 9, extra_params=extra, seed=4)
    assert (accepted.request.sampling.temperature, accepted.request.seed) == (0, 4), "the body comes first"
    names = [warning.split(" is ignored: ")[0] for warning in accepted.warnings]
    assert names == ["initial_codec_chunk_frames", "stream_options", "extra_params.'no_such'"]
    assert refused(extra_params={"temperature": "hot"}).param == "temperature"
    assert refused(extra_params=[1]).param == refused(extra_params={"a": "a" * 70_000}).param == "extra_params"
    assert len(parsed(extra_params={f"name{i}": i for i in range(100)}).warnings) == 8


KEPT = KeptVoice(id="voice_1", owner="", name="Anna", created_at=1, consent="cons_1", transcript="Okay.")


@pytest.mark.parametrize("voice", [{"kept": KEPT, "voice": "anna"}, {"ref_audio": "QUJD", "ref_text": "Okay."}])
def test_a_clone_has_a_reference_and_its_transcript_and_streams_its_text(voice: dict[str, Any]):
    """That of the request, or of a kept voice."""
    request = parsed(BASE, **voice).request
    assert (request.task_type, request.voice) == (TaskType.BASE, None)
    assert (request.has_reference, request.reference_text) == (True, "Okay.")
    assert (request.x_vector_only, request.non_streaming_text) == (False, False)


def test_a_kept_voice_without_a_transcript_is_an_x_vector():
    alone = structs.replace(KEPT, transcript=None)
    for kept, fields in ((alone, {}), (alone, {"x_vector_only_mode": True}), (KEPT, {"x_vector_only_mode": True})):
        request = parsed(BASE, kept=kept, voice="anna", **fields).request
        assert (request.has_reference, request.x_vector_only, request.reference_text) == (True, True, None)
    assert parsed(BASE, ref_audio="QUJD", x_vector_only_mode=True).request.x_vector_only


def test_the_limit_of_a_text_is_that_of_the_resource_and_of_its_delivery():
    short = ApiConfig(max_text_length=10)
    assert refused(api=short, input="a" * 11).message == "input: has 11 characters; at most 10 are accepted"
    assert len(parsed(input="a" * 100_000).request.text) == 100_000
    assert (
        "32,768 are accepted for a whole file; send stream: true" in refused(input="a" * 32_769, stream=False).message
    )
    error = refused(DESIGN, input="a" * 4097, instructions="An old man.")
    assert (error.status, error.param) == (400, "input") and "another voice" in error.message


def test_the_lexicon_of_a_request_comes_before_that_of_the_resource():
    api = ApiConfig(lexicon={"nginx": "engine x", "sql": "sequel"})
    text = parsed(api=api, input="nginx, SQL", lexicon={"sql": "S Q L", "x": "y"}).request.text
    assert text == "engine x, S Q L"
    error = refused(api=ApiConfig(max_text_length=10), input="a a a", lexicon={"a": "four"})
    assert error.message == "lexicon: makes the text 14 characters long; at most 10 are accepted"
    error = refused(input="nginx!", lexicon={"nginx": "..."})
    assert (error.param, error.message) == ("lexicon", "lexicon: leaves nothing to say of the text; send words")


def test_texts_are_normalized_if_the_request_the_resource_or_the_checkpoint_says_so():
    trained = structs.replace(CUSTOM, normalize=True)
    assert parsed().request.languages == parsed(trained, normalize=False).request.languages == ()
    assert parsed(trained, ApiConfig(normalize=False)).request.languages == ()
    assert parsed(trained).request.languages == ("english", "chinese")
    assert parsed(api=ApiConfig(normalize=True), language="Chinese").request.languages == ("chinese",)
    assert parsed(normalize=True, language="english").request.languages == ("english",)
    assert describe("bundled").normalize


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input", "", "is empty"),
        ("input", " \n\t\u2003", "is empty"),
        ("input", "a" * 100_001, "100,001 characters; at most 100,000"),
        ("normalize", "maybe", '"maybe" is not accepted; send true or false'),
        ("lexicon", {"a": ""}, "send up to 100 words"),
        ("lexicon", {" ": "space"}, "send up to 100 words"),
        ("lexicon", {"a": "x\ny"}, "in one line"),
        ("lexicon", {"a" * 65: "a"}, "words or phrases of up to 64 characters in one line"),
        ("lexicon", {"a": "b" * 129}, "with respellings of up to 128"),
        ("lexicon", {str(number): "b" for number in range(101)}, "send up to 100 words"),
        *(
            ("input", text, "has no letter or digit; send words")
            for text in ("...", "***", "\U0001f600", "\u200b \u2014", "\x07", "![](https://a.b/c)")
        ),
        ("input", None, "input: is required"),
        ("input", ["Hello."], '["Hello."] is not accepted; send a text'),
        ("input", 42, "42 is not accepted; send a text"),
        ("voice", "alto", "accepted: vivian, ryan, alloy"),
        ("voice", "\u0000" * 500, "accepted"),
        ("voice", {"name": "ryan"}, "voice.id: is required"),
        ("voice", ["ryan"], '["ryan"] is not accepted; send a name or {"id": name}'),
        ("speaker_embedding", "1, 2", '"1, 2" is not accepted; send a list of numbers'),
        ("voice", {}, "voice.id: is required"),
        ("language", "klingon", "accepted: auto, english, chinese"),
        ("task_type", "clone", "'clone' is unknown; accepted: CustomVoice, VoiceDesign, Base"),
        ("response_format", "webm", "accepted: wav, mp3, flac, opus, aac, pcm, ulaw, alaw"),
        ("sample_rate", 7_999, "7999 is not accepted; send a whole number from 8,000 to 48,000"),
        ("sample_rate", 48_001, "from 8,000 to 48,000"),
        ("stream_format", "chunks", "accepted: audio, sse"),
        ("speed", 0.2, "0.2 is not accepted; send a number from 0.25 to 4"),
        ("speed", 4.5, "from 0.25 to 4"),
        ("seed", -2, "send a whole number from -1 to 9,223,372,036,854,775,807"),
        ("seed", 2**63, "send a whole number"),
        ("seed", True, "true is not accepted; send a whole number"),
        ("seed", 1.5, "1.5 is not accepted; send a whole number"),
        ("seed", "1_000", '"1_000" is not accepted; send a whole number'),
        ("speed", "1,5", '"1,5" is not accepted; send a number'),
        ("speed", "nan", "send a number"),
        ("max_new_tokens", 0, "send a whole number from 1"),
        ("max_new_tokens", 10**9, "at most 4096"),
        ("max_new_tokens", 10**30, "4096"),
        ("temperature", -0.1, "from 0 to 2"),
        ("temperature", "9e999", "from 0 to 2"),
        ("top_k", -2, "from -1 to 100,000"),
        ("top_p", 0, "a number above 0 to 1"),
        ("top_p", 1.1, "a number above 0 to 1"),
        ("repetition_penalty", 0, "from 0.5 to 5"),
        ("stream", 2, "2 is not accepted; send true or false"),
        ("instructions", "x" * 5000, "5,000 characters"),
        ("ref_text", "Hi.", "task_type Base"),
        ("x_vector_only_mode", True, "task_type Base"),
    ],
)
def test_invalid_value_is_a_400_that_names_its_field(field: str, value: Any, message: str):
    error = refused(**{field: value})
    assert error.status == 400
    assert error.param is not None
    assert error.param.split(".")[0] == field
    assert message in error.message
    assert field in error.message


@pytest.mark.parametrize(
    ("checkpoint", "fields", "status", "param", "message"),
    [
        (CUSTOM, {"sample_rate": 44_100, "response_format": "opus"}, 400, "sample_rate", "8,000, 12,000, 16,000, 24,0"),
        (CUSTOM, {"stream": False, "stream_format": "sse"}, 400, "stream", "leave one of them out"),
        (CUSTOM, {"model": "tts-3"}, 404, "model", "qwen3-tts"),
        (CUSTOM, {"task_type": "Base", "ref_audio": "QUJD"}, 422, "task_type", ""),
        (CUSTOM, {"task_type": "VoiceDesign"}, 422, "task_type", ""),
        (CUSTOM, {"ref_audio": "QUJD"}, 422, "ref_audio", ""),
        (CUSTOM, {"speaker_embedding": [1.0]}, 422, "speaker_embedding", ""),
        (CUSTOM, {"speaker_embedding": [1.0], "task_type": "CustomVoice"}, 400, "speaker_embedding", ""),
        (DESIGN, {}, 400, "instructions", ""),
        (DESIGN, {"instructions": "An old man.", "voice": "ryan"}, 400, "voice", ""),
        (BASE, {"task_type": "CustomVoice"}, 422, "task_type", ""),
        (BASE, {"voice": "anna"}, 400, "voice", "POST /v1/audio/voices"),
        (BASE, {"speaker_embedding": [1.0], "x_vector_only_mode": False}, 400, "x_vector_only_mode", ""),
        (BASE, {"speaker_embedding": [1.0], "ref_audio": "AAAA"}, 400, "ref_audio", ""),
        (BASE, {}, 400, "ref_audio", ""),
        (BASE, {"ref_audio": ""}, 400, "ref_audio", ""),
        (BASE, {"ref_audio": "QUJD"}, 400, "ref_text", ""),
        (BASE, {"ref_audio": "QUJD", "ref_text": " "}, 400, "ref_text", ""),
    ],
)
def test_fields_that_do_not_suit_each_other_or_the_checkpoint_are_refused(
    checkpoint: Description, fields: dict[str, Any], status: int, param: str, message: str
):
    error = refused(checkpoint, **fields)
    assert (error.status, error.param) == (status, param)
    assert message in error.message
    assert (error.code == "model_not_found") == (param == "model")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("inputt", "did you mean input?"),
        ("instruction", "did you mean instructions?"),
        ("\x1b[2J", "accepted: input"),
        ("a`b", "not a field"),
    ],
)
def test_unknown_field_is_refused_by_name(field: str, message: str):
    error = refused(**{field: 1})
    assert (error.status, error.code) == (400, "unknown_field")
    assert error.param == field.replace("\x1b", "\ufffd")
    assert message in error.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body is empty; send a JSON object"),
        ("input=Hello", "not JSON"),
        ("[1]", "expected `object`, got `array`"),
        ('"text"', "expected `object`, got `str`"),
        ('{"input": "a", "temperature": NaN}', "not JSON"),
        ('{"input": "a", "seed": ' + "9" * 5000 + "}", "seed"),
        ('{"input": "One.\nTwo.", "speed": 1e999}', "not JSON"),
        ('{"input": ' + "[" * 100_000, "nested too deeply"),
        ('{"input": "a", "extra_params": {"a": ' + "[" * 100_000, "nested too deeply"),
        (b'{"input": "\xff"}', "not JSON in UTF-8"),
        ('{"input": "a", "temperature": 1e999}', "temperature"),
        *(
            (
                f'{{"input": "a", "{name}": 1e999}}',
                f"{name}: 1e999 is not accepted; it has a number that is out of range",
            )
            for name in ("lexicon", "speaker_embedding", "extra_params", "user", "references")
        ),
        ("{}", "input: is required"),
    ],
)
def test_invalid_body_is_a_400(body: str | bytes, message: str):
    with pytest.raises(ApiError) as caught:
        parsed_json(body)
    assert caught.value.status == 400
    assert message in caught.value.message


def test_half_the_positions_are_reserved_for_the_prompt():
    small = msgspec.structs.replace(CUSTOM, max_positions=1024)
    assert parsed(small).request.max_frames == 512
    assert parsed(small, max_new_tokens=512).request.max_frames == 512
    assert refused(small, max_new_tokens=513).param == "max_new_tokens"


def test_voice_list_of_the_bundled_checkpoint():
    listed = Catalog(describe("bundled"), "syrinx-us").voice_list()
    assert listed["default"] == listed["names"][0] == "us"
    assert listed["languages"] == ["auto", "english", "german"]
    assert listed["voices"][0] == {"id": "us", "object": "voice", "name": "us"}
    assert {"id": "alloy", "object": "voice", "name": "alloy", "alias_of": "us"} in listed["voices"]
    assert parsed(describe("bundled"), voice="GB", language="English").request.voice == "gb"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(SpeechFields.__struct_fields__) | st.text(st.characters(exclude_categories=()), max_size=8)


@given(st.dictionaries(FIELDS, JSON, max_size=5), st.sampled_from([CUSTOM, DESIGN, BASE]))
def test_any_object_is_parsed_or_refused(body: dict[str, Any], checkpoint: Description):
    body.setdefault("input", "Hello.")
    try:
        accepted = parsed_json(json.dumps(body), checkpoint)
    except ApiError as error:
        assert error.status in (400, 404, 422)
        assert error_response(error).body.isascii()
    else:
        assert math.isfinite(accepted.request.sampling.temperature)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(body: bytes):
    with pytest.raises(ApiError) as caught:
        parsed_json(body)
    assert caught.value.status == 400


def test_only_language_is_the_default() -> None:
    english = msgspec.structs.replace(describe("bundled"), languages=("auto", "english"))
    assert parsed(english).request.language == "english"
    assert parsed(english, language="Auto").request.language == "auto"
