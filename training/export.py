"""Writes a checkpoint in the official layout, in float16, for `syrinx_stages.model.checkpoint` and `qwen-tts`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.talker import Talker

from .checkpoint_config import codec_settings, model_settings
from .config import CodecConfig, TrainingConfig
from .talker_forward import share_norms

MAX_BYTES = 25_000_000
"""Limit of the weights' size, because the bundled voice is part of the package."""
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


def tensors(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Returns a module's weights by their official names, in float16.

    Raises ValueError if a weight is out of float16's range.
    """
    found = {}
    for name, slot in checkpoint_tensors(module, prefix):
        # The checkpoint has one norm for all heads; the module has a row for each head.
        target = slot.target if slot.target.dim() == len(slot.shape) else slot.target[0]
        found[name] = target.detach().to("cpu", torch.float16).contiguous()
        if not bool(found[name].isfinite().all()):
            raise ValueError(f"{name}: a weight is out of float16's range")
    return found


def _write_json(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=1) + "\n")


def _write_tensors(directory: Path, found: dict[str, Tensor]) -> None:
    # safetensors.torch.save_file creates files with mode 0600, which a container with another user cannot read.
    (directory / "model.safetensors").write_bytes(save(found))


def export_codec(config: CodecConfig, decoder: CodecDecoder, directory: Path) -> None:
    """Writes `speech_tokenizer/`. Changes the decoder's codebooks to entries with a usage of 1."""
    with torch.no_grad():
        for quantizer in (decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest):
            for book in quantizer._books:
                book.embedding_sum.copy_(book.entries())
                book.cluster_usage.fill_(1)
    folder = directory / "speech_tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", codec_settings(config))
    _write_tensors(folder, tensors(decoder, "decoder"))


def export(config: TrainingConfig, talker: Talker, decoder: CodecDecoder, tokenizer: Path, directory: Path) -> int:
    """Writes a whole checkpoint and returns its weights' size in bytes. tokenizer: directory of the tokenizer's files.

    Raises ValueError if the weights exceed `MAX_BYTES`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    share_norms(talker)
    _write_json(directory / "config.json", model_settings(config, tokenizer))
    _write_tensors(directory, tensors(talker, "talker"))
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    export_codec(config.codec, decoder, directory)
    size = sum(path.stat().st_size for path in directory.rglob("*.safetensors"))
    if size > MAX_BYTES:
        raise ValueError(f"the checkpoint's weights have {size} bytes; the limit is {MAX_BYTES}")
    return size
