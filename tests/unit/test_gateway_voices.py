"""What an upload of a voice may contain, and how the API shows a voice."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.voices.voices import (
    KeptVoice,
    Sample,
    Upload,
    decode_record,
    describe_voice,
    encode_embedding,
    encode_record,
    parse_upload,
)

SAMPLE = Sample(b"RIFF", "audio/wav")
FORM = {"name": " Anna ", "consent": "cons_1", "audio_sample": SAMPLE}


def parse(**fields: str | Sample | None) -> Upload:
    form = {name: value for name, value in {**FORM, **fields}.items() if value is not None}
    return parse_upload(list(form.items()), 2)


def refusal(**fields: str | Sample | None) -> tuple[int, str | None, str]:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    return caught.value.status, caught.value.param, caught.value.code


def test_a_sample_with_or_without_its_transcript_or_an_embedding_makes_a_voice():
    upload = parse(ref_text="Okay.", speaker_description="warm", type="audio_sample")
    assert (upload.name, upload.consent, upload.transcript, upload.description) == ("Anna", "cons_1", "Okay.", "warm")
    assert (upload.sample, upload.embedding) == (SAMPLE, None)
    assert parse(ref_text=" ").transcript is None, "an empty field counts as absent"
    upload = parse(audio_sample=None, ref_audio=SAMPLE, ref_text="Okay.\x0c", type=" Audio_Sample")
    assert (upload.sample, upload.sample_field, upload.transcript) == (SAMPLE, "ref_audio", "Okay. ")
    upload = parse(audio_sample="", speaker_embedding="[0.5, -2]")
    assert upload == parse(audio_sample=None, speaker_embedding="[0.5, -2]")
    assert (upload.sample, upload.embedding) == (None, struct.pack("<2f", 0.5, -2))


INVALID = [
    ({"audio_sample": "text"}, "audio_sample"),
    ({"audio_sample": None, "ref_audio": "text"}, "ref_audio"),
    ({"ref_audio": SAMPLE}, "ref_audio"),
    ({"consent": SAMPLE}, "consent"),
    ({"name": "a" * 65}, "name"),
    ({"name": "a\tb"}, "name"),
    ({"speaker_embedding": "[1, 2]"}, "audio_sample"),
    ({"audio_sample": None, "speaker_embedding": "[1]"}, "speaker_embedding"),
    ({"audio_sample": None, "speaker_embedding": "[0, 0]"}, "speaker_embedding"),
    ({"audio_sample": None, "speaker_embedding": "[1, 1e39]"}, "speaker_embedding"),
    ({"audio_sample": None, "speaker_embedding": "[1, NaN]"}, "speaker_embedding"),
    ({"audio_sample": None, "speaker_embedding": "[1, 2]", "ref_text": "a"}, "ref_text"),
]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        *((fields, (400, param, "invalid_value")) for fields, param in INVALID),
        *(({name: None}, (400, name, "missing_field")) for name in ("name", "consent", "audio_sample")),
        ({"language": "en"}, (400, "language", "unknown_field")),
        ({"Name\u202e": "x"}, (400, "Name\ufffd", "unknown_field")),
        ({"type": "prompt", "prompt": "calm"}, (422, "type", "unsupported_by_model")),
    ],
)
def test_the_field_of_a_refused_upload_is_named(fields: dict[str, str | Sample | None], refused: tuple[int, str, str]):
    assert refusal(**fields) == refused


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("consent", "say who agreed to the use of this voice, for example by the id of a recording"),
        ("name", "send the name of the voice"),
        ("ref_text", "send words"),
    ],
)
def test_a_text_without_letters_is_refused_with_what_to_send(name: str, advice: str):
    with pytest.raises(ApiError) as caught:
        parse(**{name: "?!"})
    assert (caught.value.param, caught.value.message) == (name, f"{name}: has no letter or digit; {advice}")


def test_a_field_is_sent_once():
    with pytest.raises(ApiError, match="name: was sent more than once"):
        parse_upload([*FORM.items(), ("name", "Bert")], 2)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9).filter(any))
def test_an_embedding_is_kept_exactly(numbers: list[float]):
    assert struct.unpack(f"<{len(numbers)}f", encode_embedding(numbers, len(numbers))) == tuple(numbers)


def test_a_record_survives_encoding_and_shows_what_it_has():
    voice = KeptVoice(id="voice_1", owner="a", name="Anna", created_at=1, consent="cons_1")
    assert decode_record(encode_record(voice)) == voice
    assert describe_voice(voice) == {
        "id": "voice_1",
        "object": "audio.voice",
        "name": "Anna",
        "created_at": 1,
        "type": "speaker_embedding",
        "consent": "cons_1",
    }
