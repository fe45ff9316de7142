"""The codec decoder's convolutions and activations, streaming and channels-last.

Every convolution is a matrix product over [positions, taps x channels]. Weights keep the checkpoint's names and shapes,
but their memory is laid out in the order of that product, so that no second copy of them exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_state import Carry, StateLayout
from .linear import linear


class Derived(nn.Module):
    """A module that computes with values derived from its parameters: made at first use, anew after a load or move."""

    _values: tuple[Tensor, ...] | None = None

    def derive(self) -> tuple[Tensor, ...]:
        """The values, from the parameters as they are now."""
        raise NotImplementedError

    def derived(self) -> tuple[Tensor, ...]:
        """The values in use."""
        if self._values is None:
            self._values = self.derive()
        return self._values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Derived:
        self._values = None
        super()._apply(fn, recurse)
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
        """Frequency and inverse magnitude [channels]."""
        return self.alpha.detach().exp(), 1 / (self.beta.detach().exp() + 1e-9)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: [..., channels]; written to `out` if given."""
        frequency, inverse_magnitude = self.derived()
        wave = (x * frequency).sin_()
        return torch.addcmul(x, wave.mul_(wave), inverse_magnitude, out=out)


class ConvWeights(nn.Module):
    """`weight` [a, b, taps] and `bias` as a checkpoint has them, the weight's memory in the product's order."""

    def __init__(self, a: int, b: int, taps: int, memory: tuple[int, int, int], bias: int) -> None:
        """`memory`: the order of the axes of `weight` in memory, outermost first."""
        super().__init__()
        shape = (a, b, taps)
        back = tuple(memory.index(axis) for axis in range(3))
        self.weight = nn.Parameter(torch.zeros([shape[axis] for axis in memory]).permute(back))
        self.bias = nn.Parameter(torch.zeros(bias))


class CausalConv(nn.Module):
    """A convolution over this and past positions: [B, T, in] to [B, T, out]."""

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = ConvWeights(outputs, inputs, taps, memory=(0, 2, 1), bias=outputs)
        self.taps, self.dilation = taps, dilation
        self.slot = layout.reserve((taps - 1) * dilation, inputs)

    def forward(self, x: Tensor, carry: Carry, activation: SnakeBeta | None = None) -> Tensor:
        """Convolves `activation(x)`, which is written straight to where the windows are read."""
        batch, positions, channels = x.shape
        buffer = carry.open(self.slot, positions)
        fresh = buffer[:, self.slot.positions :]
        if activation is None:
            fresh.copy_(x)
        else:
            activation(x, out=fresh)
        carry.close(self.slot, buffer)
        step = self.dilation * channels
        windows = buffer.as_strided((batch, positions, self.taps, channels), (buffer.stride(0), channels, step, 1))
        matrix = self.conv.weight.permute(0, 2, 1).flatten(1)
        return linear(windows.contiguous().flatten(2), matrix, self.conv.bias)


class PointwiseConv(nn.Module):
    """A convolution with one tap: [B, T, in] to [B, T, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = ConvWeights(outputs, inputs, 1, memory=(0, 2, 1), bias=outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, in]."""
        return linear(x, self.conv.weight.flatten(1), self.conv.bias)


class CausalTransposedConv(nn.Module):
    """Upsamples by `stride` with kernel `taps` = stride or 2 x stride: [B, T, in] to [B, T x stride, out].

    The second half of each position's kernel adds to the next position's outputs; the last one's is carried.
    """

    def __init__(self, layout: StateLayout, inputs: int, outputs: int, taps: int, stride: int) -> None:
        super().__init__()
        if taps not in (stride, 2 * stride):
            raise ValueError(f"transposed convolution: kernel {taps} must be the stride {stride} or twice it")
        self.conv = ConvWeights(inputs, outputs, taps, memory=(2, 1, 0), bias=outputs)
        self.outputs, self.stride = outputs, stride
        self.slot = layout.reserve(1, stride * outputs) if taps > stride else None

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, in]."""
        batch, positions, _ = x.shape
        y = linear(x, self.conv.weight.permute(2, 1, 0).flatten(0, 1))
        if self.slot is not None:
            width = self.slot.channels
            overlap = carry.open(self.slot, positions)
            overlap[:, 1:] = y[..., width:]
            carry.close(self.slot, overlap)
            y = y[..., :width] + overlap[:, :positions]
        return y.view(batch, positions * self.stride, self.outputs).add_(self.conv.bias)


class CausalDepthwiseConv(nn.Module):
    """A convolution of each channel by itself: [B, T, channels], the taps added in order."""

    def __init__(self, layout: StateLayout, channels: int, taps: int) -> None:
        super().__init__()
        self.conv = ConvWeights(channels, 1, taps, memory=(2, 1, 0), bias=channels)
        self.slot = layout.reserve(taps - 1, channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, channels]."""
        positions = x.shape[1]
        buffer = carry.open(self.slot, positions)
        buffer[:, self.slot.positions :] = x
        carry.close(self.slot, buffer)
        y = self.conv.bias.expand(x.shape).contiguous()
        for tap, weight in enumerate(self.conv.weight.permute(2, 1, 0).squeeze(1)):
            y.addcmul_(buffer[:, tap : tap + positions], weight)
        return y


class WaveConv(nn.Module):
    """The last convolution, to one channel: [B, T, in] to [B, T].

    A product with one column would sum in an order that depends on the row count, so each tap is a column of its own
    and their products are added in order, shifted.
    """

    def __init__(self, layout: StateLayout, inputs: int, taps: int) -> None:
        super().__init__()
        self.conv = ConvWeights(1, inputs, taps, memory=(0, 2, 1), bias=1)
        self.taps = taps
        self.slot = layout.reserve(taps - 1, taps)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, in]."""
        positions = x.shape[1]
        products = carry.open(self.slot, positions)
        products[:, self.slot.positions :] = linear(x, self.conv.weight.permute(0, 2, 1).squeeze(0))
        carry.close(self.slot, products)
        y = products[:, :positions, 0] + self.conv.bias
        for tap in range(1, self.taps):
            y += products[:, tap : tap + positions, tap]
        return y


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm and a 4x MLP, scaled and added: [B, T, channels] (https://arxiv.org/abs/2201.03545)."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalDepthwiseConv(layout, channels, taps=7)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, channels]."""
        y = self.norm(self.dwconv(x, carry))
        y = F.gelu(linear(y, self.pwconv1.weight, self.pwconv1.bias))
        return torch.addcmul(x, linear(y, self.pwconv2.weight, self.pwconv2.bias), self.gamma)


class ResidualUnit(nn.Module):
    """x + a pointwise convolution of a dilated one, a SnakeBeta before each: [B, T, channels]."""

    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, channels, channels, taps=7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = PointwiseConv(channels, channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, channels]."""
        y = self.conv1(x, carry, activation=self.act1)
        y = self.conv2(self.act2(y, out=y))
        return y.add_(x)


class DecoderBlock(nn.Module):
    """Upsamples by `rate` and refines: [B, T, inputs] to [B, T x rate, inputs / 2]."""

    def __init__(self, layout: StateLayout, inputs: int, rate: int) -> None:
        super().__init__()
        outputs = inputs // 2
        self.block = nn.ModuleList(
            [SnakeBeta(inputs), CausalTransposedConv(layout, inputs, outputs, 2 * rate, rate)]
            + [ResidualUnit(layout, outputs, dilation) for dilation in (1, 3, 9)]
        )

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, T, inputs]."""
        snake, upsample, *units = self.block
        x = upsample(snake(x), carry)
        for unit in units:
            x = unit(x, carry)
        return x
