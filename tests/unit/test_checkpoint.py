"""Strict loading of weights: errors name the tensor."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support import talker_recipe as recipe
from support.talker import weights
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CheckpointError, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.layers import checkpoint_tensors

KIND = ("custom_voice", "1b7")
TENSORS = weights(*KIND)
QUERY = "talker.model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    recipe.write_configs(tmp_path / "model", *KIND)
    return tmp_path / "model"


def test_every_tensor_is_copied_to_its_target(directory: Path) -> None:
    save_file(TENSORS, directory / "model.safetensors")
    loaded = dict(checkpoint_tensors(Checkpoint(str(directory)).load_talker(), "talker"))
    assert loaded.keys() == TENSORS.keys()
    for name, slot in loaded.items():
        assert torch.equal(slot.target, TENSORS[name].expand_as(slot.target)), name


def test_names_are_the_official_ones() -> None:
    official = load_file(recipe.VOICE / "model.safetensors")
    loaded = dict(checkpoint_tensors(Checkpoint("bundled").load_talker(), "talker"))
    assert {name: slot.shape for name, slot in loaded.items()} == {k: tuple(v.shape) for k, v in official.items()}


def test_weights_are_cast_to_the_dtype(directory: Path) -> None:
    save_file(TENSORS, directory / "model.safetensors")
    talker = Checkpoint(str(directory), dtype=torch.bfloat16).load_talker()
    assert {parameter.dtype for parameter in talker.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


def test_sharded_checkpoint_is_loaded(directory: Path) -> None:
    names = sorted(TENSORS)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: TENSORS[name] for name in part}, directory / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = dict(checkpoint_tensors(Checkpoint(str(directory)).load_talker(), "talker"))
    assert torch.equal(loaded[QUERY].target, TENSORS[QUERY])


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", "model.bin", ""])
def test_index_with_other_paths_is_refused(directory: Path, file: str) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {QUERY: file}}))
    with pytest.raises(CheckpointError, match=f"weight_map.{QUERY}"):
        Checkpoint(str(directory)).load_talker()


def test_tensors_of_other_modules_are_ignored(directory: Path) -> None:
    save_file(TENSORS | {"speaker_encoder.fc.bias": torch.zeros(1)}, directory / "model.safetensors")
    Checkpoint(str(directory)).load_talker()


ANOTHER = "talker.model.layers.3.input_layernorm.weight"
OTHER_SHAPES = [QUERY, "talker.model.layers.0.self_attn.k_norm.weight", "talker.codec_head.weight"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({name: tensor for name, tensor in TENSORS.items() if name != QUERY}, f"{QUERY} [128, 64] is missing"),
        (TENSORS | {ANOTHER: torch.zeros(64)}, f"{ANOTHER} is unexpected"),
        *(
            (TENSORS | {name: torch.zeros(7, 7)}, f"{name} is [7, 7], expected {[*TENSORS[name].shape]}")
            for name in OTHER_SHAPES
        ),
    ],
    ids=["missing", "unexpected", *OTHER_SHAPES],
)
def test_wrong_tensor_is_named_with_its_shape(directory: Path, tensors: dict[str, torch.Tensor], message: str) -> None:
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(message)):
        Checkpoint(str(directory)).load_talker()


@pytest.mark.parametrize("content", [None, b"", b"not safetensors" * 10])
def test_unreadable_file_is_named(directory: Path, content: bytes | None) -> None:
    if content is not None:
        (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(str(directory)).load_talker()


def test_talker_and_codec_must_agree_on_the_codebook_size(directory: Path) -> None:
    path = directory / "speech_tokenizer" / "config.json"
    config = json.loads(path.read_text())
    config["decoder_config"]["codebook_size"] = 2048
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="codebook_size: 2048, but the talker has 64 codes"):
        Checkpoint(str(directory))


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Checkpoint(str(tmp_path / "nowhere"))


def test_codec_decoder_loads(tmp_path: Path) -> None:
    decoder = Checkpoint("bundled").load_codec_decoder()
    expected = load_file(recipe.VOICE / "speech_tokenizer" / "model.safetensors")
    name = "decoder.pre_conv.conv.weight"
    assert torch.equal(dict(checkpoint_tensors(decoder, "decoder"))[name].target, expected[name].float())


def test_the_bundled_checkpoint_belongs_to_the_family() -> None:
    config, tokenizer = read_model_config(recipe.VOICE), read_speech_tokenizer_config(recipe.VOICE)
    facts = (config.model_type, config.talker_config.num_code_groups, tokenizer.output_sample_rate)
    assert facts == (FAMILY.name, FAMILY.code_groups, FAMILY.sample_rate)
    assert tokenizer.decoder_config.samples_per_frame == FAMILY.samples_per_frame
    assert set(FAMILY.task_types) == set(TaskType)
