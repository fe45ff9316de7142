"""Trains the codec: encoder, codebooks and decoder, from audio alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from syrinx_stages.contract.family import FAMILY

from .codec_loss import Loss, PolishLoss
from .codec_model import Codec, build
from .config import CodecConfig, TrainingConfig
from .crops import Audio
from .run import Deadline, Run, Say

STATE, POLISHED = "codec.pt", "polish.pt"
_ENCODED_TOGETHER = 128
"""Utterances."""


def train(
    config: TrainingConfig,
    audio: Audio,
    directory: Path,
    device: torch.device,
    deadline: Deadline,
    say: Say,
    fit: Deadline | None = None,
) -> bool:
    """Trains until all steps are done or the time is over; says whether all are. The state is in `directory`.

    fit: when to be finished; without it the config says after how many steps.
    """
    codec = build(config.codec, device)
    run = _run(config.codec, codec, directory, fit)
    run.resume()
    loss = Loss(config.codec, codec, audio, compiled=config.compile and device.type == "cuda")
    return _learn(config, run, loss, deadline, say)


def polish(
    config: TrainingConfig,
    audio: Audio,
    directory: Path,
    device: torch.device,
    deadline: Deadline,
    say: Say,
    fit: Deadline | None = None,
) -> bool:
    """Trains the decoder on, with the codes as they are: it sounds clearer, and no talker has to learn them anew.

    As `train` otherwise.
    """
    codec = load(config, directory, device)
    run = _polish_run(config.codec, codec, directory, fit)
    run.resume()
    codes = encode(codec, audio.samples, audio.frames())
    loss = PolishLoss(config.codec, codec, audio, codes, compiled=config.compile and device.type == "cuda")
    return _learn(config, run, loss, deadline, say)


def is_polished(directory: Path, steps: int | None) -> bool:
    """Whether `polish` has done so many steps; None: as many as fitted."""
    path = directory / POLISHED
    if not path.exists():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    return bool(state["step"] >= (state["steps"] if steps is None else steps))


def _learn(config: TrainingConfig, run: Run, loss: Loss | PolishLoss, deadline: Deadline, say: Say) -> bool:
    # Every step has the same shapes: worth looking for the fastest convolutions. (`flags` turns cuDNN off by itself.)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        while not run.finished and deadline.left() > 0:
            parts = loss(run.step)
            run.learn(parts.total())
            if run.step % config.log_every == 0:
                run.note(say, **parts._asdict())
            if run.step % config.save_every == 0:
                run.save()
    run.save()
    return run.finished


def _run(config: CodecConfig, codec: Codec, directory: Path, fit: Deadline | None = None) -> Run:
    weights = [weight for module in codec for weight in module.parameters() if weight.requires_grad]
    return Run(
        directory / STATE,
        codec._asdict(),
        weights,
        peak=config.learning_rate,
        steps=config.steps,
        betas=(0.8, 0.99),
        decay=1e-3,
        fit=fit,
    )


def _polish_run(config: CodecConfig, codec: Codec, directory: Path, fit: Deadline | None = None) -> Run:
    for name, weight in codec.decoder.named_parameters():
        weight.requires_grad_(not name.startswith("quantizer."))
    return Run(
        directory / POLISHED,
        {"decoder": codec.decoder},
        [weight for weight in codec.decoder.parameters() if weight.requires_grad],
        peak=config.polish_learning_rate,
        steps=config.polish_steps,
        betas=(0.8, 0.99),
        decay=1e-3,
        fit=fit,
    )


def load(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """The trained modules, as far as they are; the decoder not polished."""
    codec = build(config.codec, device)
    _run(config.codec, codec, directory).resume()
    return _still(codec)


def load_polished(config: TrainingConfig, directory: Path, device: torch.device) -> Codec:
    """The trained modules, the decoder as far as it is polished."""
    codec = load(config, directory, device)
    _polish_run(config.codec, codec, directory).resume()
    return _still(codec)


def _still(codec: Codec) -> Codec:
    for module in codec:
        module.eval().requires_grad_(False)
    return codec


@torch.no_grad()
def encode(codec: Codec, audio: Tensor, frames: npt.NDArray[np.integer]) -> Tensor:
    """The codes of utterances of so many frames each, heard by itself: [sum of frames, 16] uint8 or int16.

    audio: their samples, one after the other, int16. Many are encoded at once, with silence behind the shorter ones: a
    causal encoder's codes do not know what follows.
    """
    device, starts, kind = audio.device, np.cumsum(frames) - frames, codec.decoder.config.codebook_size
    codes = torch.zeros(
        len(audio) // FAMILY.samples_per_frame,
        codec.decoder.config.num_quantizers,
        dtype=torch.uint8 if kind <= 256 else torch.int16,
        device=device,
    )
    by_length = np.argsort(frames, kind="stable")
    for some in np.array_split(by_length, -(-len(by_length) // _ENCODED_TOGETHER)):
        first = torch.from_numpy(starts[some]).to(device)[:, None]
        count = torch.from_numpy(frames[some]).to(device)[:, None]
        frame = torch.arange(int(frames[some].max()), device=device)
        heard = _cut(audio, first, count, len(frame))
        found = codec.quantizer.encode(codec.encoder(heard))
        own = frame < count
        codes[(first + frame)[own]] = found[own].to(codes.dtype)
    return codes


def _cut(audio: Tensor, first: Tensor, count: Tensor, frames: int) -> Tensor:
    """Utterances of `count` frames from frame `first` [B, 1] of int16 `audio`, as [B, frames * 1,920] in -1..1."""
    sample = torch.arange(frames * FAMILY.samples_per_frame, device=audio.device)
    own = sample < count * FAMILY.samples_per_frame
    place = torch.where(own, first * FAMILY.samples_per_frame + sample, 0)
    return torch.where(own, audio[place].float() / 32768, 0.0)
