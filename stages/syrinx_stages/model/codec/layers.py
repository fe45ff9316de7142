"""The convolutions and activations of the codec decoder, streaming and channels-last.

Activations are [batch, positions, channels]. Weights have the checkpoint's names and shapes; their memory order is that
of the computation, so no second copy is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from syrinx_stages.model import layers
from syrinx_stages.model.codec.state import Carry, StateLayout
from syrinx_stages.model.linear import column_major, convolve, linear

WIDE = 512
"""Elements per row from which on an elementwise operation is as quick as on a whole tensor."""

FEW_POSITIONS = 16
"""Positions of a frame up to which a convolution is a product of gathered windows: one kernel for few rows."""


class Derived(nn.Module):
    """A module with values derived from its parameters: computed at first use and again after loading or moving."""

    _values: tuple[Tensor, ...] | None = None

    def derive(self) -> tuple[Tensor, ...]:
        """Computes the values from the current parameters."""
        raise NotImplementedError

    def derived(self) -> tuple[Tensor, ...]:
        if self._values is None:
            self._values = self.derive()
        return self._values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Derived:
        self._values = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self._values = None
        super()._load_from_state_dict(*args)


class SnakeBeta(Derived):
    """x + sin^2(x e^alpha) / (e^beta + 1e-9), per channel (https://arxiv.org/abs/2006.08195, with a magnitude)."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        most = max(1, WIDE // channels)
        self._group = max(count for count in range(1, most + 1) if layout.rate % count == 0)
        """Positions that are computed as one: elementwise operations on a few channels are slow."""

    def channel_values(self) -> tuple[Tensor, Tensor]:
        """Returns frequency and inverse magnitude [channels]."""
        return self.alpha.detach().exp(), 1 / (self.beta.detach().exp() + 1e-9)

    def derive(self) -> tuple[Tensor, ...]:
        """Returns frequency and inverse magnitude of the channels of a group of positions."""
        return tuple(value.repeat(self._group) for value in self.channel_values())

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Writes the result to `out`, which may be x, and returns it; both [B, T, channels]."""
        frequency, inverse_magnitude = self.derived()
        groups = (x.shape[0], -1, len(frequency))
        wave = sin_(x.view(groups) * frequency)
        torch.addcmul(x.view(groups), wave.mul_(wave), inverse_magnitude, out=out.view(groups))
        return out


def sin_(x: Tensor) -> Tensor:
    """Replaces the values of a contiguous tensor by their sines, and returns it."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.sin_()
    # With AVX-512 it takes less than half the time of PyTorch's, with AVX2 as long.
    np.sin(values := x.numpy(), out=values)
    return x


def silu(x: Tensor) -> Tensor:
    """Returns x / (1 + e^-x). The CPU's own SiLU rounds the last elements of a tensor differently."""
    return x / x.neg().exp_().add_(1)


def gelu(x: Tensor) -> Tensor:
    """GELU from the error function. The CPU's own GELU rounds the last elements of a tensor differently."""
    return (x * math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5)


class Linear(layers.Linear):
    """A linear layer for few rows, with zero weights at first."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class ConvWeights(layers.Product):
    """A convolution's `weight` [out, in, taps], or [in, out, taps] if transposed, and `bias` [out]."""

    def __init__(self, inputs: int, outputs: int, taps: int, *, few: bool = False, transposed: bool = False) -> None:
        """`few`: whether the products have few rows."""
        super().__init__()
        self._few, self._transposed = few, transposed
        shape = (taps, outputs, inputs) if transposed else (outputs, taps, inputs)
        outer, inner = (taps * outputs, inputs) if transposed else (outputs, taps * inputs)
        matrix = column_major(outer, inner).zero_() if few else torch.zeros(outer, inner)
        official = matrix.view(shape).permute(2, 1, 0) if transposed else matrix.view(shape).mT
        self.weight = nn.Parameter(official)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def matrix(self) -> Tensor:
        """The weight as [out, taps * in] or, if transposed, [taps * out, in]."""
        if self._transposed:
            return self.weight.permute(2, 1, 0).flatten(0, 1)
        return self.weight.mT.flatten(1)

    def pack(self) -> None:
        if self._few:
            super().pack()


class CausalConv(nn.Module):
    """A convolution over this and past positions: [B, T, in] to [B, T, out]."""

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self._few = layout.rate <= FEW_POSITIONS
        self.conv = ConvWeights(inputs, outputs, taps, few=self._few)
        self.taps, self.dilation = taps, dilation
        self.slot = layout.reserve((taps - 1) * dilation, inputs)

    def forward(self, x: Tensor, carry: Carry, activation: SnakeBeta | None = None) -> Tensor:
        history = self.slot.positions
        buffer = carry.open(self.slot, x.shape[1])
        if activation is None:
            buffer[:, history:] = x
        else:
            # Written directly to the buffer that the convolution reads.
            activation(x, out=buffer[:, history:])
        carry.close(self.slot, buffer)
        if not self._few:
            return convolve(buffer, self.conv.matrix, self.conv.bias, self.dilation)
        windows = buffer.unfold(1, history + 1, 1)[..., :: self.dilation]
        y = linear(windows.mT.reshape(-1, self.taps * x.shape[2]), self.conv.operand, self.conv.bias)
        return y.view(*x.shape[:2], -1)


class PointwiseConv(nn.Module):
    """A convolution with one tap: [B, T, in] to [B, T, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = ConvWeights(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.conv.matrix, self.conv.bias)


class CausalTransposedConv(Derived):
    """Upsamples by `stride` with `taps` = stride or 2 * stride: [B, T, in] to [B, T * stride, out].

    The second half of each position's kernel is added to the next position's outputs; the last one is carried over.
    """

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, stride: int) -> None:
        super().__init__()
        self._few = layout.rate <= FEW_POSITIONS
        self.conv = ConvWeights(inputs, outputs, taps, few=self._few, transposed=True)
        self.outputs, self.stride = outputs, stride
        self.slot = layout.reserve(1, stride * outputs) if taps > stride else None
        layout.rate *= stride

    def derive(self) -> tuple[Tensor, ...]:
        """Returns the bias of each tap and channel, which the first half of the kernel has: [taps * out]."""
        bias = self.conv.bias.detach().repeat(self.stride)
        return (bias if self.slot is None else torch.cat((bias, torch.zeros_like(bias))),)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        batch, positions, _ = x.shape
        (bias,) = self.derived()
        if self._few:
            y = linear(x.flatten(0, 1), self.conv.operand, bias).view(batch, positions, -1)
        else:
            y = convolve(x, self.conv.matrix, bias)
        if self.slot is not None:
            width = self.slot.channels
            overlap = carry.open(self.slot, positions)
            overlap[:, 1:] = y[..., width:]
            carry.close(self.slot, overlap)
            y = y[..., :width] + overlap[:, :positions]
        return y.view(batch, positions * self.stride, self.outputs)


class CausalDepthwiseConv(nn.Module):
    """A convolution of each channel separately: [B, T, channels]. Taps are added in order."""

    def __init__(self, layout: StateLayout, channels: int, taps: int) -> None:
        super().__init__()
        self.conv = ConvWeights(1, channels, taps)
        self.slot = layout.reserve(taps - 1, channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        positions = x.shape[1]
        buffer = carry.open(self.slot, positions)
        buffer[:, self.slot.positions :] = x
        carry.close(self.slot, buffer)
        y = self.conv.bias.repeat(*x.shape[:2], 1)
        for tap, weight in enumerate(self.conv.weight.squeeze(1).unbind(1)):
            y.addcmul_(buffer[:, tap : tap + positions], weight)
        return y


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm and a 4x MLP with a scaled residual (https://arxiv.org/abs/2201.03545)."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalDepthwiseConv(layout, channels, taps=7)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = Linear(channels, 4 * channels, bias=True)
        self.pwconv2 = Linear(4 * channels, channels, bias=True)
        self.gamma = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = self.norm(self.dwconv(x, carry)).flatten(0, 1)
        return torch.addcmul(x, self.pwconv2(gelu(self.pwconv1(y))).view_as(x), self.gamma)


class ResidualUnit(nn.Module):
    """x + conv2(act2(conv1(act1(x)))): a dilated and a pointwise convolution of [B, T, channels]."""

    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(layout, channels)
        self.conv1 = CausalConv(layout, channels, channels, taps=7, dilation=dilation)
        self.act2 = SnakeBeta(layout, channels)
        self.conv2 = PointwiseConv(channels, channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = self.conv1(x, carry, activation=self.act1)
        return self.conv2(self.act2(y, out=y)).add_(x)


class DecoderBlock(nn.Module):
    """Upsamples by `rate` and applies three residual units: [B, T, inputs] to [B, T * rate, inputs / 2]."""

    def __init__(self, layout: StateLayout, inputs: int, rate: int) -> None:
        super().__init__()
        outputs = inputs // 2
        self.block = nn.ModuleList(
            [SnakeBeta(layout, inputs), CausalTransposedConv(layout, inputs, outputs, 2 * rate, rate)]
            + [ResidualUnit(layout, outputs, dilation) for dilation in (1, 3, 9)]
        )

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        snake, upsample, *units = self.block
        x = upsample(snake(x, out=x), carry)
        for unit in units:
            x = unit(x, carry)
        return x
