"""The codec's encoder, for training alone: audio to vectors at the frame rate. It is causal.

With an encoder that hears what follows, the codes carry the future: the talker then reads it from the codes it is fed,
ignores the text, and babbles when it speaks by itself.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY

from .config import CodecConfig

_HOP, _WINDOW = 240, 1_024
LOOK_AHEAD = _WINDOW // 2 - _HOP
"""Samples after a frame's own that its code hears: 11 ms, without which the last samples would hardly be seen."""
_TAPS = (7, 7, 3, 3)
"""Of the blocks at each rate."""


class _CausalConv(nn.Conv1d):
    """A convolution over this and past positions: [B, in, T] to [B, out, T / stride]."""

    def forward(self, x: Tensor) -> Tensor:
        """The past before the first position is silent."""
        return super().forward(F.pad(x, (self.kernel_size[0] - self.stride[0], 0)))


class _Block(nn.Module):
    """A ConvNeXt block: [B, width, T]."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.depthwise = _CausalConv(width, width, taps, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """x + scale * MLP(norm(conv(x)))."""
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
        for level, taps in enumerate(_TAPS):
            if level:
                layers.append(_CausalConv(width, width, 4, stride=2))
            layers += [_Block(width, taps) for _ in range(config.encoder_blocks)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, config.codebook_dim)

    def forward(self, samples: Tensor) -> Tensor:
        """samples: [B, N], N a multiple of 1,920, in -1..1."""
        x = self.norm(self.layers(self._spectrogram(samples)).transpose(1, 2))
        result: Tensor = self.out(x).transpose(1, 2)
        return result

    @torch.no_grad()
    def _spectrogram(self, samples: Tensor) -> Tensor:
        """Log magnitudes [B, 513, N / 240], about -1..1; the window of position j ends `_WINDOW / 2` after 240 j."""
        if samples.shape[1] % FAMILY.samples_per_frame:
            raise ValueError(f"{samples.shape[1]} samples are not whole frames")
        spectrum = torch.stft(
            samples.float(), _WINDOW, _HOP, window=self.window, center=True, pad_mode="constant", return_complex=True
        )
        return (spectrum.abs()[..., :-1].clamp(min=1e-3).log() + 2) / 3
