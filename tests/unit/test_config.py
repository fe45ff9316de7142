"""Validation of a checkpoint's configuration files, and the description read from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import talker_recipe as recipe
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.config import CheckpointError, ModelType, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.describe import describe


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    recipe.write_configs(tmp_path / "model", "custom_voice", "1b7")
    return tmp_path / "model"


def change(path: Path, field: str, value: Any) -> None:
    """Sets a dotted field of a JSON file; the value `...` removes it."""
    whole = json.loads(path.read_text())
    *parents, last = field.split(".")
    part = whole
    for name in parents:
        part = part[name]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    path.write_text(json.dumps(whole))


def test_reads_official_fields_and_ignores_unknown_ones(directory: Path) -> None:
    change(directory / "config.json", "talker_config.some_new_field", {"x": 1})
    config = read_model_config(directory)
    assert config.tts_model_type is ModelType.CUSTOM_VOICE
    assert config.talker_config.codebook_size == 64
    assert config.talker_config.code_predictor_config.hidden_size == 32
    assert config.talker_config.dialect("dylan") == "beijing_dialect"
    assert config.talker_config.dialect("vivian") is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tts_model_type", "singer", "tts_model_type 'singer' is unknown; accepted: base, custom_voice, voice_design"),
        ("tts_model_type", ..., "missing required field `tts_model_type`"),
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz", "tokenizer_type"),
        ("model_type", "qwen3_omni", "model_type"),
        ("talker_config", ..., "talker_config"),
        ("talker_config.hidden_size", ..., "hidden_size"),
        ("talker_config.hidden_size", "wide", r"\$\.talker_config\.hidden_size"),
        ("talker_config.num_hidden_layers", 0, r"\$\.talker_config\.num_hidden_layers"),
        ("talker_config.hidden_act", "gelu", "hidden_act"),
        ("talker_config.attention_bias", True, "attention_bias: true is not supported"),
        ("talker_config.use_sliding_window", True, "use_sliding_window: true is not supported"),
        ("talker_config.rope_scaling", {"rope_type": "yarn"}, "rope_scaling: rope_type 'yarn'"),
        ("talker_config.num_attention_heads", 3, "num_attention_heads: not a multiple"),
        ("talker_config.num_code_groups", 32, "num_code_groups: 32"),
        ("talker_config.vocab_size", 900, "vocab_size: 900"),
        ("talker_config.vocab_size", 2000, "vocab_size: 2000 less 1024"),
        ("talker_config.codec_eos_token_id", 5000, "codec_eos_token_id: id 5000"),
        ("talker_config.spk_id.vivian", 5000, r"spk_id\.vivian: id 5000"),
        ("talker_config.spk_is_dialect.dylan", "klingon", r"spk_is_dialect\.dylan: 'klingon'"),
        ("tts_pad_token_id", 4000, "tts_pad_token_id: 4000"),
    ],
)
def test_names_the_invalid_field(directory: Path, field: str, value: Any, message: str) -> None:
    path = directory / "config.json"
    change(path, field, value)
    with pytest.raises(CheckpointError, match=message) as error:
        read_model_config(directory)
    assert str(path) in str(error.value)


def test_the_speaker_embedding_must_have_the_width_of_the_talker(directory: Path) -> None:
    change(directory / "config.json", "tts_model_type", "base")
    change(directory / "config.json", "speaker_encoder_config.enc_dim", 192)
    with pytest.raises(CheckpointError, match="enc_dim: 192"):
        read_model_config(directory)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("output_sample_rate", 16_000, "output_sample_rate"),
        ("decode_upsample_rate", 960, "decode_upsample_rate"),
        ("decoder_config.upsample_rates", [8, 5, 4, 2], "their product 1280"),
        ("decoder_config.num_quantizers", 8, "num_quantizers"),
        ("decoder_config.codebook_size", ..., "codebook_size"),
        ("decoder_config.sliding_window", 1, "sliding_window"),
    ],
)
def test_names_the_invalid_field_of_the_speech_tokenizer(directory: Path, field: str, value: Any, message: str) -> None:
    change(directory / "speech_tokenizer" / "config.json", field, value)
    with pytest.raises(CheckpointError, match=message):
        read_speech_tokenizer_config(directory)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe"])
def test_names_the_path_of_an_unreadable_config(directory: Path, content: bytes | None) -> None:
    path = directory / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_model_config(directory)


def test_description_lists_task_voices_and_languages(directory: Path) -> None:
    described = describe(str(directory))
    assert described.task_type is TaskType.CUSTOM_VOICE
    assert described.voices == ("vivian", "dylan", "eric")
    assert described.languages == ("auto", "chinese", "english", "german")


@pytest.mark.parametrize(
    ("kind", "size", "instructions"),
    [
        ("custom_voice", "1b7", True),
        ("custom_voice", "0b6", False),
        # The official package refuses only 0b6.
        ("custom_voice", "4b", True),
        ("voice_design", "1b7", True),
        ("base", "1b7", False),
    ],
)
def test_support_for_instructions_depends_on_type_and_size(
    tmp_path: Path, kind: str, size: str, instructions: bool
) -> None:
    recipe.write_configs(tmp_path / "model", kind, size)
    described = describe(str(tmp_path / "model"))
    assert described.supports_instructions is instructions
