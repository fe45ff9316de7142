"""The loss of the codec's training on random audio crops, of the whole codec or of its decoder with fixed codes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from training.codec import forward as codec_forward
from training.codec.model import CodebookUpdater, Codec, quantize
from training.config import CodecConfig, TrainingConfig
from training.data.synthesis import read_shard
from training.run import compiled, seeded_generator

_UTTERANCE_START_SHARE = 0.15
"""Share of the steps whose crops start with an utterance: the decoder has to learn beginnings, and silence."""
_COMMITMENT_WEIGHT = 0.25
_STATES_PER_FRAME = 4
"""Decoder states per frame before the convolutions that turn them into samples."""

_WINDOW_BANDS = ((64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 200))
"""STFT windows (samples) and their numbers of mel bands."""
_LINEAR_WINDOWS = (512, 1024, 2048)
_MEL_WEIGHT, _LINEAR_WEIGHT, _MAGNITUDE_WEIGHT = 15.0, 5.0, 0.05


class Audio(NamedTuple):
    """Concatenated utterances."""

    samples: Tensor
    """[N] int16."""
    starts: Tensor
    """[utterances]: index of each utterance's first sample."""
    speakers: Tensor
    """[utterances]: indices of the config's speakers."""

    def frames(self) -> npt.NDArray[np.integer]:
        """Returns each utterance's length in frames, [utterances]."""
        bounds = np.append(self.starts.cpu().numpy(), len(self.samples)) // FAMILY.samples_per_frame
        return np.diff(bounds)


class DecodeWindow(NamedTuple):
    """The frames of a crop that a step decodes to samples."""

    first_frame: int
    warmup_frames: int
    """Leading frames left out of the loss, because the convolutions lack their past."""
    utterance_starts: bool
    """True if the step's crops start with an utterance."""


def load_audio(paths: Iterable[Path], hours: float, device: torch.device) -> Audio:
    """Loads shards onto `device` until they hold `hours` of audio."""
    samples, starts, speakers, count = [], [], [], 0
    for path in paths:
        shard = read_shard(path)
        starts.append(count + (np.cumsum(shard.frames) - shard.frames) * FAMILY.samples_per_frame)
        samples.append(torch.from_numpy(shard.content).to(device))
        speakers.append(torch.from_numpy(shard.speakers).to(device))
        count += len(shard.content)
        if count >= hours * 3600 * FAMILY.sample_rate:
            break
    return Audio(torch.cat(samples), torch.from_numpy(np.concatenate(starts)).to(device), torch.cat(speakers).long())


def decode_window(config: CodecConfig, step: int) -> DecodeWindow:
    """Returns the random window of `step`."""
    rng = np.random.default_rng((config.seed, step))
    if rng.random() < _UTTERANCE_START_SHARE:
        return DecodeWindow(0, 0, True)
    return DecodeWindow(int(rng.integers(config.frames - config.decoded_frames + 1)), config.warmup_frames, False)


def crop_indices(
    config: CodecConfig, audio: Audio, generator: torch.Generator, *, utterance_starts: bool, alignment: int = 1
) -> Tensor:
    """Returns sample indices [batch, frames * 1,920] of random crops; they may run into the next utterance.

    utterance_starts: crops start with an utterance. alignment: other crops start at a multiple of this many samples.
    """
    length, device = config.frames * FAMILY.samples_per_frame, audio.samples.device
    last = len(audio.samples) - length
    shape = config.batch, 1
    if utterance_starts:
        candidates = audio.starts[audio.starts <= last]
        starts = candidates[torch.randint(len(candidates), shape, generator=generator, device=device)]
    else:
        starts = torch.randint(last // alignment + 1, shape, generator=generator, device=device) * alignment
    return starts + torch.arange(length, device=device)


class CodecLosses(NamedTuple):
    """The terms of the loss."""

    spectral: Tensor
    commitment: Tensor

    def total(self) -> Tensor:
        """Returns the weighted sum."""
        return self.spectral + _COMMITMENT_WEIGHT * self.commitment


class CodecLoss:
    """Encodes random crops, decodes a part of each and compares it with the original samples."""

    def __init__(self, config: TrainingConfig, codec: Codec, audio: Audio, codes: Tensor | None = None) -> None:
        """codes: [frames, 16], fixed codes of `audio` instead of the encoder's, to train the decoder alone."""
        self._config, self._codec, self._audio, self._codes = config.codec, codec, audio, codes
        self._device = audio.samples.device
        self._autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")
        encoder: Callable[[Tensor], Tensor] = codec.encoder
        self._encoder = compiled(encoder, config, self._device)
        self._hidden_states = compiled(codec_forward.hidden_states, config, self._device)
        self._waveform = compiled(codec_forward.waveform, config, self._device)
        self._spectral: Callable[[Tensor, Tensor], Tensor] = compiled(
            SpectralLoss().to(self._device), config, self._device
        )

    def __call__(self, step: int) -> CodecLosses:
        """Returns the losses on the random crops of `step`; the commitment loss is 0 for fixed codes."""
        window = decode_window(self._config, step)
        generator = seeded_generator(self._device, self._config.seed, step)
        alignment = 1 if self._codes is None else FAMILY.samples_per_frame
        starts = window.utterance_starts
        indices = crop_indices(self._config, self._audio, generator, utterance_starts=starts, alignment=alignment)
        samples = self._audio.samples[indices].float() / 32768
        if self._codes is None:
            vectors, commitment = self._quantize(samples, generator, step)
        else:
            codes = self._codes[indices[:, ::alignment] // alignment].long()
            vectors = self._codec.decoder.quantizer(codes).transpose(1, 2)
            commitment = vectors.new_zeros(())
        return CodecLosses(self._spectral_loss(vectors, samples, window), commitment)

    def _quantize(self, samples: Tensor, generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        """Returns the decoder's input vectors and the commitment loss; the first steps skip quantization."""
        with self._autocast:
            encoded = self._encoder(samples)
        encoded = encoded.float()
        unquantized = self._config.unquantized_steps
        if step < unquantized:
            return encoded, encoded.new_zeros(())
        updater = CodebookUpdater(generator, step, first=step == unquantized)
        quantized = quantize(self._codec.decoder.quantizer, encoded, updater, parallel=self._codec.encoder.parallel)
        return quantized.vectors, quantized.commitment

    def _spectral_loss(self, vectors: Tensor, samples: Tensor, window: DecodeWindow) -> Tensor:
        """Returns the loss in `window`. vectors: [B, codebook_dim, F]; samples: [B, 1,920 F] in -1..1."""
        with self._autocast:
            states = self._hidden_states(self._codec.decoder, vectors)
        first, end = window.first_frame, window.first_frame + self._config.decoded_frames
        states = states.float()[..., first * _STATES_PER_FRAME : end * _STATES_PER_FRAME].contiguous()
        decoded = self._waveform(self._codec.decoder, states)[:, window.warmup_frames * FAMILY.samples_per_frame :]
        compared = slice((first + window.warmup_frames) * FAMILY.samples_per_frame, end * FAMILY.samples_per_frame)
        return self._spectral(decoded, samples[:, compared])


def mel_filters(window: int, bands: int, low_hz: float = 0, high_hz: float = FAMILY.sample_rate / 2) -> Tensor:
    """Returns triangular filters [bands, window / 2 + 1], evenly spaced on the mel scale (O'Shaughnessy 1987)."""
    bottom, top = (2595 * torch.log10(torch.tensor(1 + edge / 700)) for edge in (low_hz, high_hz))
    edges = 700 * (10 ** (torch.linspace(float(bottom), float(top), bands + 2) / 2595) - 1)
    frequency = torch.linspace(0, FAMILY.sample_rate / 2, window // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((frequency - low) / (middle - low), (high - frequency) / (high - middle)).clamp(min=0)


class SpectralLoss(nn.Module):
    """L1 distance of log mel spectrograms at six scales, and of linear spectrograms at three.

    Logarithms give soft and loud sounds the same weight.
    """

    def __init__(self) -> None:
        super().__init__()
        for window, bands in _WINDOW_BANDS:
            self.register_buffer(f"mel{window}", mel_filters(window, bands))
            self.register_buffer(f"window{window}", torch.hann_window(window))

    def forward(self, decoded: Tensor, original: Tensor) -> Tensor:
        """Returns the scalar loss of samples [B, N] and [B, N]."""
        both = torch.cat((decoded, original))
        return torch.stack([self._loss_at_scale(both, window) for window, _ in _WINDOW_BANDS]).sum()

    def _loss_at_scale(self, both: Tensor, window: int) -> Tensor:
        hann = self.get_buffer(f"window{window}")
        spectrum = torch.stft(both, window, window // 4, window=hann, return_complex=True)
        magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        mel = (self.get_buffer(f"mel{window}") @ magnitude).clamp(min=1e-4).log10()
        loss = _MEL_WEIGHT * _l1_of_halves(mel)
        if window in _LINEAR_WINDOWS:
            linear = _l1_of_halves(magnitude.clamp(min=1e-3).log10()) + _MAGNITUDE_WEIGHT * _l1_of_halves(magnitude)
            loss = loss + _LINEAR_WEIGHT * linear
        return loss


def _l1_of_halves(both: Tensor) -> Tensor:
    """Returns the mean absolute difference between the first and the second half of the rows."""
    decoded, original = both.chunk(2)
    return (decoded - original).abs().mean()
