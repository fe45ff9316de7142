"""The codec decoder's weights in the layout the kernels read, with norm weights and layer scales folded in.

Channels are zero-padded to a multiple of `CHANNEL_MULTIPLE`; padding channels stay zero through all layers.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    DecoderBlock,
    Linear,
    SnakeBeta,
)
from syrinx_stages.model.codec.transformer import Layer

CHANNEL_MULTIPLE = 16
"""The smallest inner size of a tensor core product; it also makes all 16-byte accesses whole."""


@dataclass(frozen=True)
class Conv:
    """A causal convolution as a matrix product; see `kernels.codec_conv.causal_conv`."""

    weight: Tensor
    """[outputs, taps * in_channels]; gated: [2 * outputs, taps * in_channels]."""
    bias: Tensor | None
    """[outputs] float32."""
    in_channels: int
    outputs: int
    """upsampling * out_channels."""
    taps: int = 1
    dilation: int = 1
    upsampling: int = 1
    """Output positions per input position: the stride of a transposed convolution."""
    norm: int = 0
    """Channels of an RMS norm of the input whose weight is folded into `weight`; 0: no norm."""
    gated: bool = False
    gelu: bool = False
    snake: tuple[Tensor, Tensor] | None = None
    """Frequency and magnitude [outputs] float32 of a SnakeBeta that follows."""

    @property
    def out_channels(self) -> int:
        """Channels of one output position."""
        return self.outputs // self.upsampling

    @property
    def tail(self) -> int:
        """Past positions that an output position depends on."""
        return (self.taps - 1) * self.dilation


class TransformerLayer(NamedTuple):
    """A transformer layer; RMS norm weights and layer scales are folded into the matrices."""

    qkv: Conv
    out: Conv
    gate_up: Conv
    down: Conv


class UpsampleStage(NamedTuple):
    """A transposed convolution and a ConvNeXt block, whose norm weight and gamma are folded into the matrices."""

    up: Conv
    depthwise: Tensor
    """[taps, channels] float32."""
    depthwise_bias: Tensor
    """[channels] float32."""
    eps: float
    expand: Conv
    project: Conv


class ResidualUnit(NamedTuple):
    """A dilated and a pointwise convolution, each followed by the SnakeBeta of the next layer."""

    conv: Conv
    point: Conv


class UpsampleBlock(NamedTuple):
    """A transposed convolution, followed by the first unit's SnakeBeta, and residual units."""

    up: Conv
    units: tuple[ResidualUnit, ...]


class CodecWeights:
    """All weights of a decoder in `dtype` on `device`. A SnakeBeta belongs to the convolution before it."""

    def __init__(self, decoder: CodecDecoder, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ValueError if the total width of the attention heads is not a multiple of `CHANNEL_MULTIPLE`."""
        self.config = config = decoder.config
        if config.num_attention_heads * config.head_size % CHANNEL_MULTIPLE:
            heads = f"{config.num_attention_heads} heads of {config.head_size}"
            raise ValueError(f"the width of {heads} is not a multiple of {CHANNEL_MULTIPLE}")
        self.device, self.dtype = device, dtype
        self.codebooks = self._matrix(decoder.quantizer.derive()[0])
        """[codebooks * codebook_size, channels]."""
        self.pre_conv = self._conv(decoder.pre_conv)
        transformer: Any = decoder.pre_transformer
        self.input = self._linear(transformer.input_proj)
        self.layers = tuple(self._layer(layer) for layer in transformer.layers)
        self.output = self._linear(transformer.output_proj, norm_weight=transformer.norm.weight)
        exponents = torch.arange(0, config.head_size, 2, device=device).float() / config.head_size
        self.inverse_frequencies = 1.0 / config.rope_theta**exponents
        """[head_size / 2] float32, of the rotary embedding."""
        stages: Any = decoder.upsample
        self.upsample = tuple(self._upsample_stage(up, block) for up, block in stages)
        modules: Any = decoder.decoder
        first, *blocks, snake, last = modules
        snakes = [block.block[0] for block in blocks] + [snake]
        self.first = self._conv(first, snakes[0])
        self.blocks = tuple(self._block(block, after) for block, after in zip(blocks, snakes[1:], strict=True))
        self.waveform = self._float(_padded(last.conv.weight[0].T, 1))
        """[taps, channels] float32."""
        self.waveform_bias = self._float(last.conv.bias)

    def _matrix(self, matrix: Tensor) -> Tensor:
        return _padded(_padded(matrix, 0), 1).to(self.device, self.dtype).contiguous()

    def _float(self, value: Tensor) -> Tensor:
        return value.detach().float().to(self.device).contiguous()

    def _vector(self, value: Tensor) -> Tensor:
        return self._float(_padded(value, 0))

    def _product(self, weight: Tensor, bias: Tensor | None = None, **fields: Any) -> Conv:
        """Returns a one-tap convolution of weight [outputs, in_channels]."""
        packed = self._matrix(weight)
        outputs, in_channels = packed.shape
        return Conv(packed, None if bias is None else self._vector(bias), in_channels, outputs, **fields)

    def _linear(self, layer: Linear, norm_weight: Tensor | None = None) -> Conv:
        """norm_weight: of an RMS norm of the input."""
        weight = layer.weight.detach().float()
        if norm_weight is None:
            return self._product(weight, layer.bias)
        return self._product(weight * norm_weight, layer.bias, norm=weight.shape[1])

    def _conv(self, conv: CausalConv, snake: SnakeBeta | None = None) -> Conv:
        weight = _padded(_padded(conv.conv.weight, 0), 1)
        outputs, in_channels, taps = weight.shape
        flat = self._matrix(weight.permute(0, 2, 1).flatten(1))
        bias = self._vector(conv.conv.bias)
        return Conv(flat, bias, in_channels, outputs, taps, conv.dilation, snake=self._snake(snake))

    def _transposed_conv(self, conv: CausalTransposedConv, snake: SnakeBeta | None = None) -> Conv:
        """Output n is channel n % channels of phase n // channels. The previous input position is the first tap."""
        weight = _padded(_padded(conv.conv.weight, 0), 1)
        in_channels, channels, kernel = weight.shape
        taps, outputs = kernel // conv.stride, conv.stride * channels
        # [in_channels, channels, tap, phase] -> [phase, channels, tap (oldest first), in_channels]
        phases = weight.view(in_channels, channels, taps, conv.stride).flip(2).permute(3, 1, 2, 0)
        flat = self._matrix(phases.reshape(outputs, taps * in_channels))
        bias = self._vector(conv.conv.bias).repeat(conv.stride)
        parameters = self._snake(snake, conv.stride)
        return Conv(flat, bias, in_channels, outputs, taps, upsampling=conv.stride, snake=parameters)

    def _layer(self, layer: Layer) -> TransformerLayer:
        attention, mlp = layer.self_attn, layer.mlp
        heads = torch.cat([proj.weight.detach() for proj in (attention.q_proj, attention.k_proj, attention.v_proj)])
        attention_norm, mlp_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        gates = torch.cat([_padded(proj.weight * mlp_norm, 0) for proj in (mlp.gate_proj, mlp.up_proj)])
        gate_up = self._product(gates, norm=len(mlp_norm), gated=True)
        return TransformerLayer(
            qkv=self._product(heads * attention_norm, norm=len(attention_norm)),
            out=self._product(attention.o_proj.weight * layer.self_attn_layer_scale.scale[:, None]),
            gate_up=replace(gate_up, outputs=gate_up.outputs // 2),
            down=self._product(mlp.down_proj.weight * layer.mlp_layer_scale.scale[:, None]),
        )

    def _upsample_stage(self, up: CausalTransposedConv, block: ConvNeXtBlock) -> UpsampleStage:
        norm, gamma = block.norm, block.gamma.detach().float()
        expand, project = block.pwconv1.weight.detach().float(), block.pwconv2.weight.detach().float()
        expand_bias, project_bias = block.pwconv1.bias, block.pwconv2.bias
        assert expand_bias is not None and project_bias is not None
        return UpsampleStage(
            up=self._transposed_conv(up),
            depthwise=self._float(_padded(block.dwconv.conv.weight[:, 0].T, 1)),
            depthwise_bias=self._vector(block.dwconv.conv.bias),
            eps=norm.eps,
            expand=self._product(expand * norm.weight, expand_bias + expand @ norm.bias.float(), gelu=True),
            project=self._product(project * gamma[:, None], project_bias * gamma),
        )

    def _block(self, block: DecoderBlock, next_snake: SnakeBeta) -> UpsampleBlock:
        modules: Any = block.block
        _, up, *units = modules
        snakes = [unit.act1 for unit in units] + [next_snake]
        return UpsampleBlock(
            self._transposed_conv(up, snakes[0]),
            tuple(
                ResidualUnit(
                    self._conv(unit.conv1, unit.act2),
                    self._product(unit.conv2.conv.weight[:, :, 0], unit.conv2.conv.bias, snake=self._snake(snake)),
                )
                for unit, snake in zip(units, snakes[1:], strict=True)
            ),
        )

    def _snake(self, snake: SnakeBeta | None, upsampling: int = 1) -> tuple[Tensor, Tensor] | None:
        if snake is None:
            return None
        frequency, magnitude = (self._vector(value).repeat(upsampling) for value in snake.channel_values())
        return frequency, magnitude


def _padded(value: Tensor, axis: int) -> Tensor:
    """Returns `value` in float32, zero-padded at the end of an axis to a multiple of `CHANNEL_MULTIPLE`."""
    value = value.detach().float()
    missing = -value.shape[axis] % CHANNEL_MULTIPLE
    return F.pad(value, (0, 0) * (value.dim() - 1 - axis) + (0, missing)) if missing else value
