"""Minimal talkers with every type of layer; weights follow from their names, as in `talker_recipe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from support import talker_recipe as recipe
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.talker import Talker

CODES = 32
"""Number of values of a code."""
EOS = 162

_TALKER = {
    "vocab_size": CODES + 1024,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
}
_PREDICTOR = {
    "vocab_size": CODES,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def settings(**talker: Any) -> dict[str, Any]:
    """A `config.json`; `talker` overrides fields of `talker_config`."""
    settings = recipe.config("custom_voice", "1b7")
    settings["talker_config"] |= _TALKER | talker
    settings["talker_config"]["code_predictor_config"] |= _PREDICTOR
    return settings


def write(directory: Path, **changes: Any) -> Path:
    """Writes a CustomVoice checkpoint without a codec; `changes` as for `settings`."""
    recipe.write_configs(directory, "custom_voice", "1b7")
    given = settings(**changes)
    (directory / "config.json").write_text(json.dumps(given))
    codec = directory / "speech_tokenizer" / "config.json"
    codec.write_text(codec.read_text().replace(f'"codebook_size": {recipe.CODES}', f'"codebook_size": {CODES}'))
    tensors_by_name = checkpoint_tensors(Talker(msgspec.convert(given, ModelConfig).talker_config), "talker")
    tensors = {name: torch.from_numpy(recipe.weight(name, tensor.shape)) for name, tensor in tensors_by_name}
    save_file(tensors, directory / "model.safetensors")
    return directory


def text(positions: int) -> str:
    """A text whose prompt has this many positions, with one word per position beyond the fixed ones."""
    return " ".join(["a"] * (positions - 11))


def request(name: str, text: str = "Hello there.", **fields: Any) -> SpeechRequest:
    """A request for such a checkpoint, without top-k by default because there are few codes."""
    return msgspec.structs.replace(
        SpeechRequest(
            id=name,
            accepted_at=0.0,
            text=text,
            task_type=TaskType.CUSTOM_VOICE,
            voice="vivian",
            language="english",
            sampling=Sampling(top_k=0, residual_top_k=0),
        ),
        **fields,
    )
