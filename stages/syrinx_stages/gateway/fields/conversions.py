"""What values of other APIs' fields mean in this one. Raises `ApiError` 400 for values without a meaning. Pure."""

import re
from collections.abc import Callable
from typing import Any

from syrinx_stages.gateway.errors import bad_request, quoted
from syrinx_stages.gateway.fields.values import truth

Meant = tuple[dict[str, Any], list[str]]
"""The fields of this API that a value means, and the parts of it that have no effect."""
BIT_RATE = "each format has its own bit rate"
_KOKORO_LANGUAGES = {"a": "en", "b": "en", "e": "es", "f": "fr", "i": "it", "j": "ja", "p": "pt", "z": "zh"}
"""`lang_code` of Kokoro's pipelines."""
_OUTPUT_FORMAT = re.compile(r"(.*?)(?:_(\d+))?(?:_(\d+))?", re.ASCII | re.DOTALL)


def language(code: Any) -> Meant:
    """The form of Kokoro-FastAPI: a letter, or a code."""
    return {"language": _KOKORO_LANGUAGES.get(code.strip().lower(), code) if isinstance(code, str) else code}, []


def normalization(options: Any) -> Meant:
    """The form of Kokoro-FastAPI: an object with a boolean for each kind."""
    if not isinstance(options, dict):
        raise bad_request("normalization_options", "is no object; send normalize: true or false instead")
    normalize = {name: value for name, value in options.items() if name == "normalize"}
    # Their defaults: everything is normalized, units excepted.
    changed = [name for name, value in options.items() if value is (name == "unit_normalization")]
    others = [name for name in changed if name != "normalize"]
    return normalize, [f"{quoted(name)} is ignored: normalize covers everything" for name in others]


def text_normalization(mode: Any) -> Meant:
    """The form of ElevenLabs: on, off or auto."""
    return ({} if str(mode).lower() == "auto" else {"normalize": mode}), []


def speed_of(field: str) -> Callable[[Any], Meant]:
    """The form of ElevenLabs and Fish Audio: an object of which only `speed` has an effect."""

    def convert(settings: Any) -> Meant:
        if not isinstance(settings, dict):
            raise bad_request(field, "is no object; send speed instead")
        others = [name for name, value in settings.items() if name != "speed" and value is not None]
        speed = {"speed": settings["speed"]} if "speed" in settings else {}
        return speed, [f"{quoted(name)} is ignored: the model has no such setting" for name in others]

    return convert


def output_format(value: Any) -> Meant:
    """The form of ElevenLabs: codec_rate_bitrate."""
    if not isinstance(value, str):
        raise bad_request("output_format", "is no text; send response_format and sample_rate instead")
    found = _OUTPUT_FORMAT.fullmatch(value.strip())
    assert found is not None
    codec, rate, bit_rate = found.groups()
    ignored = [f"the bit rate {quoted(bit_rate)} is ignored: {BIT_RATE}"] if bit_rate else []
    return {"response_format": codec} | ({"sample_rate": rate} if rate else {}), ignored


def references(references: Any) -> Meant:
    """The form of SGLang-Omni, Higgs Audio and Fish: a list of objects with audio and text."""
    field = "references"
    if not isinstance(references, list) or not all(isinstance(each, dict) for each in references):
        raise bad_request(field, "is not a list of objects; send ref_audio and ref_text, or one {audio, text}")
    if len(references) > 1:
        raise bad_request(field, f"has {len(references)} references; a voice is cloned from one")
    [given] = references
    if given.get("vq_codes"):
        raise bad_request(f"{field}[0].vq_codes", "is not accepted; send the audio")
    audio = [given[name] for name in ("audio", "audio_path", "ref_audio", "data") if given.get(name)]
    if len(audio) != 1:
        raise bad_request(f"{field}[0].audio", "is required: base64 audio, a data: URI or a URL, once")
    return {"ref_audio": audio[0], "ref_text": given.get("text")}, []


def greedy(field: str, temperature: str) -> Callable[[Any], Meant]:
    """The form of qwen-tts: false means that a temperature is 0."""

    def convert(sampled: Any) -> Meant:
        value = truth(sampled.strip().lower() if isinstance(sampled, str) else sampled)
        if not isinstance(value, bool):
            raise bad_request(field, "is neither true nor false; send one of them")
        return {} if value else {temperature: 0}, []

    return convert
