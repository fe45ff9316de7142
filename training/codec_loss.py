"""What a step of the codec's training computes: of the codec as a whole, and of its decoder alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import decoder as decoding
from .codec_model import Codec
from .config import CodecConfig
from .crops import Audio, Window, crops, heard, window
from .run import generator
from .spectral import SpectralLoss

_COMMITMENT = 0.25
_POSITIONS_A_FRAME = 4
"""Of the states that the convolutions turn into samples."""


class Parts(NamedTuple):
    """A loss."""

    spectral: Tensor
    commitment: Tensor

    def total(self) -> Tensor:
        """What is learnt from."""
        return self.spectral + _COMMITMENT * self.commitment


class Loss:
    """Of encoder, codebooks and decoder."""

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, *, compiled: bool) -> None:
        self._config, self._codec, self._audio = config, codec, audio
        self._decoded = _Decoded(config, codec.decoder, audio.samples.device, compiled=compiled)

    def __call__(self, step: int) -> Parts:
        """The loss of the crops that `step` draws."""
        config, decoded = self._config, window(self._config, step)
        draw = generator(self._audio.samples.device, config.seed, step)
        samples = heard(self._audio, crops(config, self._audio, draw, begins=decoded.begins))
        vectors, commitment = self._quantised(samples, draw, step)
        return Parts(self._decoded.distance(vectors, samples, decoded), commitment)

    def _quantised(self, samples: Tensor, draw: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        """What the decoder is given of crops, and how far that is from what the encoder says."""
        with self._decoded.half:
            encoded = self._codec.encoder(samples)
        encoded = encoded.float()
        unquantised = self._config.unquantised_steps
        if step < unquantised:
            return encoded, encoded.new_zeros(())
        found = self._codec.quantizer(encoded, draw, first=step == unquantised, step=step)
        return found.vectors, found.commitment


class PolishLoss:
    """Of the decoder alone, given codes."""

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, codes: Tensor, *, compiled: bool) -> None:
        """codes: of the audio, [frames, 16]."""
        self._config, self._codec, self._audio, self._codes = config, codec, audio, codes
        self._decoded = _Decoded(config, codec.decoder, audio.samples.device, compiled=compiled)

    def __call__(self, step: int) -> Parts:
        """The loss of the crops that `step` draws."""
        config, decoded = self._config, window(self._config, step)
        draw = generator(self._audio.samples.device, config.seed, step)
        samples = crops(config, self._audio, draw, begins=decoded.begins, grain=FAMILY.samples_per_frame)
        codes = self._codes[samples[:, :: FAMILY.samples_per_frame] // FAMILY.samples_per_frame].long()
        vectors = self._codec.decoder.quantizer(codes).transpose(1, 2)
        spectral = self._decoded.distance(vectors, heard(self._audio, samples), decoded)
        return Parts(spectral, spectral.new_zeros(()))


class _Decoded:
    """Vectors, decoded and compared with what was said."""

    def __init__(self, config: CodecConfig, decoder: CodecDecoder, device: torch.device, *, compiled: bool) -> None:
        self._config, self._decoder = config, decoder
        spectral = SpectralLoss().to(device)
        waveform: Callable[[CodecDecoder, Tensor], Tensor] = decoding.waveform
        self._spectral = torch.compile(spectral) if compiled else spectral
        self._waveform = torch.compile(waveform) if compiled else waveform
        self.half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def distance(self, vectors: Tensor, samples: Tensor, decoded: Window) -> Tensor:
        """vectors: [B, codebook_dim, F], of samples [B, 1,920 F]; the decoded part of them counts."""
        with self.half:
            states = decoding.hidden(self._decoder, vectors)
        first, end = decoded.first, decoded.first + self._config.decoded_frames
        part = states.float()[..., first * _POSITIONS_A_FRAME : end * _POSITIONS_A_FRAME].contiguous()
        made = self._waveform(self._decoder, part)[:, decoded.skipped * FAMILY.samples_per_frame :]
        wanted = samples[:, (first + decoded.skipped) * FAMILY.samples_per_frame : end * FAMILY.samples_per_frame]
        distance: Tensor = self._spectral(made, wanted)
        return distance
