"""How different two sounds are: mel spectrograms at six scales and linear ones at three."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY

_SCALES = ((64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 200))
"""Windows and their mel bands."""
_LINEAR = (512, 1024, 2048)
_MEL_WEIGHT, _LINEAR_WEIGHT, _MAGNITUDE_WEIGHT = 15.0, 5.0, 0.05


def mel_filters(window: int, bands: int) -> Tensor:
    """Triangles [bands, window / 2 + 1], evenly spaced on the mel scale (O'Shaughnessy 1987)."""
    top = 2595 * torch.log10(torch.tensor(1 + FAMILY.sample_rate / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    frequency = torch.linspace(0, FAMILY.sample_rate / 2, window // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((frequency - low) / (middle - low), (high - frequency) / (high - middle)).clamp(min=0)


class SpectralLoss(nn.Module):
    """The codec's loss; logarithms weigh soft sounds as loud ones."""

    def __init__(self) -> None:
        super().__init__()
        for window, bands in _SCALES:
            self.register_buffer(f"mel{window}", mel_filters(window, bands))
            self.register_buffer(f"window{window}", torch.hann_window(window))

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Samples [B, N] each to a number."""
        both = torch.cat((made, wanted))
        return torch.stack([self._at(both, window) for window, _ in _SCALES]).sum()

    def _at(self, both: Tensor, window: int) -> Tensor:
        shape = self.get_buffer(f"window{window}")
        spectrum = torch.stft(both, window, window // 4, window=shape, return_complex=True)
        magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        mel = (self.get_buffer(f"mel{window}") @ magnitude).clamp(min=1e-4).log10()
        loss = _MEL_WEIGHT * _distance(mel)
        if window in _LINEAR:
            linear = _distance(magnitude.clamp(min=1e-3).log10()) + _MAGNITUDE_WEIGHT * _distance(magnitude)
            loss = loss + _LINEAR_WEIGHT * linear
        return loss


def _distance(both: Tensor) -> Tensor:
    """Mean absolute difference of the first half of the rows and the second."""
    made, wanted = both.chunk(2)
    return (made - wanted).abs().mean()
