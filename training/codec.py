"""Trains the codec (encoder, codebooks and decoder), fine-tunes its decoder, and encodes audio with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY

from .codec_loss import CodecLoss, DecoderLoss
from .codec_model import Codec, build
from .config import CodecConfig, TrainingConfig
from .crops import Audio
from .run import Deadline, Log, TrainingRun

STATE, DECODER_STATE = "codec.pt", "decoder.pt"
_ENCODE_BATCH = 128
"""Utterances encoded in one batch."""


def train(
    config: TrainingConfig,
    audio: Audio,
    directory: Path,
    device: torch.device,
    deadline: Deadline,
    log: Log,
    finish_by: Deadline | None = None,
) -> bool:
    """Trains until all steps are done or `deadline` has passed; returns True if all steps are done.

    The state is kept in `directory`. finish_by: fits the number of steps to this time instead of the config's number.
    """
    codec = build(config.codec, device)
    run = _codec_run(config.codec, codec, directory, finish_by)
    run.resume()
    loss = CodecLoss(config.codec, codec, audio, compiled=config.compile and device.type == "cuda")
    return _train_steps(config, run, loss, deadline, log)


def finetune_decoder(
    config: TrainingConfig,
    audio: Audio,
    directory: Path,
    device: torch.device,
    deadline: Deadline,
    log: Log,
    finish_by: Deadline | None = None,
) -> bool:
    """Trains the decoder further with encoder and codebooks frozen, so that a trained talker stays valid.

    Parameters and result are those of `train`.
    """
    codec = load(config, directory, device)
    run = _decoder_run(config.codec, codec, directory, finish_by)
    run.resume()
    codes = encode(codec, audio.samples, audio.frames())
    loss = DecoderLoss(config.codec, codec, audio, codes, compiled=config.compile and device.type == "cuda")
    return _train_steps(config, run, loss, deadline, log)


def is_finetuned(directory: Path, steps: int | None) -> bool:
    """Returns True if `finetune_decoder` has done `steps` steps; None stands for the number saved with its state."""
    path = directory / DECODER_STATE
    if not path.exists():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    return bool(state["step"] >= (state["steps"] if steps is None else steps))


def _train_steps(
    config: TrainingConfig, run: TrainingRun, loss: CodecLoss | DecoderLoss, deadline: Deadline, log: Log
) -> bool:
    # All steps have the same shapes, so cuDNN's benchmark mode pays off. (`flags` disables cuDNN by default.)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        while not run.finished and deadline.remaining() > 0:
            losses = loss(run.step)
            run.update(losses.total())
            if run.step % config.log_every == 0:
                run.log_metrics(log, **losses._asdict())
            if run.step % config.save_every == 0:
                run.save()
    run.save()
    return run.finished


def _codec_run(config: CodecConfig, codec: Codec, directory: Path, finish_by: Deadline | None = None) -> TrainingRun:
    return _new_run(directory / STATE, codec._asdict(), config.learning_rate, config.steps, finish_by)


def _decoder_run(config: CodecConfig, codec: Codec, directory: Path, finish_by: Deadline | None = None) -> TrainingRun:
    for name, weight in codec.decoder.named_parameters():
        weight.requires_grad_(not name.startswith("quantizer."))
    modules = {"decoder": codec.decoder}
    path = directory / DECODER_STATE
    return _new_run(path, modules, config.finetune_learning_rate, config.finetune_steps, finish_by)


def _new_run(
    path: Path, modules: Mapping[str, nn.Module], learning_rate: float, steps: int, finish_by: Deadline | None
) -> TrainingRun:
    return TrainingRun(
        path,
        modules,
        [weight for module in modules.values() for weight in module.parameters() if weight.requires_grad],
        peak_learning_rate=learning_rate,
        steps=steps,
        betas=(0.8, 0.99),
        weight_decay=1e-3,
        finish_by=finish_by,
    )


def load(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """Returns the frozen codec in its current state of training, without decoder fine-tuning."""
    codec = build(config.codec, device)
    _codec_run(config.codec, codec, directory).resume()
    return _freeze(codec)


def load_finetuned(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """Returns the frozen codec with its decoder in the current state of fine-tuning."""
    codec = load(config, directory, device)
    _decoder_run(config.codec, codec, directory).resume()
    return _freeze(codec)


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
        samples = _padded_utterances(audio, first, count, len(frame))
        encoded = codec.quantizer.encode(codec.encoder(samples))
        is_utterance = frame < count
        codes[(first + frame)[is_utterance]] = encoded[is_utterance].to(codes.dtype)
    return codes


def _padded_utterances(audio: Tensor, first: Tensor, count: Tensor, frames: int) -> Tensor:
    """Returns utterances of `count` frames [B, 1] from frame `first` [B, 1] as [B, frames * 1,920] floats in -1..1."""
    sample = torch.arange(frames * FAMILY.samples_per_frame, device=audio.device)
    is_utterance = sample < count * FAMILY.samples_per_frame
    index = torch.where(is_utterance, first * FAMILY.samples_per_frame + sample, 0)
    return torch.where(is_utterance, audio[index].float() / 32768, 0.0)
