"""The convolutions and activations of the codec decoder, streaming and channels-last.

Convolutions are matrix products over [positions, channels]. Weights have the checkpoint's names and shapes; their
memory order is that of the products, so no second copy is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import layers
from .codec_state import Carry, StateLayout
from .linear import add_product


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

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def derive(self) -> tuple[Tensor, ...]:
        """Returns frequency and inverse magnitude [channels]."""
        return self.alpha.detach().exp(), 1 / (self.beta.detach().exp() + 1e-9)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        frequency, inverse_magnitude = self.derived()
        wave = (x * frequency).sin_()
        return torch.addcmul(x, wave.mul_(wave), inverse_magnitude, out=out)


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


class ConvWeights(nn.Module):
    """A convolution's `weight` [out, in, taps], or [in, out, taps] if transposed, and `bias` [out]."""

    def __init__(self, inputs: int, outputs: int, taps: int, transposed: bool = False) -> None:
        super().__init__()
        if transposed:
            self._order, official = (0, 2, 1), torch.zeros(inputs, taps, outputs).permute(0, 2, 1)
        else:
            self._order, official = (2, 1, 0), torch.zeros(taps, inputs, outputs).permute(2, 1, 0)
        self.weight = nn.Parameter(official)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def taps(self) -> Tensor:
        """The weight in memory order: [taps, in, out], or [in, taps, out] if transposed."""
        return self.weight.permute(self._order)


class CausalConv(nn.Module):
    """A convolution over this and past positions: [B, T, in] to [B, T, out].

    One product per tap over the shifted buffer takes less memory traffic than gathering windows of all taps. The batch
    is flattened to one sequence of rows; the few rows that span two requests are computed and ignored.
    """

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = ConvWeights(inputs, outputs, taps)
        self.dilation = dilation
        self.slot = layout.reserve((taps - 1) * dilation, inputs)

    def forward(self, x: Tensor, carry: Carry, activation: SnakeBeta | None = None) -> Tensor:
        batch, positions, _ = x.shape
        history = self.slot.positions
        rows = batch * (history + positions) - history
        buffer = carry.open(self.slot, positions)
        if activation is None:
            buffer[:, history:] = x
        else:
            # Written directly to the buffer that the taps read.
            activation(x, out=buffer[:, history:])
        carry.close(self.slot, buffer)
        flat = buffer.flatten(0, 1)
        y = self.conv.bias.repeat(rows, 1)
        for tap, weight in enumerate(self.conv.taps):
            add_product(y, flat[tap * self.dilation :][:rows], weight)
        outputs = y.shape[1]
        return y.as_strided((batch, positions, outputs), ((history + positions) * outputs, outputs, 1))


class PointwiseConv(nn.Module):
    """A convolution with one tap: [B, T, in] to [B, T, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = ConvWeights(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        y = self.conv.bias.repeat(len(rows), 1)
        return add_product(y, rows, self.conv.taps[0]).view(*x.shape[:2], -1)


class CausalTransposedConv(nn.Module):
    """Upsamples by `stride` with `taps` = stride or 2 * stride: [B, T, in] to [B, T * stride, out].

    The second half of each position's kernel is added to the next position's outputs; the last one is carried over.
    """

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, stride: int) -> None:
        super().__init__()
        self.conv = ConvWeights(inputs, outputs, taps, transposed=True)
        self.outputs, self.stride = outputs, stride
        self.slot = layout.reserve(1, stride * outputs) if taps > stride else None
        layout.rate *= stride

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        batch, positions, _ = x.shape
        weight = self.conv.taps.flatten(1)
        y = add_product(x.new_zeros(batch * positions, weight.shape[1]), x.flatten(0, 1), weight)
        y = y.view(batch, positions, -1)
        if self.slot is not None:
            width = self.slot.channels
            overlap = carry.open(self.slot, positions)
            overlap[:, 1:] = y[..., width:]
            carry.close(self.slot, overlap)
            y = y[..., :width] + overlap[:, :positions]
        return y.view(batch, positions * self.stride, self.outputs).add_(self.conv.bias)


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
        for tap, weight in enumerate(self.conv.taps.squeeze(1)):
            y.addcmul_(buffer[:, tap : tap + positions], weight)
        return y


class WaveConv(nn.Module):
    """The last convolution, to one channel: [B, T, in] to [B, T].

    The order of summation of a product with one column would depend on the row count. Instead each tap is a column, and
    the shifted columns are added in order.
    """

    def __init__(self, layout: StateLayout, inputs: int, taps: int) -> None:
        super().__init__()
        self.conv = ConvWeights(inputs, 1, taps)
        self.taps = taps
        self.slot = layout.reserve(taps - 1, taps)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        positions = x.shape[1]
        products = carry.open(self.slot, positions)
        rows = x.flatten(0, 1)
        product = add_product(x.new_zeros(len(rows), self.taps), rows, self.conv.taps.squeeze(2).T)
        products[:, self.slot.positions :] = product.view(*x.shape[:2], self.taps)
        carry.close(self.slot, products)
        y = products[:, :positions, 0] + self.conv.bias
        for tap in range(1, self.taps):
            y += products[:, tap : tap + positions, tap]
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
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, channels, channels, taps=7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
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
            [SnakeBeta(inputs), CausalTransposedConv(layout, inputs, outputs, 2 * rate, rate)]
            + [ResidualUnit(layout, outputs, dilation) for dilation in (1, 3, 9)]
        )

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        snake, upsample, *units = self.block
        x = upsample(snake(x), carry)
        for unit in units:
            x = unit(x, carry)
        return x
