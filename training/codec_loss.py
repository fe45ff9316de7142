"""Losses of the codec's training: of the whole codec, and of its decoder with fixed codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import codec_forward
from .codec_model import Codec
from .config import CodecConfig
from .crops import Audio, DecodeWindow, crop_indices, decode_window, read_crops
from .run import seeded_generator

_COMMITMENT_WEIGHT = 0.25
_STATES_PER_FRAME = 4
"""Decoder states per frame before the convolutions that turn them into samples."""

_WINDOW_BANDS = ((64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 200))
"""STFT windows (samples) and their numbers of mel bands."""
_LINEAR_WINDOWS = (512, 1024, 2048)
_MEL_WEIGHT, _LINEAR_WEIGHT, _MAGNITUDE_WEIGHT = 15.0, 5.0, 0.05


class CodecLosses(NamedTuple):
    """The terms of the loss."""

    spectral: Tensor
    commitment: Tensor

    def total(self) -> Tensor:
        """Returns the weighted sum."""
        return self.spectral + _COMMITMENT_WEIGHT * self.commitment


class CodecLoss:
    """Loss of encoder, codebooks and decoder."""

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, *, compiled: bool) -> None:
        self._config, self._codec, self._audio = config, codec, audio
        self._reconstruction = _ReconstructionLoss(config, codec.decoder, audio.samples.device, compiled=compiled)

    def __call__(self, step: int) -> CodecLosses:
        """Returns the losses on the random crops of `step`."""
        config, window = self._config, decode_window(self._config, step)
        generator = seeded_generator(self._audio.samples.device, config.seed, step)
        indices = crop_indices(config, self._audio, generator, utterance_starts=window.utterance_starts)
        samples = read_crops(self._audio, indices)
        vectors, commitment = self._quantize(samples, generator, step)
        return CodecLosses(self._reconstruction(vectors, samples, window), commitment)

    def _quantize(self, samples: Tensor, generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        """Returns the decoder's input vectors and the commitment loss; the first steps skip quantization."""
        with self._reconstruction.autocast:
            encoded = self._codec.encoder(samples)
        encoded = encoded.float()
        unquantized = self._config.unquantized_steps
        if step < unquantized:
            return encoded, encoded.new_zeros(())
        quantized = self._codec.quantizer(encoded, generator, first=step == unquantized, step=step)
        return quantized.vectors, quantized.commitment


class DecoderLoss:
    """Loss of the decoder with fixed codes."""

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, codes: Tensor, *, compiled: bool) -> None:
        """codes: [frames, 16], the codes of `audio`."""
        self._config, self._codec, self._audio, self._codes = config, codec, audio, codes
        self._reconstruction = _ReconstructionLoss(config, codec.decoder, audio.samples.device, compiled=compiled)

    def __call__(self, step: int) -> CodecLosses:
        """Returns the losses on the random crops of `step`; the commitment loss is 0."""
        config, window = self._config, decode_window(self._config, step)
        generator = seeded_generator(self._audio.samples.device, config.seed, step)
        indices = crop_indices(
            config,
            self._audio,
            generator,
            utterance_starts=window.utterance_starts,
            alignment=FAMILY.samples_per_frame,
        )
        codes = self._codes[indices[:, :: FAMILY.samples_per_frame] // FAMILY.samples_per_frame].long()
        vectors = self._codec.decoder.quantizer(codes).transpose(1, 2)
        spectral = self._reconstruction(vectors, read_crops(self._audio, indices), window)
        return CodecLosses(spectral, spectral.new_zeros(()))


class _ReconstructionLoss:
    """Decodes vectors and compares the result with the original samples."""

    def __init__(self, config: CodecConfig, decoder: CodecDecoder, device: torch.device, *, compiled: bool) -> None:
        self._config, self._decoder = config, decoder
        spectral = SpectralLoss().to(device)
        waveform: Callable[[CodecDecoder, Tensor], Tensor] = codec_forward.waveform
        self._spectral = torch.compile(spectral) if compiled else spectral
        self._waveform = torch.compile(waveform) if compiled else waveform
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def __call__(self, vectors: Tensor, samples: Tensor, window: DecodeWindow) -> Tensor:
        """Returns the spectral loss in `window`. vectors: [B, codebook_dim, F]; samples: [B, 1,920 F]."""
        with self.autocast:
            states = codec_forward.hidden_states(self._decoder, vectors)
        first, end = window.first_frame, window.first_frame + self._config.decoded_frames
        states = states.float()[..., first * _STATES_PER_FRAME : end * _STATES_PER_FRAME].contiguous()
        decoded = self._waveform(self._decoder, states)[:, window.warmup_frames * FAMILY.samples_per_frame :]
        compared = slice((first + window.warmup_frames) * FAMILY.samples_per_frame, end * FAMILY.samples_per_frame)
        loss: Tensor = self._spectral(decoded, samples[:, compared])
        return loss


def mel_filters(window: int, bands: int) -> Tensor:
    """Returns triangular filters [bands, window / 2 + 1], evenly spaced on the mel scale (O'Shaughnessy 1987)."""
    top = 2595 * torch.log10(torch.tensor(1 + FAMILY.sample_rate / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
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
