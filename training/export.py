"""Writes a checkpoint in the official layout, with weights in float16."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, float16, nn, no_grad

from syrinx_stages.model.codec.decoder import Quantizer
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from syrinx_stages.model.talker import Talker
from training.checkpoint import TOKENIZER_FILES, codec_settings, model_settings
from training.codec import reference_encoder
from training.codec.model import Codec
from training.codec.reference_encoder import ReferenceEncoder
from training.config import TrainingConfig
from training.talker.forward import share_norms

MAX_BYTES = 25_000_000
"""Limit of the weights' size, because the bundled voice is part of the package."""


def _module_tensors(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Returns a module's tensors with their names in the checkpoint."""
    # The checkpoint has one norm for all heads; the module has a row for each head.
    return {
        name: slot.target if slot.target.dim() == len(slot.shape) else slot.target[0]
        for name, slot in checkpoint_tensors(module, prefix)
    }


def _write(directory: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Writes config and weights. Raises ValueError if a weight is out of float16's range."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        # Of its own: safetensors refuses tensors that share memory.
        tensors[name] = weight.detach().to("cpu", float16, copy=True).contiguous()
        if not bool(tensors[name].isfinite().all()):
            raise ValueError(f"{name}: a weight is out of float16's range")
    # safetensors.torch.save_file creates files with mode 0600, which a container with another user cannot read.
    (directory / "model.safetensors").write_bytes(save(tensors))


def _use_once(quantizer: Quantizer) -> None:
    """Changes the codebooks to entries with a usage of 1."""
    with no_grad():
        for part in (quantizer.rvq_first, quantizer.rvq_rest):
            for book in part._books:
                book.embedding_sum.copy_(book.entries())
                book.cluster_usage.fill_(1)


def _export_codec(config: TrainingConfig, codec: Codec, path: Path) -> None:
    """Writes `speech_tokenizer/`. Changes the decoder's codebooks to entries with a usage of 1."""
    encoder, decoder = codec
    _use_once(decoder.quantizer)
    settings, weights = codec_settings(config.codec), _module_tensors(decoder, "decoder")
    if config.cloning is not None and isinstance(encoder, ReferenceEncoder):
        settings["encoder_config"] = reference_encoder.settings(config.cloning, config.codec)
        tensors = reference_encoder.tensors(encoder, decoder.quantizer)
        weights |= {f"encoder.{name}": tensor for name, tensor in tensors.items()}
    _write(path, settings, weights)


def export(
    config: TrainingConfig,
    talker: Talker,
    codec: Codec,
    speaker_encoder: SpeakerEncoder | None,
    tokenizer: Path,
    directory: Path,
) -> int:
    """Writes a whole checkpoint and returns its weights' size in bytes.

    speaker_encoder: for voice cloning. tokenizer: directory of the tokenizer's files.
    Raises ValueError if the weights exceed `MAX_BYTES`.
    """
    share_norms(talker)
    weights = _module_tensors(talker, "talker")
    if speaker_encoder is not None:
        weights |= _module_tensors(speaker_encoder, "speaker_encoder")
    _write(directory, model_settings(config, tokenizer), weights)
    # The gateway then writes numbers as words, which the voice speaks better, and divides long texts into sentences.
    generation = {"normalize": True, "single_sentences": True}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    _export_codec(config, codec, directory / "speech_tokenizer")
    size = sum(path.stat().st_size for path in directory.rglob("*.safetensors"))
    if size > MAX_BYTES:
        raise ValueError(f"the checkpoint's weights have {size} bytes; the limit is {MAX_BYTES}")
    return size
