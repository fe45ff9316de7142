"""Small random checkpoints in the official layout, complete for their type."""

import json
import shutil
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from support import talker_recipe as recipe
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from syrinx_stages.model.talker import Talker

SPEECH_TOKENIZER = Path(__file__).parents[1] / "fixtures" / "official" / "codec" / "speech_tokenizer"
CODES = 32
"""Entries of that speech tokenizer's codebooks."""


def write(directory: Path, kind: str, size: str = "1b7") -> Path:
    """Writes a checkpoint that generates noise, with the recorded speech tokenizer."""
    recipe.write_configs(directory, kind, size)
    shutil.copytree(SPEECH_TOKENIZER, directory / "speech_tokenizer", dirs_exist_ok=True)
    settings = recipe.config(kind, size)
    settings["talker_config"]["vocab_size"] = CODES + 1024
    settings["talker_config"]["code_predictor_config"]["vocab_size"] = CODES
    (directory / "config.json").write_text(json.dumps(settings))
    config = msgspec.convert(settings, ModelConfig)
    modules = {"talker": Talker(config.talker_config)}
    if kind == "base":
        modules["speaker_encoder"] = SpeakerEncoder(config.speaker_encoder_config)
    tensors = {
        name: torch.from_numpy(recipe.weight(name, tensor.shape))
        for prefix, module in modules.items()
        for name, tensor in checkpoint_tensors(module, prefix)
    }
    save_file(tensors, directory / "model.safetensors")
    return directory
