import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.messages import Sampling, TaskType
from syrinx_stages.gateway.body import parse_json
from syrinx_stages.gateway.encoders import Format
from syrinx_stages.gateway.errors import ApiError, error_response
from syrinx_stages.gateway.order import Delivery, Order, place
from syrinx_stages.gateway.schema import parse_fields
from syrinx_stages.gateway.voices import voice_list
from syrinx_stages.model.describe import Description, Speaker, describe

CUSTOM = Description(
    task_type=TaskType.CUSTOM_VOICE,
    size="1b7",
    speakers=(Speaker("vivian", None), Speaker("ryan", None)),
    languages=("auto", "english", "chinese"),
    sample_rate=24_000,
    supports_instructions=True,
    supports_reference=False,
    max_positions=32_768,
)
DESIGN = msgspec.structs.replace(CUSTOM, task_type=TaskType.VOICE_DESIGN, speakers=())
BASE = msgspec.structs.replace(
    CUSTOM, task_type=TaskType.BASE, speakers=(), supports_instructions=False, supports_reference=True
)


def order_json(body: str | bytes, checkpoint: Description = CUSTOM) -> Order:
    raw = body if isinstance(body, bytes) else body.encode()
    return place(parse_fields(parse_json(raw)), checkpoint, "qwen3-tts", "id", 1.5)


def order(checkpoint: Description = CUSTOM, **fields: Any) -> Order:
    return order_json(json.dumps({"input": "Hello.", **fields}), checkpoint)


def refusal(checkpoint: Description = CUSTOM, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        order(checkpoint, **fields)
    return caught.value


def test_defaults():
    plain = order()
    request = plain.request
    assert (plain.form, plain.delivery, plain.speed, plain.ref_audio) == (Format.WAV, Delivery.WHOLE, 1.0, None)
    assert (request.id, request.accepted_at, request.text) == ("id", 1.5, "Hello.")
    assert (request.task_type, request.voice, request.language) == (TaskType.CUSTOM_VOICE, "vivian", "auto")
    assert (request.sampling, request.max_frames, request.live) == (Sampling(), 2048, False)
    assert request.non_streaming_text
    assert not request.has_reference


def test_every_field_does_something():
    changed = {
        "voice": "Ryan",
        "instructions": "Whisper.",
        "response_format": "pcm",
        "language": "English",
        "non_streaming_mode": False,
        "max_new_tokens": 7,
        "seed": 5,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.4,
        "repetition_penalty": 1.2,
        "subtalker_temperature": 0,
        "subtalker_top_k": 9,
        "subtalker_top_p": 0.8,
    }
    request = order(**changed).request
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


def test_null_is_the_same_as_left_out():
    nulls = {name: None for name in SpeechFields.__struct_fields__ if name != "input"}
    assert order(seed=3, **{n: v for n, v in nulls.items() if n != "seed"}) == order(seed=3)


def test_a_seed_is_drawn_when_none_is_sent():
    seeds = {order().request.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("fields", "delivery"),
    [
        ({}, Delivery.WHOLE),
        ({"stream": False}, Delivery.WHOLE),
        ({"stream": True}, Delivery.AUDIO),
        ({"stream": True, "response_format": "pcm"}, Delivery.AUDIO),
        ({"stream_format": "audio"}, Delivery.AUDIO),
        ({"stream_format": "sse"}, Delivery.SSE),
        ({"stream": True, "stream_format": "sse"}, Delivery.SSE),
    ],
)
def test_how_streaming_is_asked_for(fields: dict[str, Any], delivery: Delivery):
    accepted = order(**fields)
    assert accepted.delivery is delivery
    assert accepted.request.live is (delivery is not Delivery.WHOLE)


@pytest.mark.parametrize("voice", ["Ryan", {"id": "ryan"}])
def test_a_voice_is_a_name_or_an_object_with_an_id(voice: Any):
    assert order(voice=voice).request.voice == "ryan"


def test_the_default_voice_has_a_name_for_clients_that_must_send_one():
    assert order(voice="default").request.voice == "vivian"
    assert order(DESIGN, voice="default", instructions="An old man.").request.voice is None


def test_a_clone_gets_its_text_token_by_token():
    request = order(BASE, ref_audio="QUJD", ref_text="What it says.").request
    assert (request.task_type, request.has_reference, request.reference_text) == (TaskType.BASE, True, "What it says.")
    assert not request.non_streaming_text
    assert order(BASE, ref_audio="QUJD", x_vector_only_mode=True).request.x_vector_only


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input", "", "is empty"),
        ("input", " \n\t\u2003", "is empty"),
        ("input", "a" * 100_000, "100,000 characters; at most 4,096"),
        ("input", "a\x00b", "character 2 is the control character U+0000"),
        ("input", "bell\x07", "U+0007"),
        ("input", "\x85next", "U+0085"),
        ("input", "\ud800", "half of a surrogate pair"),
        ("input", "ok \udfff", "character 4"),
        ("input", 3, "expected `str`, got `int`"),
        ("input", None, "expected `str`, got `null`"),
        ("input", ["a"], "expected `str`, got `array`"),
        ("voice", "alloy", "accepted: vivian, ryan"),
        ("voice", "\u0000" * 500, "accepted"),
        ("voice", {"name": "ryan"}, '{"id": name}'),
        ("voice", {}, "voice.id: is required"),
        ("voice", 1, "expected"),
        ("language", "klingon", "accepted: auto, english, chinese"),
        ("language", "", "accepted"),
        ("task_type", "customvoice", "accepted: CustomVoice, VoiceDesign, Base"),
        ("response_format", "aac", "no free encoder"),
        ("response_format", "ogg", "accepted: wav, mp3, flac, opus, pcm"),
        ("stream_format", "chunks", "accepted: audio, sse"),
        ("speed", 0.2, ">= 0.25"),
        ("speed", 4.5, "<= 4"),
        ("speed", "fast", "expected"),
        ("seed", -1, ">= 0"),
        ("seed", 2**63, "expected"),
        ("seed", 1.5, "expected"),
        ("seed", True, "expected"),
        ("max_new_tokens", 0, ">= 1"),
        ("max_new_tokens", 10**9, "at most 4096"),
        ("max_new_tokens", 10**30, "4096"),
        ("temperature", -0.1, ">= 0"),
        ("temperature", 3, "<= 2"),
        ("temperature", "hot", "expected"),
        ("top_k", -1, ">= 0"),
        ("top_p", 0, "> 0"),
        ("top_p", 1.1, "<= 1"),
        ("repetition_penalty", 0, ">= 0.5"),
        ("stream", "yes", "expected"),
        ("instructions", "x" * 5000, "5,000 characters"),
        ("ref_text", "Hi.", "task_type Base"),
        ("x_vector_only_mode", True, "task_type Base"),
    ],
)
def test_a_bad_value_is_a_400_that_names_its_field(field: str, value: Any, words: str):
    error = refusal(**{field: value})
    assert error.status == 400
    assert error.param is not None
    assert error.param.split(".")[0] == field
    assert words in error.message
    assert field in error.message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stream": True, "speed": 1.5}, "speed", "only 1.0"),
        ({"stream_format": "sse", "speed": 0.5}, "speed", "only 1.0"),
        ({"stream": True, "response_format": "mp3"}, "response_format", "wav, pcm"),
        ({"stream": False, "stream_format": "sse"}, "stream", "leave one of them out"),
    ],
)
def test_combinations_that_cannot_be_are_refused(fields: dict[str, Any], param: str, words: str):
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)
    assert words in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "ref_audio"),
        ({"ref_audio": ""}, "ref_audio"),
        ({"ref_audio": "QUJD"}, "ref_text"),
        ({"ref_audio": "QUJD", "ref_text": " "}, "ref_text"),
        ({"ref_audio": "QUJD", "ref_text": "Hi.", "x_vector_only_mode": True}, "ref_text"),
        ({"ref_audio": "QUJD", "x_vector_only_mode": True, "voice": "ryan"}, "voice"),
    ],
)
def test_base_needs_its_reference_and_only_that(fields: dict[str, Any], param: str):
    error = refusal(BASE, **fields)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("checkpoint", "fields", "param"),
    [
        (CUSTOM, {"task_type": "Base", "ref_audio": "QUJD"}, "task_type"),
        (CUSTOM, {"task_type": "VoiceDesign"}, "task_type"),
        (CUSTOM, {"ref_audio": "QUJD"}, "ref_audio"),
        (BASE, {"task_type": "CustomVoice"}, "task_type"),
        (BASE, {"ref_audio": "QUJD", "x_vector_only_mode": True, "instructions": "Sad."}, "instructions"),
    ],
)
def test_what_another_checkpoint_could_do_is_a_422(checkpoint: Description, fields: dict[str, Any], param: str):
    error = refusal(checkpoint, **fields)
    assert (error.status, error.param) == (422, param)


def test_voice_design_needs_a_description():
    assert refusal(DESIGN).param == "instructions"
    assert refusal(DESIGN, instructions="An old man.", voice="ryan").param == "voice"


def test_another_model_is_a_404():
    error = refusal(model="tts-1")
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "qwen3-tts" in error.message
    assert order(model="qwen3-tts")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("inputt", "did you mean input?"),
        ("instruct", "called instructions"),
        ("\x00", "accepted: input"),
        ("a`b", "not a field"),
    ],
)
def test_unknown_fields_are_refused_by_name(field: str, words: str):
    error = refusal(**{field: 1})
    assert (error.status, error.param, error.code) == (400, field, "unknown_field")
    assert words in error.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "not JSON"),
        ("input=Hello", "not JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"input": "a", "temperature": NaN}', "temperature: NaN is not a JSON number"),
        ('{"input": "a", "temperature": -Infinity}', "temperature: -Infinity"),
        ('{"input": "a", "input": "b"}', "input: stands twice"),
        ('{"input": "a", "seed": ' + "9" * 5000 + "}", "not JSON"),
        ('{"input": "a", "\\ud800": 1}', "half of a surrogate pair"),
        ('{"input": ' + "[" * 100_000, "nested too deeply"),
        (b'{"input": "\xff"}', "not UTF-8"),
        ('{"input": "a", "temperature": 1e999}', "temperature: expected"),
        ("{}", "input: is required"),
    ],
)
def test_bodies_that_are_not_a_request(body: str | bytes, words: str):
    with pytest.raises(ApiError) as caught:
        order_json(body)
    assert caught.value.status == 400
    assert words in caught.value.message


def test_an_error_is_ascii_json_whatever_it_quotes():
    answer = error_response(refusal(voice="Zoë \U0001f600"), "abc")
    assert answer.body.isascii()
    assert json.loads(answer.body)["error"]["param"] == "voice"
    assert answer.headers["x-request-id"] == "abc"


def test_half_the_positions_are_left_for_the_prompt():
    small = msgspec.structs.replace(CUSTOM, max_positions=1024)
    assert order(small).request.max_frames == 512
    assert refusal(small, max_new_tokens=513).param == "max_new_tokens"


def test_the_bundled_checkpoint_is_described_by_its_config():
    listed = voice_list(describe("bundled"))
    assert listed["default"] == listed["voices"][0] == "us"
    assert listed["languages"] == ["auto", "english", "german"]
    assert order(describe("bundled"), voice="GB", language="English").request.voice == "gb"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(SpeechFields.__struct_fields__) | st.text(st.characters(exclude_categories=()), max_size=8)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=5), st.sampled_from([CUSTOM, DESIGN, BASE]))
def test_any_object_is_an_order_or_a_clear_refusal(body: dict[str, Any], checkpoint: Description):
    body.setdefault("input", "Hello.")
    try:
        accepted = order_json(json.dumps(body), checkpoint)
    except ApiError as error:
        assert error.status in (400, 404, 422)
        assert error_response(error).body.isascii()
    else:
        assert math.isfinite(accepted.request.sampling.temperature)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_order_or_a_clear_refusal(body: bytes):
    with pytest.raises(ApiError) as caught:
        order_json(body)
    assert caught.value.status == 400


def test_a_checkpoint_with_one_language_speaks_it_unless_told_otherwise() -> None:
    english = msgspec.structs.replace(describe("bundled"), languages=("auto", "english"))
    assert order(english).request.language == "english"
    assert order(english, language="Auto").request.language == "auto"
