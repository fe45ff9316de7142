"""A checkpoint's `generation_config.json`: the defaults of its requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import talker_recipe as recipe
from syrinx_stages.contract.messages import Sampling
from syrinx_stages.gateway.fields.parse import parse_fields
from syrinx_stages.gateway.speech.request import ParsedRequest, parse_request
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.model.config import CheckpointError
from syrinx_stages.model.describe import Description, describe

OFFICIAL = {
    "do_sample": True, "temperature": 0.9, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.05,
    "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    recipe.write_configs(tmp_path / "model", "custom_voice", "1b7")
    return tmp_path / "model"


def described(directory: Path, **config: Any) -> Description:
    (directory / "generation_config.json").write_text(json.dumps(config))
    return describe(str(directory))


def parsed(checkpoint: Description, **fields: Any) -> ParsedRequest:
    body = json.dumps({"input": "Hello.", **fields}).encode()
    return parse_request(parse_fields(body).fields, Catalog(checkpoint, "qwen3-tts"), "id", 0.0)


def test_checkpoint_without_the_file_has_the_official_defaults(directory: Path) -> None:
    checkpoint = describe(str(directory))
    assert checkpoint.sampling == Sampling()
    assert checkpoint.max_new_tokens == 2048
    official = described(directory, **OFFICIAL)
    assert official.sampling == Sampling()
    assert parsed(official).request.max_frames == official.max_positions // 2, "less than the file's 8,192"


def test_every_field_is_a_default_of_requests(directory: Path) -> None:
    checkpoint = described(
        directory, temperature=0.5, top_k=7, top_p=0.8, repetition_penalty=1.3, max_new_tokens=100,
        subtalker_temperature=0.6, subtalker_top_k=9, subtalker_top_p=0.7,
    )  # fmt: skip
    request = parsed(checkpoint).request
    assert request.max_frames == 100
    assert request.sampling == Sampling(
        temperature=0.5, top_k=7, top_p=0.8, repetition_penalty=1.3,
        residual_temperature=0.6, residual_top_k=9, residual_top_p=0.7,
    )  # fmt: skip


def test_fields_of_a_request_win(directory: Path) -> None:
    checkpoint = described(directory, temperature=0.5, top_k=7, subtalker_top_k=9, max_new_tokens=100)
    request = parsed(checkpoint, temperature=0.7, subtalker_top_k=0, max_new_tokens=120).request
    assert request.max_frames == 120
    assert request.sampling == Sampling(temperature=0.7, top_k=7, residual_top_k=0)


def test_no_sampling_is_greedy_unless_a_request_sets_a_temperature(directory: Path) -> None:
    checkpoint = described(directory, do_sample=False, temperature=0.5, subtalker_dosample=False)
    assert parsed(checkpoint).request.sampling == Sampling(temperature=0, residual_temperature=0)
    sampling = parsed(checkpoint, temperature=0.5).request.sampling
    assert sampling == Sampling(temperature=0.5, residual_temperature=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_k", -2),
        ("top_p", 0),
        ("top_p", 1.1),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("do_sample", "yes"),
        ("subtalker_temperature", 3),
        ("subtalker_top_k", "all"),
        ("subtalker_top_p", 2),
        ("subtalker_dosample", 1),
    ],
)
def test_invalid_value_names_file_and_field(directory: Path, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{field}"):
        described(directory, **{field: value})
