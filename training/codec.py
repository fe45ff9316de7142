"""Trains the codec: encoder, codebooks and decoder, from audio alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.contract.audio import FRAME_SAMPLES
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import decoder as decoding
from .config import CodecConfig, TrainingConfig
from .crops import Audio, crops, window
from .encoder import Encoder
from .quantizer import QuantizerTraining
from .run import Deadline, Run, Say, generator
from .shapes import decoder_config
from .spectral import SpectralLoss
from .synthesis import Shard

STATE, POLISHED = "codec.pt", "polish.pt"
_COMMITMENT = 0.25
_POSITIONS_A_FRAME = 4
"""Of the states that the convolutions turn into samples."""
_ENCODED_TOGETHER = 128
"""Utterances."""


class Codec(NamedTuple):
    """The modules that are trained together."""

    encoder: Encoder
    decoder: CodecDecoder

    @property
    def quantizer(self) -> QuantizerTraining:
        """On the decoder's codebooks."""
        return QuantizerTraining(self.decoder.quantizer)


def build(config: CodecConfig, device: torch.device) -> Codec:
    """Untrained modules; the same for the same seed, whatever the device."""
    torch.manual_seed(config.seed)
    encoder, decoder = Encoder(config), CodecDecoder(decoder_config(config))
    decoding.initialise(decoder, generator(torch.device("cpu"), config.seed))
    return Codec(encoder.to(device), decoder.to(device))


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
    loss = _Loss(config.codec, codec, audio, compiled=config.compile and device.type == "cuda")
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
    loss = _Loss(config.codec, codec, audio, compiled=config.compile and device.type == "cuda", codes_stay=True)
    return _learn(config, run, loss, deadline, say)


def is_polished(directory: Path, steps: int | None) -> bool:
    """Whether `polish` has done so many steps; None: as many as fitted."""
    path = directory / POLISHED
    if not path.exists():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    return bool(state["step"] >= (state["steps"] if steps is None else steps))


def _learn(config: TrainingConfig, run: Run, loss: _Loss, deadline: Deadline, say: Say) -> bool:
    # Every step has the same shapes: worth looking for the fastest convolutions. (`flags` turns cuDNN off by itself.)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        while not run.finished and deadline.left() > 0:
            parts = loss(run.step)
            run.learn(parts.spectral + _COMMITMENT * parts.commitment)
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


class _Parts(NamedTuple):
    """The loss."""

    spectral: Tensor
    commitment: Tensor


class _Loss:
    """What a step computes."""

    def __init__(
        self, config: CodecConfig, codec: Codec, audio: Audio, *, compiled: bool, codes_stay: bool = False
    ) -> None:
        """codes_stay: nothing but what the decoder makes of them is learnt."""
        self._config, self._codec, self._audio, self._codes_stay = config, codec, audio, codes_stay
        device = audio.samples.device
        self._spectral = SpectralLoss().to(device)
        waveform: Callable[[CodecDecoder, Tensor], Tensor] = decoding.waveform
        self._waveform = torch.compile(waveform) if compiled else waveform
        self._half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def __call__(self, step: int) -> _Parts:
        """The loss of the crops that `step` draws."""
        config = self._config
        draw, decoded = generator(self._audio.samples.device, config.seed, step), window(config, step)
        heard = crops(config, self._audio, draw, begins=decoded.begins)
        vectors, commitment = self._looked_up(heard) if self._codes_stay else self._quantised(heard, draw, step)
        with self._half:
            states = decoding.hidden(self._codec.decoder, vectors)
        end = decoded.first + config.decoded_frames
        part = states.float()[..., decoded.first * _POSITIONS_A_FRAME : end * _POSITIONS_A_FRAME].contiguous()
        made = self._waveform(self._codec.decoder, part)[:, decoded.skipped * FRAME_SAMPLES :]
        wanted = heard[:, (decoded.first + decoded.skipped) * FRAME_SAMPLES : end * FRAME_SAMPLES]
        return _Parts(self._spectral(made, wanted), commitment)

    def _quantised(self, heard: Tensor, draw: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        """What the decoder is given of crops, and how far that is from what the encoder says."""
        with self._half:
            encoded = self._codec.encoder(heard)
        encoded = encoded.float()
        unquantised = self._config.unquantised_steps
        if step < unquantised:
            return encoded, encoded.new_zeros(())
        found = self._codec.quantizer(encoded, draw, first=step == unquantised, step=step)
        return found.vectors, found.commitment

    @torch.no_grad()
    def _looked_up(self, heard: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder finds for the codes of crops."""
        codes = self._codec.quantizer.encode(self._codec.encoder(heard))
        vectors = self._codec.decoder.quantizer(codes).transpose(1, 2)
        return vectors, vectors.new_zeros(())


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
def encode(codec: Codec, shard: Shard, device: torch.device) -> Tensor:
    """The codes of a shard's utterances, each heard by itself: [sum of frames, 16] uint8 or int16 on `device`.

    Many at once, with silence behind the shorter ones: a causal encoder's codes do not know what follows.
    """
    starts, kind = np.cumsum(shard.frames) - shard.frames, codec.decoder.config.codebook_size
    audio = torch.from_numpy(shard.audio).to(device)
    codes = torch.zeros(
        len(audio) // FRAME_SAMPLES,
        codec.decoder.config.num_quantizers,
        dtype=torch.uint8 if kind <= 256 else torch.int16,
        device=device,
    )
    by_length = np.argsort(shard.frames, kind="stable")
    for some in np.array_split(by_length, -(-len(by_length) // _ENCODED_TOGETHER)):
        first = torch.from_numpy(starts[some]).to(device)[:, None]
        count = torch.from_numpy(shard.frames[some]).to(device)[:, None]
        frame = torch.arange(int(shard.frames[some].max()), device=device)
        heard = _cut(audio, first, count, len(frame))
        found = codec.quantizer.encode(codec.encoder(heard))
        own = frame < count
        codes[(first + frame)[own]] = found[own].to(codes.dtype)
    return codes


def _cut(audio: Tensor, first: Tensor, count: Tensor, frames: int) -> Tensor:
    """Utterances of `count` frames from frame `first` [B, 1] of int16 `audio`, as [B, frames * 1,920] in -1..1."""
    sample = torch.arange(frames * FRAME_SAMPLES, device=audio.device)
    own = sample < count * FRAME_SAMPLES
    place = torch.where(own, first * FRAME_SAMPLES + sample, 0)
    return torch.where(own, audio[place].float() / 32768, 0.0)
