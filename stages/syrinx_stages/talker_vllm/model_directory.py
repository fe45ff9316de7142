"""Creates a model directory that vLLM can load: a Hugging Face `config.json` and links to the checkpoint's tensors."""

import json
from pathlib import Path
from typing import Any

from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import TalkerConfig

ARCHITECTURE = "SyrinxTalker"
_SAME_NAME = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps", "vocab_size", "max_position_embeddings",
    # With transformers before 5, vLLM reads it here instead of in rope_parameters.
    "rope_theta",
)  # fmt: skip


def hf_config(config: TalkerConfig) -> dict[str, Any]:
    """Returns the `config.json`: a Qwen3 with M-RoPE, so that the model chooses the positions."""
    half = config.head_size // 2
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        **{name: getattr(config, name) for name in _SAME_NAME},
        "head_dim": config.head_size,
        "eos_token_id": config.codec_eos_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            # All three axes have the same position, so the sections are arbitrary.
            "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
        },
    }


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Writes `config.json` and links the checkpoint's tensor files."""
    (directory / "config.json").write_text(json.dumps(hf_config(checkpoint.config.talker_config)))
    for pattern in ("*.safetensors", "model.safetensors.index.json"):
        for file in checkpoint.directory.glob(pattern):
            (directory / file.name).symlink_to(file.resolve())
