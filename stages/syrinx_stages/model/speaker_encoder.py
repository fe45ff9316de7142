"""The speaker encoder of Base checkpoints: reference audio to an x-vector, by a mel spectrogram and an ECAPA-TDNN."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY

if TYPE_CHECKING:
    from syrinx_stages.model.config import SpeakerEncoderConfig

FFT = 1024
HOP = 256
MIN_SAMPLES = 9_600
"""0.4 s: shorter audio identifies no voice, and has too few frames for the widest convolution."""


@lru_cache(maxsize=2)
def mel_filters(bands: int) -> Tensor:
    """Returns librosa's default filterbank: [bands, FFT / 2 + 1] triangles of equal area on Slaney's mel scale."""
    # Imported late: only voice cloning needs transformers.
    bank: Any = import_module("transformers.audio_utils").mel_filter_bank
    rate = FAMILY.sample_rate
    filters = bank(FFT // 2 + 1, bands, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(np.ascontiguousarray(filters.T, np.float32))


def mel_spectrogram(samples: Tensor, bands: int) -> Tensor:
    """Returns the natural logarithm of mel magnitudes [B, N // HOP, bands] of samples [B, N] at 24 kHz."""
    edge = (FFT - HOP) // 2
    padded = F.pad(samples.float(), (edge, edge), mode="reflect")
    window = torch.hann_window(FFT, device=samples.device)
    spectrum = torch.stft(padded, FFT, HOP, window=window, center=False, return_complex=True)
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
    return (mel_filters(bands).to(samples.device) @ magnitude).clamp(min=1e-5).log().mT


def _conv(inputs: int, outputs: int, taps: int = 1, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(inputs, outputs, taps, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    """Convolution and ReLU: [B, inputs, T] to [B, outputs, T]."""

    def __init__(self, inputs: int, outputs: int, taps: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _conv(inputs, outputs, taps, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """Convolves each group of channels but the first, with the previous output added (https://arxiv.org/abs/1904.01169)."""

    def __init__(self, channels: int, groups: int, taps: int, dilation: int) -> None:
        super().__init__()
        width = channels // groups
        self.blocks = nn.ModuleList([TimeDelay(width, width, taps, dilation) for _ in range(groups - 1)])

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(len(self.blocks) + 1, dim=1)
        parts = [first]
        for block, part in zip(self.blocks, rest, strict=True):
            parts.append(block(part if len(parts) == 1 else part + parts[-1]))
        return torch.cat(parts, 1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from all channels' means (https://arxiv.org/abs/1709.01507)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels, squeezed)
        self.conv2 = _conv(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))))


class SERes2NetBlock(nn.Module):
    """Res2Net between two pointwise convolutions, with squeeze-excitation and a residual connection."""

    def __init__(self, inputs: int, channels: int, groups: int, squeezed: int, taps: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(inputs, channels)
        self.res2net_block = Res2Net(channels, groups, taps, dilation)
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, squeezed)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


def _statistics(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weighted mean and standard deviation [B, channels, 1] over time."""
    mean = (weight * x).sum(2, keepdim=True)
    variance = (weight * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class AttentiveStatistics(nn.Module):
    """Mean and deviation over time, weighted by attention per channel: [B, channels, T] to [B, 2 channels, 1]."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, hidden)
        self.conv = _conv(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = _statistics(x, torch.full_like(x[:, :1], 1 / x.shape[2]))
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), 1)
        attention = self.conv(torch.tanh(self.tdnn(context))).softmax(2)
        return torch.cat(_statistics(x, attention), 1)


class SpeakerEncoder(nn.Module):
    """ECAPA-TDNN (https://arxiv.org/abs/2005.07143)."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.bands = config.mel_dim
        channels, taps, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self.blocks = nn.ModuleList([TimeDelay(config.mel_dim, channels[0], taps[0], dilations[0])])
        for i in range(1, len(channels) - 1):
            groups, squeezed = config.enc_res2net_scale, config.enc_se_channels
            self.blocks.append(SERes2NetBlock(channels[i - 1], channels[i], groups, squeezed, taps[i], dilations[i]))
        self.mfa = TimeDelay(channels[-1], channels[-1], taps[-1], dilations[-1])
        self.asp = AttentiveStatistics(channels[-1], config.enc_attention_channels)
        self.fc = _conv(2 * channels[-1], config.enc_dim)

    def forward(self, mel: Tensor) -> Tensor:
        x = mel.transpose(1, 2)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(outputs[1:], 1)))).squeeze(2)

    @torch.no_grad()
    def embed(self, samples: Tensor) -> Tensor:
        """Returns the x-vector [enc_dim] of mono samples [N] in -1..1 at 24 kHz. Raises ValueError if too few."""
        if samples.ndim != 1 or len(samples) < MIN_SAMPLES:
            raise ValueError(f"reference audio: shape {tuple(samples.shape)} must be [N], N at least {MIN_SAMPLES}")
        weight = self.fc.weight
        mel = mel_spectrogram(samples[None].to(weight.device), self.bands)
        return self(mel.to(weight.dtype))[0]
