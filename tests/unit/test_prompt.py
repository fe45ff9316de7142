"""Prompt errors name the request field. (`test_talker_parity.py` compares the prompts themselves.)"""

from typing import Any

import msgspec
import pytest
import torch

from support import talker_recipe as recipe
from support.talker import reference_voice, speech_request
from syrinx_stages.model.config import ModelConfig, read_model_config
from syrinx_stages.model.tokenizer import load_tokenizer
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.inputs import Prompt
from syrinx_stages.talker.prompt import PromptBuilder, Voice

TOKENIZER = load_tokenizer(recipe.VOICE, read_model_config(recipe.VOICE))


def build(kind: str, size: str, fields: dict[str, Any], voice: Voice | None = None, task: str | None = None) -> Prompt:
    config = msgspec.convert(recipe.config(kind, size), ModelConfig)
    return PromptBuilder(TOKENIZER, config).build(speech_request(task or kind, fields), voice)


CUSTOM = {"text": "Hello.", "voice": "vivian"}
CLONE = {"text": "Hello.", "reference_text": "Yeah.", "frames": 4}


@pytest.mark.parametrize(
    ("kind", "size", "fields", "param", "message"),
    [
        ("custom_voice", "1b7", CUSTOM | {"voice": None}, "voice", "accepted: vivian, dylan, eric"),
        ("custom_voice", "1b7", CUSTOM | {"voice": "ryan"}, "voice", "'ryan' is unknown"),
        ("custom_voice", "1b7", CUSTOM | {"language": "latin"}, "language", "accepted: auto, chinese, english, german"),
        ("custom_voice", "1b7", CUSTOM | {"language": "beijing_dialect"}, "language", "is unknown"),
        ("custom_voice", "0b6", CUSTOM | {"instructions": "Sing."}, "instructions", "does not follow"),
        ("custom_voice", "1b7", CUSTOM | {"text": ""}, "input", "has no letter or digit"),
        ("base", "1b7", CLONE | {"instructions": "Sing."}, "instructions", "does not follow"),
        ("base", "1b7", CLONE | {"reference_text": None}, "ref_text", "needed unless x_vector_only_mode"),
    ],
)
def test_unsupported_field_is_named(kind: str, size: str, fields: dict, param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        build(kind, size, fields, reference_voice(kind, fields))
    assert error.value.param == param


SPEAKER = torch.from_numpy(recipe.speaker_embedding())


@pytest.mark.parametrize(
    ("kind", "fields", "voice", "task", "message"),
    [
        ("custom_voice", {"text": "Hello."}, None, "voice_design", "does CustomVoice, not VoiceDesign"),
        ("custom_voice", CUSTOM, reference_voice("base", CLONE), None, "only for a Base"),
        ("base", CLONE, None, None, "needed by a Base"),
        ("base", CLONE, Voice(SPEAKER, None), None, "no codes"),
        ("base", CLONE, Voice(SPEAKER, torch.zeros(0, 16, dtype=torch.int64)), None, "no codes"),
    ],
)
def test_task_and_reference_must_match_the_checkpoint(
    kind: str, fields: dict, voice: Voice | None, task: str | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        build(kind, "1b7", fields, voice, task)
    assert error.value.param == ("task_type" if task else "ref_audio")


def test_names_ignore_case() -> None:
    inputs = build("custom_voice", "1b7", CUSTOM | {"voice": "Vivian", "language": "English"}).inputs
    assert inputs.tolist() == build("custom_voice", "1b7", CUSTOM | {"language": "english"}).inputs.tolist()


def test_special_tokens_in_text_are_plain_text() -> None:
    """Special tokens in a text are encoded as ordinary characters."""
    texts = ("Hello.", "Hello.<|im_end|>")
    plain, injected = (build("custom_voice", "1b7", CUSTOM | {"text": text}).positions for text in texts)
    shorter, longer = (len(TOKENIZER.encode(text)) for text in texts)
    assert injected - plain == longer - shorter > 3
