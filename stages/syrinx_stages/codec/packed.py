"""The codec decoder's weights as the kernels read them: taps side by side, norms and scales folded in, made once.

Channels are padded with zeros to a multiple of `GRAIN`; a padded channel stays zero all the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.codec_layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    DecoderBlock,
    Linear,
    SnakeBeta,
)
from syrinx_stages.model.codec_transformer import Layer

GRAIN = 16
"""The least inner size of a tensor core's product; 16 elements are also whole 16-byte accesses."""


@dataclass(frozen=True)
class Product:
    """A convolution: `weight` [outer (twice that if gated), taps x inner], `bias` [outer] float32."""

    weight: Tensor
    bias: Tensor | None
    inner: int
    outer: int
    taps: int = 1
    dilation: int = 1
    up: int = 1
    """Positions that one position becomes: outer / up channels each."""
    norm: int = 0
    """Channels of the RMS norm of the input, 0 for none; its weight is in `weight`."""
    gated: bool = False
    gelu: bool = False

    @property
    def channels(self) -> int:
        """Of one output position."""
        return self.outer // self.up

    @property
    def tail(self) -> int:
        """Past positions that it reads."""
        return (self.taps - 1) * self.dilation


@dataclass(frozen=True)
class Snake:
    """SnakeBeta's `frequency` and `magnitude` [channels x up] float32: repeated for a producer of `up` positions."""

    frequency: Tensor
    magnitude: Tensor


@dataclass(frozen=True)
class PackedLayer:
    """A transformer layer: norms and layer scales are in the products."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product


@dataclass(frozen=True)
class PackedUpsample:
    """A transposed convolution and a ConvNeXt block, its norm's weight and its gamma in the products."""

    up: Product
    depthwise: Tensor
    """[taps, channels] float32."""
    depthwise_bias: Tensor
    eps: float
    wide: Product
    narrow: Product


@dataclass(frozen=True)
class PackedUnit:
    """A residual unit, and the SnakeBeta that hears its result."""

    conv: Product
    inner: Snake
    point: Product
    after: Snake


@dataclass(frozen=True)
class PackedBlock:
    """A decoder block: what it hears is activated already."""

    up: Product
    after: Snake
    units: tuple[PackedUnit, ...]


class PackedDecoder:
    """All of a decoder's weights, in `kind`, on `device`."""

    def __init__(self, decoder: CodecDecoder, device: torch.device, kind: torch.dtype) -> None:
        """Raises ValueError for attention heads whose widths together are no multiple of `GRAIN`."""
        self.config = config = decoder.config
        if config.num_attention_heads * config.head_size % GRAIN:
            raise ValueError(f"{config.num_attention_heads} heads of {config.head_size} are no multiple of {GRAIN}")
        self._device, self._kind = device, kind
        self.tables = self._weight(decoder.quantizer.derive()[0])
        self.pre_conv = self._conv(decoder.pre_conv)
        transformer: Any = decoder.pre_transformer
        self.input = self._linear(transformer.input_proj)
        self.layers = tuple(self._layer(layer) for layer in transformer.layers)
        self.output = self._linear(transformer.output_proj, before=transformer.norm.weight)
        half = torch.arange(0, config.head_size, 2, device=device).float()
        self.rotary = 1.0 / config.rope_theta ** (half / config.head_size)
        stages: Any = decoder.upsample
        self.upsample = tuple(self._upsample(up, block) for up, block in stages)
        modules: Any = decoder.decoder
        first, *blocks, snake, last = modules
        self.first = self._conv(first)
        # Each activation is written by the kernel before it.
        heard = [block.block[0] for block in blocks] + [snake]
        self.first_snake = self._snake(heard[0])
        self.blocks = tuple(self._block(block, after) for block, after in zip(blocks, heard[1:], strict=True))
        self.wave = self._vector(_padded(last.conv.weight[0].T, 1))
        """[taps, channels] float32."""
        self.wave_bias = self._vector(last.conv.bias)

    def _weight(self, matrix: Tensor) -> Tensor:
        return _padded(_padded(matrix, 0), 1).to(self._device, self._kind).contiguous()

    def _vector(self, value: Tensor) -> Tensor:
        return value.detach().float().to(self._device).contiguous()

    def _bias(self, value: Tensor) -> Tensor:
        return self._vector(_padded(value, 0))

    def _matrix(self, weight: Tensor, bias: Tensor | None = None, **what: Any) -> Product:
        """A product of one tap; weight: [outer, inner]."""
        packed = self._weight(weight)
        outer, inner = packed.shape
        return Product(packed, None if bias is None else self._bias(bias), inner, outer, **what)

    def _linear(self, layer: Linear, before: Tensor | None = None) -> Product:
        """before: the weight of an RMS norm of the input."""
        weight = layer.weight.detach().float()
        if before is None:
            return self._matrix(weight, layer.bias)
        return self._matrix(weight * before, layer.bias, norm=weight.shape[1])

    def _conv(self, conv: CausalConv) -> Product:
        weight = _padded(_padded(conv.conv.weight, 0), 1)
        outer, inner, taps = weight.shape
        flat = self._weight(weight.permute(0, 2, 1).flatten(1))
        return Product(flat, self._bias(conv.conv.bias), inner, outer, taps, conv.dilation)

    def _transposed(self, conv: CausalTransposedConv) -> Product:
        """Output n = phase x channels + channel; to it the position before gives the second half of its kernel."""
        weight = _padded(_padded(conv.conv.weight, 0), 1)
        inner, channels, kernel = weight.shape
        taps, outer = kernel // conv.stride, conv.stride * channels
        # [inner, channels, age, phase] -> [phase, channels, oldest first, inner]
        parts = weight.view(inner, channels, taps, conv.stride).flip(2).permute(3, 1, 2, 0)
        bias = self._bias(conv.conv.bias).repeat(conv.stride)
        return Product(self._weight(parts.reshape(outer, taps * inner)), bias, inner, outer, taps, up=conv.stride)

    def _layer(self, layer: Layer) -> PackedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        heads = torch.cat([each.weight.detach() for each in (attention.q_proj, attention.k_proj, attention.v_proj)])
        before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        out = attention.o_proj.weight * layer.self_attn_layer_scale.scale[:, None]
        down = mlp.down_proj.weight * layer.mlp_layer_scale.scale[:, None]
        gates = torch.cat([_padded(each.weight * after, 0) for each in (mlp.gate_proj, mlp.up_proj)])
        gate_up = self._matrix(gates, norm=len(after), gated=True)
        return PackedLayer(
            qkv=self._matrix(heads * before, norm=len(before)),
            out=self._matrix(out),
            gate_up=replace(gate_up, outer=gate_up.outer // 2),
            down=self._matrix(down),
        )

    def _upsample(self, up: CausalTransposedConv, block: ConvNeXtBlock) -> PackedUpsample:
        norm, gamma = block.norm, block.gamma.detach().float()
        wide, narrow = block.pwconv1.weight.detach().float(), block.pwconv2.weight.detach().float()
        wide_bias, narrow_bias = block.pwconv1.bias, block.pwconv2.bias
        assert wide_bias is not None and narrow_bias is not None
        return PackedUpsample(
            up=self._transposed(up),
            depthwise=self._vector(_padded(block.dwconv.conv.weight[:, 0].T, 1)),
            depthwise_bias=self._bias(block.dwconv.conv.bias),
            eps=norm.eps,
            wide=self._matrix(wide * norm.weight, wide_bias + wide @ norm.bias.float(), gelu=True),
            narrow=self._matrix(narrow * gamma[:, None], narrow_bias * gamma),
        )

    def _block(self, block: DecoderBlock, heard: SnakeBeta) -> PackedBlock:
        modules: Any = block.block
        _, up, *units = modules
        product = self._transposed(up)
        after = [unit.act1 for unit in units[1:]] + [heard]
        return PackedBlock(
            up=product,
            after=self._snake(units[0].act1, product.up),
            units=tuple(
                PackedUnit(
                    conv=self._conv(unit.conv1),
                    inner=self._snake(unit.act2),
                    point=self._matrix(unit.conv2.conv.weight[:, :, 0], unit.conv2.conv.bias),
                    after=self._snake(snake),
                )
                for unit, snake in zip(units, after, strict=True)
            ),
        )

    def _snake(self, snake: SnakeBeta, up: int = 1) -> Snake:
        frequency, magnitude = snake.derive()
        return Snake(self._bias(frequency).repeat(up), self._bias(magnitude).repeat(up))


def _padded(value: Tensor, axis: int) -> Tensor:
    """In float32, with zeros at the end of an axis up to a multiple of `GRAIN`."""
    value = value.detach().float()
    short = -value.shape[axis] % GRAIN
    return F.pad(value, (0, 0) * (value.dim() - 1 - axis) + (0, short)) if short else value
