"""Trains the codec (encoder, codebooks and decoder), fine-tunes its decoder, and encodes audio with it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from training.codec import reference_encoder
from training.codec.loss import Audio, CodecLoss
from training.codec.model import Codec, build, quantize
from training.config import TrainingConfig
from training.run import Log, ShouldStop, TrainingRun

_DECODER_STATE = "decoder.pt"
_ENCODE_BATCH = 128
"""Utterances encoded in one batch."""


def train(
    config: TrainingConfig,
    audio: Audio,
    directory: Path,
    device: torch.device,
    should_stop: ShouldStop,
    log: Log,
    *,
    decoder_only: bool = False,
) -> bool:
    """Trains until all steps are done or `should_stop` returns True; returns True if all steps are done.

    The state is kept in `directory`. decoder_only: trains the decoder of the trained codec further, with encoder and
    codebooks frozen, so that a trained talker stays valid.
    """
    codec, run = _resume(config, directory, device, decoder_only=decoder_only)
    codes = encode(_served(config, directory, codec), audio.samples, audio.frames()) if decoder_only else None
    # All steps have the same shapes, so cuDNN's benchmark mode pays off. (`flags` disables cuDNN by default.)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        return run.train(CodecLoss(config, codec, audio, codes), config, should_stop, log)


def is_finetuned(directory: Path, steps: int) -> bool:
    """Returns True if the decoder has been fine-tuned for `steps` steps."""
    path = directory / _DECODER_STATE
    return path.exists() and bool(torch.load(path, map_location="cpu", weights_only=True)["step"] >= steps)


def load(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """Returns the frozen codec with its decoder in the current state of fine-tuning.

    For voice cloning its encoder is the service's; raises ValueError if that is not trained.
    """
    return _served(config, directory, _freeze(_resume(config, directory, device, decoder_only=True)[0]))


def load_teacher(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """Returns the frozen codec with the encoder that it was trained with."""
    return _freeze(_resume(config, directory, device, decoder_only=False)[0])


def _served(config: TrainingConfig, directory: Path, codec: Codec) -> Codec:
    """Replaces the encoder for voice cloning, so that the talker learns the codes that the service gives references."""
    if config.cloning is None:
        return codec
    device = next(codec.decoder.parameters()).device
    return codec._replace(encoder=reference_encoder.load(config, directory, device))


def _resume(
    config: TrainingConfig, directory: Path, device: torch.device, *, decoder_only: bool
) -> tuple[Codec, TrainingRun]:
    settings, codec = config.codec, build(config.codec, device)
    run = _new_run(directory / "codec.pt", codec._asdict(), settings.learning_rate, settings.steps)
    if decoder_only:
        for name, weight in _freeze(codec).decoder.named_parameters():
            weight.requires_grad_(not name.startswith("quantizer."))
        modules, rate = {"decoder": codec.decoder}, settings.finetune_learning_rate
        run = _new_run(directory / _DECODER_STATE, modules, rate, settings.finetune_steps)
    return codec, run


def _new_run(path: Path, modules: Mapping[str, nn.Module], learning_rate: float, steps: int) -> TrainingRun:
    return TrainingRun(
        path,
        modules,
        [weight for module in modules.values() for weight in module.parameters() if weight.requires_grad],
        peak_learning_rate=learning_rate,
        steps=steps,
        betas=(0.8, 0.99),
        weight_decay=1e-3,
    )


def _freeze(codec: Codec) -> Codec:
    for module in codec:
        module.eval().requires_grad_(False)
    return codec


@torch.no_grad()
def encode(codec: Codec, audio: Tensor, frames: npt.NDArray[np.integer]) -> Tensor:
    """Encodes utterances independently of each other: returns codes [sum of frames, 16], uint8 or int16.

    audio: concatenated int16 samples; frames: [utterances] lengths in frames. Utterances are batched by length and
    padded with silence, which does not change the codes because the encoder is causal.
    """
    device, starts = audio.device, np.cumsum(frames) - frames
    codes = torch.zeros(
        len(audio) // FAMILY.samples_per_frame,
        codec.decoder.config.num_quantizers,
        dtype=torch.uint8 if codec.decoder.config.codebook_size <= 256 else torch.int16,
        device=device,
    )
    by_length = np.argsort(frames, kind="stable")
    for batch in np.array_split(by_length, -(-len(by_length) // _ENCODE_BATCH)):
        first = torch.from_numpy(starts[batch]).to(device)[:, None]
        count = torch.from_numpy(frames[batch]).to(device)[:, None]
        frame = torch.arange(int(frames[batch].max()), device=device)
        sample = torch.arange(len(frame) * FAMILY.samples_per_frame, device=device)
        is_utterance = sample < count * FAMILY.samples_per_frame
        index = torch.where(is_utterance, first * FAMILY.samples_per_frame + sample, 0)
        samples = torch.where(is_utterance, audio[index].float() / 32768, 0.0)
        encoded = quantize(codec.decoder.quantizer, codec.encoder(samples), parallel=codec.encoder.parallel).codes
        codes[(first + frame)[frame < count]] = encoded[frame < count].to(codes.dtype)
    return codes
