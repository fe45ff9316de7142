"""The codec decoder's causal transformer: each frame attends to itself and the `sliding_window - 1` frames before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.model.codec.layers import Linear, silu
from syrinx_stages.model.codec.state import Carry, StateLayout
from syrinx_stages.model.linear import pad_columns, pad_rows, padded_columns

if TYPE_CHECKING:
    from syrinx_stages.model.config import DecoderConfig


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last axis."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerScale(nn.Module):
    """Scales a residual branch per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return torch.addcmul(x, branch, self.scale)


class Rotary(nn.Module):
    """Rotary position embedding (https://arxiv.org/abs/2104.09864), with float32 angles of absolute positions.

    Maps positions [B, F] to cosines and signed sines (the first half negated) [B, F, 1, head_dim].
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        exponents = torch.arange(0, self.head_dim, 2, device=positions.device).float() / self.head_dim
        angles = positions[:, :, None, None].float() * (1.0 / self.theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the pairs (i, i + head_dim / 2) of x [B, F, heads, head_dim]."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    """Attends over exactly each frame's window, so that no sum depends on how frames are split into calls.

    The first B * F rows of x [rows, hidden] are frames. mask: [B, F, 1, window], 0, or -inf for positions before the
    request's first frame.
    """

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_size
        self.window = config.sliding_window
        self.q_proj = Linear(config.hidden_size, self.heads * self.head_dim)
        self.k_proj = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.v_proj = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.o_proj = Linear(self.heads * self.head_dim, config.hidden_size)
        self.stored = padded_columns(self.head_dim)
        """Size of a head with zeros appended: the order of the products' sums may depend on the batch without them."""
        self.slot = layout.reserve(self.window - 1, 2 * self.kv_heads * self.stored)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, carry: Carry) -> Tensor:
        batch, frames, _, window = mask.shape
        count = batch * frames
        query = self.q_proj(x)[:count].view(batch, frames, self.heads, self.head_dim)
        key = self.k_proj(x)[:count].view(batch, frames, self.kv_heads, self.head_dim)
        cache = carry.open(self.slot, frames)
        new = cache[:, window - 1 :].unflatten(2, (2, self.kv_heads, self.stored))  # type: ignore[no-untyped-call]
        new[:, :, 0] = pad_columns(rotate(key, rotation))
        new[:, :, 1] = pad_columns(self.v_proj(x)[:count].view_as(key))
        carry.close(self.slot, cache)
        # [B, F, key or value x heads x dim, window] -> [key or value, B x F x heads, window, dim]
        windows = cache.unfold(1, window, 1).view(batch, frames, 2, self.kv_heads, self.stored, window)
        keys, values = windows.permute(2, 0, 1, 3, 5, 4).flatten(1, 3)
        query = pad_columns(rotate(query, rotation)).view(count * self.kv_heads, -1, self.stored)
        mask = mask.expand(-1, -1, self.kv_heads, -1).reshape(-1, 1, window)
        scores = torch.baddbmm(mask, query, keys.mT, alpha=self.head_dim**-0.5)
        attended = scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ values
        return self.o_proj(pad_rows(attended[..., : self.head_dim].reshape(count, -1), self.o_proj.operand))


class MLP(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)).mul_(self.up_proj(x)))


class Layer(nn.Module):
    """Attention and MLP, each with a norm before and a layer scale after, added to the residual."""

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(layout, config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, carry: Carry) -> Tensor:
        x = self.self_attn_layer_scale(x, self.self_attn(self.input_layernorm(x), rotation, mask, carry))
        return self.mlp_layer_scale(x, self.mlp(self.post_attention_layernorm(x)))


class PreTransformer(nn.Module):
    """Maps [B, F, latent_dim] to the same shape."""

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.window = config.sliding_window
        self.input_proj = Linear(config.latent_dim, config.hidden_size, bias=True)
        self.output_proj = Linear(config.hidden_size, config.latent_dim, bias=True)
        self.rotary = Rotary(config.head_size, config.rope_theta)
        self.layers = nn.ModuleList([Layer(layout, config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        batch, frames, latent = x.shape
        count = batch * frames
        positions = carry.position[:, None] + torch.arange(frames, device=x.device)
        rotation = self.rotary(positions, x.dtype)
        offsets = torch.arange(1 - self.window, 1, device=x.device)
        mask = torch.zeros(batch, frames, 1, self.window, dtype=x.dtype, device=x.device)
        mask.masked_fill_((positions[:, :, None, None] + offsets) < 0, float("-inf"))
        # The rows are padded once here instead of in every product.
        x = self.input_proj(pad_rows(x.reshape(count, latent), self.input_proj.operand))
        for layer in self.layers:
            x = layer(x, rotation, mask, carry)
        return self.output_proj(self.norm(x))[:count].view(batch, frames, latent)
