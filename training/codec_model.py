"""The codec's trainable modules: encoder, codebooks and decoder.

The encoder, which only training needs, is causal. With a non-causal encoder the codes contain information about the
future: the talker learns to read it from the codes it is fed, ignores the text, and babbles in free-running generation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import codec_forward
from .checkpoint import decoder_config
from .config import CodecConfig
from .quantizer import QuantizerTraining
from .run import seeded_generator

_HOP, _WINDOW = 240, 1_024
LOOKAHEAD = _WINDOW // 2 - _HOP
"""Samples after a frame that its code depends on (11 ms); the STFT window tapers off the frame's last samples."""
_KERNEL_SIZES = (7, 7, 3, 3)
"""Of the blocks at each of the four rates."""


class _CausalConv(nn.Conv1d):
    """A causal convolution: [B, in, T] to [B, out, T / stride]."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolves `x`, padded with zeros on the left."""
        return super().forward(F.pad(x, (self.kernel_size[0] - self.stride[0], 0)))


class _Block(nn.Module):
    """A ConvNeXt block: [B, width, T]."""

    def __init__(self, width: int, kernel_size: int) -> None:
        super().__init__()
        self.depthwise = _CausalConv(width, width, kernel_size, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns x + scale * MLP(norm(conv(x)))."""
        y = self.norm(self.depthwise(x).transpose(1, 2))
        branch: Tensor = self.scale * self.down(F.gelu(self.up(y)))
        return x + branch.transpose(1, 2)


class Encoder(nn.Module):
    """Samples [B, N] to vectors [B, codebook_dim, N / 1,920]: a spectrogram, then three halvings of its rate."""

    window: Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        layers: list[nn.Module] = [_CausalConv(_WINDOW // 2 + 1, width, 3)]
        for level, kernel_size in enumerate(_KERNEL_SIZES):
            if level:
                layers.append(_CausalConv(width, width, 4, stride=2))
            layers += [_Block(width, kernel_size) for _ in range(config.encoder_blocks)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, config.codebook_dim)

    def forward(self, samples: Tensor) -> Tensor:
        """samples: [B, N] in -1..1. Raises ValueError if N is not a multiple of 1,920."""
        x = self.norm(self.layers(self._spectrogram(samples)).transpose(1, 2))
        vectors: Tensor = self.out(x).transpose(1, 2)
        return vectors

    @torch.no_grad()
    def _spectrogram(self, samples: Tensor) -> Tensor:
        """Returns log magnitudes [B, 513, N / 240], about -1..1; the window of position j ends at 240 j + 512."""
        if samples.shape[1] % FAMILY.samples_per_frame:
            raise ValueError(f"{samples.shape[1]} samples are not a whole number of frames")
        spectrum = torch.stft(
            samples.float(), _WINDOW, _HOP, window=self.window, center=True, pad_mode="constant", return_complex=True
        )
        return (spectrum.abs()[..., :-1].clamp(min=1e-3).log() + 2) / 3


class Codec(NamedTuple):
    """The modules that are trained together."""

    encoder: Encoder
    decoder: CodecDecoder

    @property
    def quantizer(self) -> QuantizerTraining:
        """The decoder's codebooks, in training."""
        return QuantizerTraining(self.decoder.quantizer)


def build(config: CodecConfig, device: torch.device) -> Codec:
    """Returns an untrained codec, which depends on the seed but not on the device."""
    torch.manual_seed(config.seed)
    encoder, decoder = Encoder(config), CodecDecoder(decoder_config(config))
    codec_forward.initialize(decoder, seeded_generator(torch.device("cpu"), config.seed))
    return Codec(encoder.to(device), decoder.to(device))
