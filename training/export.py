"""Writes a checkpoint in the official layout, with weights in float16."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save
from torch import Tensor, float16, nn, no_grad

from syrinx_stages.model.codec.decoder import CodecDecoder, Quantizer
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from syrinx_stages.model.talker import Talker
from training.checkpoint import TOKENIZER_FILES, codec_settings, model_settings
from training.codec import reference_encoder
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


class References(NamedTuple):
    """The encoders of reference audio, for voice cloning."""

    speaker: SpeakerEncoder
    codec: ReferenceEncoder


def _use_once(quantizer: Quantizer) -> None:
    """Changes the codebooks to entries with a usage of 1."""
    with no_grad():
        for part in (quantizer.rvq_first, quantizer.rvq_rest):
            for book in part._books:
                book.embedding_sum.copy_(book.entries())
                book.cluster_usage.fill_(1)


def _export_codec(config: TrainingConfig, decoder: CodecDecoder, references: References | None, path: Path) -> None:
    """Writes `speech_tokenizer/`. Changes the decoder's codebooks to entries with a usage of 1."""
    _use_once(decoder.quantizer)
    settings, weights = codec_settings(config.codec), _module_tensors(decoder, "decoder")
    if references is not None and config.cloning is not None:
        settings["encoder_config"] = reference_encoder.settings(config.cloning, config.codec)
        encoder = reference_encoder.tensors(references.codec, decoder.quantizer)
        weights |= {f"encoder.{name}": tensor for name, tensor in encoder.items()}
    _write(path, settings, weights)


def export(
    config: TrainingConfig,
    talker: Talker,
    decoder: CodecDecoder,
    references: References | None,
    tokenizer: Path,
    directory: Path,
) -> int:
    """Writes a whole checkpoint and returns its weights' size in bytes. tokenizer: directory of the tokenizer's files.

    Raises ValueError if the weights exceed `MAX_BYTES`.
    """
    share_norms(talker)
    weights = _module_tensors(talker, "talker")
    if references is not None:
        weights |= _module_tensors(references.speaker, "speaker_encoder")
    _write(directory, model_settings(config, tokenizer), weights)
    # The gateway then writes numbers as words, which the voice speaks better, and divides long texts into sentences.
    generation = {"normalize": True, "single_sentences": True}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    _export_codec(config, decoder, references, directory / "speech_tokenizer")
    size = sum(path.stat().st_size for path in directory.rglob("*.safetensors"))
    if size > MAX_BYTES:
        raise ValueError(f"the checkpoint's weights have {size} bytes; the limit is {MAX_BYTES}")
    return size
