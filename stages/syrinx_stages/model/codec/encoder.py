"""The encoder of the 12 Hz speech tokenizer, which is the Mimi of transformers: reference audio to codes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from syrinx_stages.model.config import CheckpointError

if TYPE_CHECKING:
    from syrinx_stages.model.config import SpeechTokenizerConfig

_PREFIX = "encoder."
_DECODER_MODULES = ("decoder", "decoder_transformer", "upsample")
"""Modules of Mimi that encoding does not use and speech tokenizers have no weights for."""


class CodecEncoder(nn.Module):
    """Mimi's encoder and quantizer."""

    def __init__(self, mimi: Any, quantizers: int, frame_samples: int) -> None:
        super().__init__()
        self.mimi = mimi
        self.quantizers, self.frame_samples = quantizers, frame_samples

    @torch.no_grad()
    def encode(self, samples: Tensor) -> Tensor:
        """Returns codes [ceil(N / frame_samples), quantizers] int64 of mono samples [N] in -1..1 at 24 kHz."""
        weight = next(self.mimi.parameters())
        encoded = self.mimi.encode(samples.to(weight)[None, None], num_quantizers=self.quantizers)
        codes: Tensor = encoded.audio_codes
        return codes[0, :, : -(-len(samples) // self.frame_samples)].T.contiguous()


def load_codec_encoder(
    directory: Path, config: SpeechTokenizerConfig, device: torch.device | str, dtype: torch.dtype
) -> CodecEncoder:
    """Loads the encoder from the tensors `encoder.*` of `directory`/model.safetensors.

    Raises ImportError if transformers is not installed, `CheckpointError` for an invalid config, a missing or
    unexpected tensor, a wrong shape or an unreadable file.
    """
    try:
        transformers: Any = import_module("transformers")
        logging: Any = import_module("transformers.utils.logging")
    except ImportError as error:
        message = "voice cloning needs transformers: run `pip install -e '.[clone]'` in the Syrinx checkout"
        raise ImportError(message) from error
    path = directory / "model.safetensors"
    if not config.encoder_config:
        raise CheckpointError(f"{directory / 'config.json'}: encoder_config: missing, but voice cloning needs it")
    tensors = _tensors(path)
    try:
        settings = transformers.MimiConfig(**config.encoder_config)
        # The official package (transformers 4.57) attends to the whole reference; newer versions apply the window.
        settings.sliding_window = settings.max_position_embeddings
        # Without warnings about the decoder's missing weights.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        mimi, report = transformers.MimiModel.from_pretrained(
            None, config=settings, state_dict=tensors, dtype=dtype, ignore_mismatched_sizes=True,
            output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # The exceptions for an invalid config differ between versions.
        raise CheckpointError(f"{directory / 'config.json'}: encoder_config: {error}") from error
    if mismatched := report["mismatched_keys"]:
        # Before transformers 5 these are names, since then names with shapes.
        name = min(entry if isinstance(entry, str) else entry[0] for entry in mismatched)
        expected = list(mimi.state_dict()[name].shape)
        raise CheckpointError(f"{path}: tensor encoder.{name} has a wrong shape, expected {expected}")
    if missing := [name for name in report["missing_keys"] if not name.startswith(_DECODER_MODULES)]:
        raise CheckpointError(f"{path}: tensor encoder.{min(missing)} is missing ({len(missing)} in total)")
    if unexpected := report["unexpected_keys"]:
        raise CheckpointError(f"{path}: tensor encoder.{min(unexpected)} is unexpected ({len(unexpected)} in total)")
    for name, _ in list(mimi.named_children()):
        if name in _DECODER_MODULES:
            setattr(mimi, name, None)
    encoder = CodecEncoder(mimi, config.encoder_valid_num_quantizers, config.encode_downsample_rate)
    return encoder.eval().requires_grad_(False).to(device)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Reads the tensors under `encoder.`, without that prefix."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(_PREFIX)]  # noqa: SIM118 (it is no mapping)
            return {name.removeprefix(_PREFIX): file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None
