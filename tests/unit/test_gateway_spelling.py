"""What has one meaning is accepted, however a client spells it; what has none is refused by name."""

import json
from typing import Any

import msgspec
import pytest

from support.speech_requests import BASE, CUSTOM, DESIGN, parsed, parsed_json, refused
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.gateway.http.batch import parse_batch
from syrinx_stages.gateway.speech.request import Delivery
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.normalization.languages import languages
from syrinx_stages.normalization.plain import with_usual_spaces, without_marks

GERMAN = msgspec.structs.replace(CUSTOM, languages=("auto", *languages()))


@pytest.mark.parametrize(
    ("sent", "same"),
    [
        ({"response_format": " MP3\n"}, {"response_format": "mp3"}),
        ({"response_format": "OGG"}, {"response_format": "opus"}),
        ({"response_format": "ogg_opus"}, {"response_format": "opus"}),
        ({"response_format": "pcm16"}, {"response_format": "pcm"}),
        ({"response_format": "pcm_s16le"}, {"response_format": "pcm"}),
        ({"response_format": "g711_ulaw"}, {"response_format": "ulaw"}),
        ({"response_format": "mulaw"}, {"response_format": "ulaw"}),
        ({"response_format": "pcm_alaw"}, {"response_format": "alaw"}),
        ({"response_format": "audio/mpeg"}, {"response_format": "mp3"}),
        ({"response_format": "Audio/X-Wav"}, {"response_format": "wav"}),
        ({"stream_format": "SSE"}, {"stream_format": "sse"}),
        ({"task_type": "custom_voice"}, {"task_type": "CustomVoice"}),
        ({"stream": "true"}, {"stream": True}),
        ({"stream": " False"}, {"stream": False}),
        ({"stream": 0}, {"stream": False}),
        ({"runaway_guard": "off"}, {"runaway_guard": False}),
        ({"speed": "1.50"}, {"speed": 1.5}),
        ({"speed": " .5 "}, {"speed": 0.5}),
        ({"sample_rate": "16000"}, {"sample_rate": 16_000}),
        ({"sample_rate": 16_000.0}, {"sample_rate": 16_000}),
        ({"max_new_tokens": "5e2"}, {"max_new_tokens": 500}),
        ({"seed": "9223372036854775807"}, {"seed": 2**63 - 1}),
        ({"top_k": -1, "subtalker_top_k": "-1"}, {"top_k": 0, "subtalker_top_k": 0}),
        ({"lexicon": []}, {}),
        ({"voice": " Ryan\n"}, {"voice": "ryan"}),
        ({"voice": {"id": "RYAN "}}, {"voice": "ryan"}),
        ({"voice": {"id": "ryan", "object": "voice", "name": "ryan"}}, {"voice": "ryan"}),
        ({"model": "Qwen3-TTS "}, {"model": "qwen3-tts"}),
    ],
    ids=str,
)
def test_spellings_of_one_meaning(sent: dict[str, Any], same: dict[str, Any]) -> None:
    assert parsed(**{"seed": 3, **sent}) == parsed(**{"seed": 3, **same})


@pytest.mark.parametrize("nothing", [None, "", " \n"], ids=repr)
def test_a_blank_value_is_not_given(nothing: str | None) -> None:
    names = set(SpeechFields.__struct_fields__) - {"input", "seed"}
    assert parsed(seed=3, **dict.fromkeys(names, nothing)) == parsed(seed=3, speaker_embedding=[]) == parsed(seed=3)


def test_a_seed_of_minus_one_is_random() -> None:
    assert len({parsed(seed=seed).request.seed for seed in (-1, -1, "-1")}) == 3


@pytest.mark.parametrize(
    ("sent", "language"),
    [
        ("en", "english"), ("EN-us", "english"), ("en_GB", "english"), ("English", "english"), ("eng", "english"),
        ("DE", "german"), ("deu", "german"), ("ger", "german"), ("Deutsch", "german"), ("fr-CA", "french"),
        ("es-419", "spanish"), ("it", "italian"), ("pt-BR", "portuguese"), ("ru", "russian"), ("zh-Hans-CN", "chinese"),
        ("cmn", "chinese"), ("日本語", "japanese"), ("ko", "korean"), ("Auto", "auto"), ("", "auto"),
        ("English (US)", "english"), ("Portuguese (Brazil)", "portuguese"), ("en us", "english"),
    ],
)  # fmt: skip
def test_a_language_is_its_name_or_its_code(sent: str, language: str) -> None:
    assert parsed(GERMAN, language=sent).request.language == language


def test_a_language_that_the_checkpoint_does_not_speak_is_refused() -> None:
    for unknown in ("de", "German", "xx", "-"):
        expected = (
            f"language: {unknown!r} is unknown; accepted: auto, english, chinese, or their codes, such as en or en-US"
        )
        assert refused(language=unknown).message == expected


@pytest.mark.parametrize("name", ["gpt-4o-mini-tts-2025-12-15", "tts-1-1106", "tts-1-hd-1106", "GPT-4o-mini-TTS"])
def test_the_name_of_a_snapshot_is_an_alias(name: str) -> None:
    assert parsed(model=name, seed=3) == parsed(seed=3)
    assert refused(api=ApiConfig(openai_names=False), model=name).status == 404
    assert Catalog(CUSTOM, "m").model_card(name, 1)["alias_of"] == "m"


@pytest.mark.parametrize("name", ["tts-2-1106", "tts-1-11066", "gpt-4o-mini-tts-preview", "qwen3-tts-2025-12-15"])
def test_no_other_end_of_a_name_is_an_alias(name: str) -> None:
    assert refused(model=name).code == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"input": "One.\\n\\nTwo."}',
        '{"input": "One.\\n\\nTwo."}'.encode("utf-16"),
        b'{"input": "One.\n\nTwo."}',
        b'\xef\xbb\xbf{"input": "One.\n\nTwo.", "input": "One.\n\nTwo."}',
    ],
    ids=["byte-order mark", "UTF-16", "line breaks", "both"],
)
def test_json_as_editors_and_shells_write_it_is_read(body: bytes) -> None:
    assert parsed_json(body).request.text == "One.\n\nTwo."
    item = b'{"items": [' + body.decode("utf-16" if body[0] == 0xFF else "utf-8-sig").encode() + b"]}"
    assert parse_batch(b"\xef\xbb\xbf" + item)[0].fields.input == "One.\n\nTwo."


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\uDE00"], ids=["first", "second"])
def test_half_of_a_character_is_not_spoken(half: bytes) -> None:
    """JavaScript that cuts the text of an LLM into pieces may cut within an emoji."""
    request = parsed_json(b'{"input": "Hello ' + half + b'there \\ud83d\\ude00."}').request
    assert request.text == "Hello \ufffdthere \U0001f600.", "places are those of the client's text"
    assert without_marks(with_usual_spaces(request.text)) == "Hello there \U0001f600."


def test_control_characters_of_a_text_keep_their_places() -> None:
    """Events name characters of the `input`: what is spoken has a space for each."""
    for body in (b'{"input": "One.\x0cTwo\x00."}', json.dumps({"input": "One.\x0cTwo\x00."}).encode()):
        assert parsed_json(body).request.text == "One.\x0cTwo\x00."
    assert parsed(DESIGN, input="One.\x0cTwo\x00.", instructions="Old.").request.text == "One. Two ."


def test_control_characters_of_other_texts_are_removed() -> None:
    assert parsed(instructions="Whis\x00per\x0cslowly.\n").request.instructions == "Whisper slowly.\n"
    assert parsed(BASE, ref_audio="QUJD", ref_text="Hi\x07.").request.reference_text == "Hi."


@pytest.mark.parametrize("source", [{"ref_audio": "QUJD", "ref_text": "Hi."}, {"speaker_embedding": [1.0]}])
def test_a_reference_decides_over_a_voice_that_does_not_exist(source: dict[str, Any]) -> None:
    request = parsed(BASE, voice="vivian", **source)
    [name] = source.keys() - {"ref_text"}
    assert request.warnings == [f"voice is ignored: 'vivian' is not among your voices, and {name} is the voice"]
    for none in ("", " ", None, "alloy", "default"):
        assert parsed(BASE, voice=none, **source).warnings == []
    assert refused(BASE, voice="vivian").param == "voice"


@pytest.mark.parametrize("source", [{"ref_audio": "QUJD", "x_vector_only_mode": True}, {"speaker_embedding": [1.0]}])
def test_a_transcript_without_use_is_ignored_with_a_warning(source: dict[str, Any]) -> None:
    request = parsed(BASE, ref_text="Hi.", **source)
    assert request.warnings == ["ref_text is ignored: the voice is cloned from the speaker embedding alone"]
    assert request.request.reference_text is None


@pytest.mark.parametrize(
    ("fields", "raw", "events"),
    [
        ({"stream": True}, Delivery.AUDIO, Delivery.SSE),
        ({"stream": True, "response_format": "flac"}, Delivery.AUDIO, Delivery.SSE),
        ({"stream": True, "stream_format": "audio"}, Delivery.AUDIO, Delivery.AUDIO),
        ({"stream_format": "sse"}, Delivery.SSE, Delivery.SSE),
        ({}, Delivery.AUDIO, Delivery.AUDIO),
        ({"stream": False}, Delivery.WHOLE, Delivery.WHOLE),
    ],
    ids=str,
)
def test_a_stream_without_a_format_has_that_of_the_resource(
    fields: dict[str, Any], raw: Delivery, events: Delivery
) -> None:
    """Clients of OpenAI send no `stream`, and get raw bytes in either case."""
    assert parsed(**fields).delivery is raw
    assert parsed(api=ApiConfig(stream_format="SSE"), **fields).delivery is events
