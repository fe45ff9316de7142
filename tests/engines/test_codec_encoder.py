"""Reference audio to codes against records of the official package (`tests/fixtures/official/make_codec.py`)."""

import shutil
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support import official_codec
from support.official_codec import OFFICIAL
from syrinx_stages.model.codec.encoder import CodecEncoder, load_codec_encoder
from syrinx_stages.model.config import CheckpointError, SpeechTokenizerConfig, read_speech_tokenizer_config

TOKENIZER = OFFICIAL / "speech_tokenizer"


@pytest.fixture(scope="module")
def config() -> SpeechTokenizerConfig:
    return read_speech_tokenizer_config(OFFICIAL)


def load(directory: Path, config: SpeechTokenizerConfig) -> CodecEncoder:
    return load_codec_encoder(directory, config, "cpu", torch.float32)


@pytest.fixture(scope="module")
def encoder(config: SpeechTokenizerConfig) -> CodecEncoder:
    return load(TOKENIZER, config)


@pytest.mark.parametrize("record", [0, 1])
def test_codes_equal_the_official_ones(encoder: CodecEncoder, record: int) -> None:
    """The first record is longer than the sliding window in the config, which the official package does not apply."""
    expected = official_codec.expected()
    codes = encoder.encode(expected[f"encoder.samples.{record}"] / 32768)
    assert codes.dtype == torch.long
    assert torch.equal(codes, expected[f"encoder.codes.{record}"])


@pytest.mark.parametrize(("count", "frames"), [(1, 1), (1920, 1), (1921, 2), (24_000, 13)])
def test_frame_is_1920_samples_and_the_last_one_is_padded(encoder: CodecEncoder, count: int, frames: int) -> None:
    assert encoder.encode(torch.zeros(count)).shape == (frames, 16)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("encoder.downsample.conv.weight", None, r"encoder\.\S*downsample\.conv\.weight is missing \(1 in total\)"),
        ("encoder.surplus.weight", torch.zeros(1), r"encoder\.surplus\.weight is unexpected"),
        (
            "encoder.downsample.conv.weight",
            torch.zeros(2, 3, 4),
            r"\S*downsample\.conv\.weight has a wrong shape, expected \[32, 32, 4\]",
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_wrong_tensor_is_named(
    tmp_path: Path, config: SpeechTokenizerConfig, name: str, tensor: Tensor | None, message: str
) -> None:
    tensors = load_file(TOKENIZER / "model.safetensors") | {name: tensor}
    save_file({name: each for name, each in tensors.items() if each is not None}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {message}"):
        load(tmp_path, config)


def test_config_without_encoder_is_refused(config: SpeechTokenizerConfig) -> None:
    with pytest.raises(CheckpointError, match="encoder_config: missing"):
        load(TOKENIZER, msgspec.structs.replace(config, encoder_config={}))


def test_invalid_mimi_config_is_refused(config: SpeechTokenizerConfig) -> None:
    wrong = config.encoder_config | {"codebook_size": "many"}
    with pytest.raises(CheckpointError, match=r"config\.json: encoder_config: "):
        load(TOKENIZER, msgspec.structs.replace(config, encoder_config=wrong))


def test_truncated_file_is_refused(tmp_path: Path, config: SpeechTokenizerConfig) -> None:
    shutil.copy(TOKENIZER / "model.safetensors", tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path, config)


def test_missing_transformers_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, config: SpeechTokenizerConfig
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # As Python marks a module whose import failed.
    with pytest.raises(ImportError, match=r"pip install -e '\.\[clone\]'"):
        load_codec_encoder(TOKENIZER, config, "cpu", torch.float32)
