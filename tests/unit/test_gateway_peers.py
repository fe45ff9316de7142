"""What becomes of the fields of other APIs: each has its effect, is named in a warning, or is refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.speech_requests import BASE, CUSTOM, parsed, parsed_json, refused
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.fields.parse import parse_fields
from syrinx_stages.gateway.fields.peers import CLIENTS, FOREIGN, PEER_FIELDS, page
from syrinx_stages.gateway.http.batch import parse_batch
from syrinx_stages.gateway.socket.stream_messages import parse_config

OWN = {*FAMILY.request_fields.__struct_fields__, "extra_params"}
IGNORED = [name for name, field in FOREIGN.items() if field.ignored]
REFUSED = [name for name, field in FOREIGN.items() if field.refused]


def test_the_page_shows_the_table() -> None:
    file = Path(__file__).parents[2] / "docs/other-apis.md"
    assert file.read_text() == page(), "run `make generate`"


def test_each_field_is_of_this_api_or_has_one_outcome() -> None:
    assert len({each.name for each in PEER_FIELDS}) == len(PEER_FIELDS)
    for each in PEER_FIELDS:
        outcomes = [each.convert is not None, bool(each.ignored), bool(each.refused), each.name in OWN]
        assert outcomes.count(True) == 1, each.name
        assert each.clients and set(each.clients) <= set(CLIENTS), each.name
        assert (each.convert is not None) == bool(each.means), each.name


@pytest.mark.parametrize(
    ("sent", "same"),
    [
        ({"speaker": "ryan"}, {"voice": "ryan"}),
        ({"speaker": "ryan", "voice": "ryan"}, {"voice": "ryan"}),
        ({"voice_id": "Ryan"}, {"voice": "ryan"}),
        ({"reference_id": "ryan"}, {"voice": "ryan"}),
        ({"model_id": "tts-1"}, {"model": "tts-1"}),
        ({"instruct": "Whisper."}, {"instructions": "Whisper."}),
        ({"language_code": "zh"}, {"language": "chinese"}),
        ({"lang_code": "a"}, {"language": "english"}),
        ({"lang_code": "zh"}, {"language": "chinese"}),
        ({"format": "MP3"}, {"response_format": "mp3"}),
        ({"output_format": "pcm_16000"}, {"response_format": "pcm", "sample_rate": 16_000}),
        ({"output_format": "wav"}, {"response_format": "wav"}),
        ({"output_format": "pcm_s16le"}, {"response_format": "pcm"}),
        ({"max_tokens": "100"}, {"max_new_tokens": 100}),
        ({"do_sample": False}, {"temperature": 0}),
        ({"do_sample": "false", "temperature": 0.0}, {"temperature": 0}),
        ({"do_sample": True}, {}),
        ({"subtalker_dosample": False}, {"subtalker_temperature": 0}),
        ({"normalization_options": {"normalize": True, "url_normalization": True}}, {"normalize": True}),
        ({"normalization_options": {}}, {}),
        ({"apply_text_normalization": "on"}, {"normalize": True}),
        ({"apply_text_normalization": "auto"}, {}),
        ({"voice_settings": {"speed": 1.2, "stability": None}}, {"speed": 1.2}),
        ({"prosody": {"speed": "0.8"}}, {"speed": 0.8}),
        ({"extra_params": {"speed": "2"}}, {"speed": 2}),
        ({"extra_params": {"speaker": "Ryan", "max_tokens": 9}}, {"voice": "ryan", "max_new_tokens": 9}),
        ({"extra_params": {"speaker": "ryan", "text": "No."}, "voice": "vivian"}, {"voice": "vivian"}),
        ({"extra_params": []}, {}),
        ({"extra_params": " "}, {}),
        ({"input": None, "text": "Hello."}, {}),
        ({"do_sample": " ", "references": " ", "text": " "}, {}),
    ],
    ids=str,
)
def test_a_field_that_stands_for_another_has_its_effect(sent: dict[str, Any], same: dict[str, Any]) -> None:
    assert parsed(seed=3, **sent) == parsed(seed=3, **same)


def test_the_text_may_be_called_text() -> None:
    assert parsed_json('{"text": "Hello.", "seed": 3}') == parsed(seed=3)
    assert parse_batch(b'{"items": [{"text": "Hello."}]}')[0].fields.input == "Hello."


@pytest.mark.parametrize("name", ["audio", "audio_path", "ref_audio", "data"])
def test_references_are_a_reference_and_its_transcript(name: str) -> None:
    sent = {"references": [{name: "QUJD", "text": "Hi.", "media_type": "audio/wav"}]}
    fields = parse_fields(json.dumps({"input": "Hello.", **sent}).encode()).fields
    assert (fields.ref_audio, fields.ref_text) == ("QUJD", "Hi.")
    assert parsed(BASE, seed=3, **sent) == parsed(BASE, seed=3, ref_audio="QUJD", ref_text="Hi.")
    large = {"references": [{name: "QUJD" * 2**19, "text": "Hi."}]}
    assert parse_fields(json.dumps({"input": "Hello.", **large}).encode()).fields.ref_audio == "QUJD" * 2**19


@pytest.mark.parametrize(
    ("sent", "param", "message"),
    [
        ({"speaker": "ryan", "voice": "vivian"}, "speaker", "stands for voice, which has another value"),
        ({"do_sample": False, "temperature": 0.5}, "do_sample", "stands for temperature, which has another value"),
        (
            {"max_tokens": "many"},
            "max_tokens",
            'stands for max_new_tokens: "many" is not accepted; send a whole number',
        ),
        ({"references": {"audio": "QUJD"}}, "references", "is not a list of objects"),
        ({"references": [{"audio": "QUJD"}] * 2}, "references", "has 2 references; a voice is cloned from one"),
        ({"references": [{"text": "Hi."}]}, "references[0].audio", "is required: base64 audio"),
        ({"references": [{"vq_codes": [1]}]}, "references[0].vq_codes", "send the audio"),
        ({"output_format": {"container": "wav"}}, "output_format", "is no text; send response_format and sample_rate"),
        ({"extra_params": {"word_timestamps": True}}, "word_timestamps", "is not available"),
        ({"extra_params": "{}"}, "extra_params", "is no object"),
        ({"voice_settings": 1}, "voice_settings", "is no object; send speed instead"),
        ({"apply_text_normalization": "some"}, "apply_text_normalization", "send true or false"),
        ({"do_sample": "some"}, "do_sample", "do_sample: is neither true nor false; send one of them"),
        ({"speaker": {"name": "bob"}}, "speaker", "speaker: stands for voice.id: is required"),
        ({"speaker": "bob"}, "speaker", "speaker: stands for voice: 'bob' is unknown; accepted: vivian"),
        ({"extra_params": {"voice_id": "bob"}}, "voice_id", "voice_id: stands for voice: 'bob' is unknown"),
        ({"lang_code": "x"}, "lang_code", "lang_code: stands for language: 'x' is unknown"),
        ({"output_format": "mp3_12345"}, "output_format", "stands for sample_rate: 12,345 is not a sample rate of mp3"),
        ({"max_tokens": 10**6}, "max_tokens", "stands for max_new_tokens: 1000000 is too large"),
        ({"instruct": "?!"}, "instruct", "stands for instructions: has no letter or digit"),
        ({"references": [{"audio": "QUJD"}], "task_type": "CustomVoice"}, "references", "stands for ref_audio: is for"),
        ({"speaker": "bob", "voice": "bob"}, "voice", "voice: 'bob' is unknown"),
    ],
)
def test_a_value_without_a_meaning_is_refused(sent: dict[str, Any], param: str, message: str) -> None:
    error = refused(**sent)
    assert (error.status, error.param) == (400, param)
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, ", which is required"),
        ("", ": is empty; send the text"),
        (" ", ": is empty; send the text"),
        ("?!", ": has no letter or digit; send words"),
    ],
)
def test_an_unusable_text_is_named_as_it_was_sent(text: str | None, problem: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed_json(json.dumps({"text": text}))
    assert caught.value.message == f"text: stands for input{problem}"
    assert caught.value.param == "text"


def test_a_part_of_a_reference_that_is_missing_is_named_as_its_whole() -> None:
    reference = [{"audio": "QUJD"}]
    assert refused(BASE, references=reference).message.startswith("references: stands for ref_text: is required")
    error = refused(BASE, references=reference, extra_params={"ref_text": "?!"})
    assert error.message == "ref_text: has no letter or digit; send words"


def test_a_name_that_all_items_share_is_that_of_the_batch_unless_an_item_has_its_own() -> None:
    items = [{"text": "a"}, {"input": "b", "voice_id": "x"}]
    found = parse_batch(json.dumps({"items": items, "speaker": "x"}).encode())
    assert [each.names for each in found] == [{"input": "text", "voice": "speaker"}, {"voice": "voice_id"}]


@pytest.mark.parametrize("name", IGNORED)
def test_a_field_without_effect_is_named_in_a_warning(name: str) -> None:
    expected = [f"{name} is ignored: {FOREIGN[name].ignored}"]
    assert parsed(**{name: "x"}).warnings == expected
    assert parse_batch(json.dumps({"items": [{"input": "a", name: "x"}]}).encode())[0].warnings == expected
    assert parse_config(json.dumps({"type": "session.config", name: "x"})).sent.warnings == expected


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_cannot_be_served_is_refused_with_the_reason(name: str) -> None:
    error = refused(**{name: True})
    assert (error.status, error.param, error.code) == (400, name, "unknown_field")
    assert error.message == f"{name}: is not available: {FOREIGN[name].refused}"


@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}, " ", "False", "0.0", "off"], ids=repr)
def test_a_value_that_asks_for_nothing_is_accepted_without_a_word(nothing: object) -> None:
    assert parsed(seed=3, **dict.fromkeys((*IGNORED, *REFUSED), nothing)) == parsed(seed=3)
    for one in (1, 1.0, "1.0"):
        assert parsed(seed=3, volume_multiplier=one, pitch=one) == parsed(seed=3)


def test_parts_without_effect_are_named_in_a_warning() -> None:
    sent = {"voice_settings": {"stability": 0.5}, "output_format": "mp3_44100_128"}
    sent |= {"normalization_options": {"normalize": True, "url_normalization": False}}
    assert parsed(CUSTOM, **sent).warnings == [
        "voice_settings: 'stability' is ignored: the model has no such setting",
        "output_format: the bit rate '128' is ignored: each format has its own bit rate",
        "normalization_options: 'url_normalization' is ignored: normalize covers everything",
    ]
    assert parsed(extra_params={"gender": "female"}).warnings == ["gender is ignored: the voice has one"]
    assert len(parsed(voice_settings={f"name{i}": i for i in range(100)}).warnings) == 8
