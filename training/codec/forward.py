"""The codec decoder's forward pass in training: the weights of `model.codec_decoder`, whole crops, with gradients.

`CodecDecoder` streams, in place and without gradients; here the same layers are plain convolutions over [B, C, T].
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    ConvWeights,
    DecoderBlock,
    ResidualUnit,
    SnakeBeta,
)
from syrinx_stages.model.codec.transformer import Layer, PreTransformer, rotate

_BRANCH_SCALE = 0.01
"""Initial scale of the residual branches of the transformer and of the ConvNeXt blocks."""


def initialize(decoder: CodecDecoder, generator: torch.Generator) -> None:
    """Sets the weights to their initial values. Codebooks get none and no gradient: `quantize` sets them."""
    for name, weight in decoder.named_parameters():
        with torch.no_grad():
            if name.endswith(("cluster_usage", "embedding_sum")):
                weight.requires_grad_(False)
            elif weight.dim() > 1:
                # The number of products that each output sums.
                parent = decoder.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
                fan_in = weight[0].numel()
                if isinstance(parent, CausalTransposedConv):
                    fan_in = weight.shape[0] * weight.shape[2] // parent.stride
                weight.uniform_(-1, 1, generator=generator).mul_(fan_in**-0.5)
            elif name.endswith(("layer_scale.scale", "gamma")):
                weight.fill_(_BRANCH_SCALE)


def hidden_states(decoder: CodecDecoder, vectors: Tensor) -> Tensor:
    """Returns states [B, latent, 4 F] of quantized vectors [B, codebook_dim, F]: transformer and upsampling."""
    x = _transformer(decoder.pre_transformer, _conv(decoder.pre_conv, vectors).transpose(1, 2)).transpose(1, 2)
    for stage in decoder.upsample:
        upsample, block = stage.children()
        x = _convnext_block(block, _transposed(upsample, x))
    return x


def waveform(decoder: CodecDecoder, states: Tensor) -> Tensor:
    """Returns samples [B, 1,920 F] of states [B, latent, 4 F]."""
    first, *blocks, snake, last = decoder.decoder
    x = _conv(first, states)
    for block in blocks:
        x = _decoder_block(block, x)
    return _conv(last, _snake(snake, x)).squeeze(1)


def _causal(weights: ConvWeights, x: Tensor, dilation: int = 1, groups: int = 1) -> Tensor:
    padding = (weights.weight.shape[2] - 1) * dilation
    return F.conv1d(F.pad(x, (padding, 0)), weights.weight, weights.bias, dilation=dilation, groups=groups)


def _conv(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, CausalConv)
    return _causal(module.conv, x, module.dilation)


def _transposed(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, CausalTransposedConv)
    y = F.conv_transpose1d(x, module.conv.weight, module.conv.bias, stride=module.stride)
    return y[..., : x.shape[-1] * module.stride]


def _snake(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, SnakeBeta)
    frequency, magnitude = module.alpha.exp()[:, None], module.beta.exp()[:, None]
    return x + (x * frequency).sin().square() / (magnitude + 1e-9)


def _convnext_block(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, ConvNeXtBlock)
    y = module.norm(_causal(module.dwconv.conv, x, groups=x.shape[1]).transpose(1, 2))
    y = F.gelu(F.linear(y, module.pwconv1.weight, module.pwconv1.bias))
    return x + (F.linear(y, module.pwconv2.weight, module.pwconv2.bias) * module.gamma).transpose(1, 2)


def _decoder_block(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, DecoderBlock)
    snake, upsample, *units = module.block
    x = _transposed(upsample, _snake(snake, x))
    for unit in units:
        assert isinstance(unit, ResidualUnit)
        y = _causal(unit.conv2.conv, _snake(unit.act2, _conv(unit.conv1, _snake(unit.act1, x))))
        x = x + y
    return x


def _transformer(module: PreTransformer, x: Tensor) -> Tensor:
    """Returns outputs [B, F, latent] of x [B, F, latent]."""
    frames = x.shape[1]
    positions = torch.arange(frames, device=x.device)
    rotation = module.rotary(positions[None], x.dtype)
    distance = positions[:, None] - positions
    mask = (distance >= 0) & (distance < module.window)
    x = F.linear(x, module.input_proj.weight, module.input_proj.bias)
    for layer in module.layers:
        assert isinstance(layer, Layer)
        x = layer.self_attn_layer_scale(x, _attention(layer, layer.input_layernorm(x), rotation, mask))
        y = layer.post_attention_layernorm(x)
        gate, up = F.linear(y, layer.mlp.gate_proj.weight), F.linear(y, layer.mlp.up_proj.weight)
        x = layer.mlp_layer_scale(x, F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight))
    return F.linear(module.norm(x), module.output_proj.weight, module.output_proj.bias)


def _attention(layer: Layer, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """mask: [F, F] bool, the frames each frame attends to."""
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (F.linear(x, each.weight).view(*x.shape[:2], -1, attention.head_dim) for each in projections)
    repeats = attention.heads // attention.kv_heads
    query, key, value = (each.transpose(1, 2) for each in (rotate(query, rotation), rotate(key, rotation), value))
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scale = math.sqrt(1 / attention.head_dim)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return F.linear(out.transpose(1, 2).flatten(2), attention.o_proj.weight)
