"""Kept voices: what a client uploads, what is kept of it, and how it is described. Pure."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from syrinx_stages.gateway.errors import bad_request, quoted, unknown_field, unsupported
from syrinx_stages.gateway.speech.texts import check_text, without_controls

MAX_NAME = 64
"""Characters of a voice's name."""
FIELDS = ("name", "consent", "audio_sample", "speaker_embedding", "ref_text", "speaker_description", "type")
"""Fields of an upload: those of OpenAI's API and of vLLM-Omni's."""
_WANTED = {
    "name": "send the name of the voice",
    "consent": "say who agreed to the use of this voice, for example by the id of a recording",
}
"""What to send in required texts."""
_HINTS = {"prompt": "send an audio_sample; a Base checkpoint designs no voices"}
_SAMPLES = ("audio_sample", "ref_audio")
"""The names of the field with the sample: that of an upload, and that of a request."""


class Sample(Struct, frozen=True):
    """An uploaded file."""

    data: bytes
    media_type: str


class Upload(Struct, frozen=True, kw_only=True):
    """A valid upload; exactly one of `sample` and `embedding` is given."""

    sample_field: str = "audio_sample"
    """What the client calls the field of the sample."""
    name: str
    consent: str
    transcript: str | None
    description: str | None
    sample: Sample | None
    embedding: bytes | None
    """As in `PreparedVoice`."""


class KeptVoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a voice."""

    id: str
    owner: str
    """See `client.voice_owner`."""
    name: str
    """As the client spells it; unique among the owner's voices, ignoring case."""
    created_at: int
    """Unix time in seconds."""
    consent: str
    """Who agreed to the use of the voice, in the client's words: for example the id of a recording."""
    transcript: str | None = None
    """What the sample says. None: the voice is its speaker embedding alone."""
    description: str | None = None
    seconds: float | None = None
    """Duration of the sample; None for an embedding."""
    media_type: str | None = None
    file_size: int | None = None
    """Bytes of the uploaded file."""
    keeps_samples: bool = False
    """What is stored of the file are its samples, as the talker gets them."""

    @property
    def x_vector_only(self) -> bool:
        """Whether the voice is its speaker embedding alone."""
        return self.transcript is None


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(KeptVoice).decode


def new_voice_id() -> str:
    """Returns an id that no voice has had."""
    return f"voice_{secrets.token_hex(12)}"


def parse_upload(form: Sequence[tuple[str, str | Sample]], embedding_size: int) -> Upload:
    """Validates the fields of a form. Raises `ApiError` 400 that names the field, 422 for another `type`."""
    fields = _unique(form)
    texts = {name: _text(name, fields) for name in FIELDS if name != "audio_sample"}
    if (texts["type"] or "audio_sample").strip().lower() != "audio_sample":
        raise unsupported("type", f"{quoted(str(texts['type']))} is not supported; send audio_sample, or leave it out")
    if unknown := next((name for name in fields if name not in (*FIELDS, *_SAMPLES)), None):
        raise unknown_field(unknown, "a voice", FIELDS, _HINTS.get(unknown, ""))
    (sample_field, sample), embedding = _sample(fields), texts["speaker_embedding"]
    if (sample is None) is (embedding is None):
        if sample is None:
            raise bad_request(sample_field, "is required: a file with speech", "missing_field")
        raise bad_request(sample_field, "excludes speaker_embedding; leave one of them out")
    if embedding is not None and texts["ref_text"] is not None:
        raise bad_request("ref_text", "has no effect with speaker_embedding; leave one of them out")
    return Upload(
        name=_name(_required("name", texts)),
        consent=_required("consent", texts),
        transcript=texts["ref_text"],
        description=texts["speaker_description"],
        sample=sample,
        sample_field=sample_field,
        embedding=None if embedding is None else _parse_embedding(embedding, embedding_size),
    )


def _unique(form: Sequence[tuple[str, str | Sample]]) -> Mapping[str, str | Sample]:
    fields = dict(form)
    if len(fields) < len(form):
        twice = next(name for name in fields if sum(name == each for each, _ in form) > 1)
        raise bad_request(twice, "was sent more than once")
    return fields


def _sample(fields: Mapping[str, str | Sample]) -> tuple[str, Sample | None]:
    """Returns the name of the field with the sample, and the sample if there is one; an empty text counts as absent."""
    [name, *others] = [name for name in _SAMPLES if fields.get(name)] or _SAMPLES[:1]
    if others:
        raise bad_request(others[0], f"stands for {name}, which was sent, too; leave one of them out")
    sample = fields.get(name) or None
    if isinstance(sample, str):
        raise bad_request(name, "is text; send it as a file of the form")
    return name, sample


def _text(name: str, fields: Mapping[str, str | Sample]) -> str | None:
    """Returns a text of the form; an empty one counts as absent."""
    value = fields.get(name)
    if isinstance(value, Sample):
        raise bad_request(name, "is a file; send it as text")
    if value is None or not value.strip():
        return None
    if name != "speaker_embedding":
        check_text(name, value, advice=_WANTED.get(name, "send words"))
    # A name is compared with others, and refused if it has control characters.
    return value if name == "name" else without_controls(value)


def _required(name: str, texts: Mapping[str, str | None]) -> str:
    if (value := texts[name]) is None:
        raise bad_request(name, f"is required; {_WANTED[name]}", "missing_field")
    return value.strip()


def _name(name: str) -> str:
    if len(name) > MAX_NAME or not name.isprintable():
        raise bad_request("name", f"{quoted(name)} is not a name; send up to {MAX_NAME} printable characters")
    return name


def _parse_embedding(text: str, size: int) -> bytes:
    try:
        numbers = msgspec.json.decode(text, type=list[float])
    except msgspec.DecodeError as error:
        raise bad_request("speaker_embedding", f"is not a JSON array of numbers: {error}") from None
    return encode_embedding(numbers, size)


def encode_embedding(numbers: Sequence[float], size: int) -> bytes:
    """Returns a speaker embedding as in `PreparedVoice`. Raises 400 unless it has `size` finite numbers."""
    if len(numbers) != size:
        raise bad_request("speaker_embedding", f"has {len(numbers):,} numbers; this checkpoint's have {size:,}")
    with np.errstate(over="ignore"):
        embedding = np.asarray(numbers, dtype="<f4")
    if not embedding.any() or not np.isfinite(embedding).all():
        raise bad_request("speaker_embedding", "is all zero, or has numbers that are too large for 32 bits")
    return embedding.tobytes()


def describe_voice(voice: KeptVoice) -> dict[str, Any]:
    """Returns the voice as the API shows it: OpenAI's fields, and those of vLLM-Omni that it has."""
    optional = {
        "ref_text": voice.transcript,
        "speaker_description": voice.description,
        "seconds": voice.seconds,
        "mime_type": voice.media_type,
        "file_size": voice.file_size,
    }
    return {
        "id": voice.id,
        "object": "audio.voice",
        "name": voice.name,
        "created_at": voice.created_at,
        "type": "audio_sample" if voice.seconds is not None else "speaker_embedding",
        "consent": voice.consent,
        **{name: value for name, value in optional.items() if value is not None},
    }
